"""Parts of a training step, which a profiled run starts, marks and times one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn


class Workload(Protocol):
    """A training step in parts. One step: `next_batch`, `forward`, `backward`, `optimizer_step`."""

    @property
    def model(self) -> nn.Module:
        """The module whose parameters and buffers are named."""

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer of the parameters, if there is one."""

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
        """Update the parameters and free the gradients."""

    def copy(self) -> Workload | None:
        """The same on copies of model and optimizer; None if that cannot be, and its phases are not timed."""


def train_step(
    workload: Workload,
    observe_batch: Callable[[Any], object] = lambda batch: None,
    after_backward: Callable[[Any], object] = lambda loss: None,
) -> None:
    """Make a step: forward, backward, and the optimizer's.

    Args:
        observe_batch: Called with the batch, before its forward pass.
    """
    batch = workload.next_batch()
    observe_batch(batch)
    loss = workload.forward(batch)
    workload.backward(loss)
    after_backward(loss)
    workload.optimizer_step()
