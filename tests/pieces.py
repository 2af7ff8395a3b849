"""Profiled runs for tests: training steps in the pieces that a session wants, tiny, and able to fail where told."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.fno_workload import FnoSettings, build_fno_workload
from tracer.workloads.module_steps import SupervisedWorkload as FnoWorkload

Batch = tuple[Tensor, Tensor]
# Called with the name of the piece and the number of the step, before the piece does its work.
Hook = Callable[[str, int], None]


def nothing(piece: str, step: int) -> None:
    """Let every piece work."""


def raising(error: BaseException, *, piece: str, step: int) -> Hook:
    """Fail in one piece of one step."""

    def hook(now: str, at: int) -> None:
        if (now, at) == (piece, step):
            raise error

    return hook


def mlp_with_state() -> nn.Sequential:
    """With what can give an observer away: dropout draws random numbers, batch norm has buffers."""
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.GELU(), nn.Linear(16, 3))


def noise() -> Batch:
    """A batch that draws from every global random state."""
    x = torch.randn(8, 12) * random.random() + torch.from_numpy(np.random.rand(8, 12)).float()
    return x, torch.randn(8, 3)


class Pieces:
    """A training step in pieces, as `run_profile` takes it."""

    def __init__(
        self,
        model: nn.Module | None = None,
        make_optimizer: Callable[[Any], torch.optim.Optimizer] | None = torch.optim.AdamW,
        *,
        batch: Callable[[], Batch] = noise,
        before: Hook = nothing,
        before_in_copy: Hook = nothing,
    ) -> None:
        self.model = model if model is not None else mlp_with_state()
        self.optimizer = make_optimizer(self.model.parameters()) if make_optimizer is not None else None
        self.device = torch.device("cpu")
        self.batch, self.before, self.before_in_copy = batch, before, before_in_copy
        self.step = -1

    def next_batch(self) -> Batch:
        self.step += 1
        self.before("next_batch", self.step)
        return self.batch()

    def forward(self, batch: Batch) -> Tensor:
        self.before("forward", self.step)
        return F.mse_loss(self.model(batch[0]), batch[1])

    def backward(self, loss: Tensor) -> None:
        self.before("backward", self.step)
        loss.backward()

    def optimizer_step(self) -> None:
        self.before("optimizer_step", self.step)
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def copy(self) -> Pieces:
        self.before("copy", self.step)
        copy = Pieces(None, None, batch=self.batch, before=self.before_in_copy)
        copy.model, copy.optimizer = deepcopy((self.model, self.optimizer))
        return copy


def tiny_fno(device: torch.device | str = "cpu", **settings: Any) -> FnoWorkload:
    """The smallest FNO with everything in it."""
    small = {"batch_size": 2, "hidden_channels": 4, "data_size": 8, "n_modes": 4, "n_layers": 1}
    return build_fno_workload(FnoSettings(**{**small, **settings}), device=device)


def seeded(seed: int = 0) -> None:
    """Set every global random state."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def random_states() -> tuple[Any, ...]:
    """Every global random state, comparable."""
    name, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), (name, keys.tolist(), *rest), random.getstate()  # type: ignore[attr-defined, union-attr]
