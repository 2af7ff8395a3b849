"""A workload around another one: the base of changes that act on a step's pieces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import nn

from tracer.workloads.workload import Workload, num_micro_batches


@dataclass(slots=True, eq=False)
class Wrapped:
    """The same step; what a change is about is overridden."""

    inner: Workload  # The workload

    @property
    def model(self) -> nn.Module:
        """The module whose parameters and buffers are named."""
        return self.inner.model

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """What updates them, if anything does."""
        return self.inner.optimizer

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.inner.device

    @property
    def num_micro_batches(self) -> int:
        """Forward and backward passes before each step of the optimizer."""
        return num_micro_batches(self.inner)

    def next_batch(self) -> Any:
        """A new batch on the device."""
        return self.inner.next_batch()

    def forward(self, batch: Any) -> Any:
        """The loss, a tensor; None if there is none."""
        return self.inner.forward(batch)

    def backward(self, loss: Any) -> None:
        """Fill the gradients; nothing without a loss."""
        self.inner.backward(loss)

    def optimizer_step(self) -> None:
        """Update the parameters and let go of the gradients."""
        self.inner.optimizer_step()

    def copy(self) -> Self | None:
        """The same on copies of model and optimizer; None if that cannot be."""
        inner = self.inner.copy()
        return None if inner is None else replace(self, inner=inner)


@dataclass(slots=True, eq=False)
class ForwardUnder(Wrapped):
    """The same with the forward pass under a context."""

    context: Callable[[], AbstractContextManager[object]]

    def forward(self, batch: Any) -> Any:
        """The loss, a tensor."""
        with self.context():
            return self.inner.forward(batch)


def inmost(workload: Workload) -> Workload:
    """The workload inside all that is around it."""
    while isinstance(workload, Wrapped):
        workload = workload.inner
    return workload


def with_inmost(workload: Workload, **fields: Any) -> Workload:
    """The same, with some fields of the workload inside replaced."""
    if isinstance(workload, Wrapped):
        return replace(workload, inner=with_inmost(workload.inner, **fields))
    return replace(workload, **fields)  # type: ignore[type-var]
