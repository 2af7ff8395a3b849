"""A training step made of a model, a loss between output and target, and an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SupervisedWorkload:
    """A model and all that its training step needs.

    One step is `batch = next_batch()`, `loss = forward(batch)`, `backward(loss)`, `optimizer_step()`.
    """

    model: nn.Module  # Called with all tensors of a batch but the last
    optimizer: torch.optim.Optimizer | None  # Updates the model, or None for gradients alone
    # Makes a batch on the host, as a data loader does, and moves it to the device: the inputs, then the target. Called
    # in every step.
    next_batch: Callable[[], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]  # From output and target to the number to make small
    device: torch.device  # Where model and batches are
    description: Mapping[str, str | int | float]  # Settings to show a reader, by name

    def forward(self, batch: Batch) -> Tensor:
        """The loss of one batch, a scalar."""
        *inputs, target = batch
        output: Tensor = self.model(*inputs)
        return self.loss(output, target)

    def backward(self, loss: Tensor) -> None:
        """Fill the gradients of the model's parameters."""
        loss.backward()  # type: ignore[no-untyped-call]

    def optimizer_step(self) -> None:
        """Update the parameters, then free the gradients.

        They go last, and not first in the next step, so that none is alive when a recording begins.
        """
        if self.optimizer is not None:
            self.optimizer.step()
        self.model.zero_grad(set_to_none=True)

    def copy(self) -> SupervisedWorkload:
        """The same step on copies of model and optimizer; batches keep coming from the same source."""
        model, optimizer = deepcopy((self.model, self.optimizer))
        return replace(self, model=model, optimizer=optimizer)
