"""What a training step is made of: the pieces that a profiled run starts, marks and times one by one."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn


class Workload(Protocol):
    """What a training step is made of. One step: `next_batch`, `forward`, `backward`, `optimizer_step`."""

    @property
    def model(self) -> nn.Module:
        """The module whose parameters and buffers are named."""

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """What updates them, if anything does."""

    @property
    def device(self) -> torch.device:
        """The model's device."""

    def next_batch(self) -> Any:
        """A new batch on the device."""

    def forward(self, batch: Any) -> Any:
        """The loss, a tensor; None if there is none, as in inference."""

    def backward(self, loss: Any) -> None:
        """Fill the gradients; nothing without a loss."""

    def optimizer_step(self) -> None:
        """Update the parameters and let go of the gradients."""

    def copy(self) -> Workload | None:
        """The same on copies of model and optimizer; None if that cannot be, and its phases are not timed."""


def num_micro_batches(workload: Workload) -> int:
    """Forward and backward passes before each step of the optimizer; 1 for a workload that does not say."""
    return int(getattr(workload, "num_micro_batches", 1))
