"""Count the steps of a script, and do nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn


@dataclass(slots=True)
class CountedSteps:
    """Steps of a script that are counted, and nothing more."""

    device: torch.device  # Where what is trained was when its first step began
    num_steps_done: int = 0  # How many have ended
    is_complete: bool = False  # Whether no more are wanted; the script's profile asks its own question
    is_incomplete: bool = False  # Never: it writes nothing

    @classmethod
    def of(cls, models: dict[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> CountedSteps:
        """Steps of these objects; without parameters they are on the CPU."""
        parameters = [parameter for model in models.values() for parameter in model.parameters()]
        parameters += [item for optimizer in optimizers for group in optimizer.param_groups for item in group["params"]]
        return cls(parameters[0].device if parameters else torch.device("cpu"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """No-op: nothing is switched on."""

    def wait_for_next_step(self) -> None:
        """No-op: nothing is recorded."""

    def abandon(self) -> None:
        """No-op: nothing is switched on."""

    def observe_call(self, module: nn.Module, args: Any) -> None:
        """A call of a model is not looked at."""

    def step(self) -> None:
        """Count a step that has ended."""
        self.num_steps_done += 1
