"""Parts of a training step, which a profiled run starts and times one by one, and the tensors of its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn


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
        """Copy the step with its model and optimizer; None if that is not possible, and phases are not timed."""


def train_step(
    workload: Workload,
    observe_batch: Callable[[Any], object] = lambda batch: None,
    after_backward: Callable[[Any], object] = lambda loss: None,
) -> None:
    """Make a step: forward, backward, and the optimizer's."""
    batch = workload.next_batch()
    observe_batch(batch)
    loss = workload.forward(batch)
    workload.backward(loss)
    after_backward(loss)
    workload.optimizer_step()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Within the block, weights and inputs are made in this type where none is named."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def all_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of a model and of the modules in it, though an attribute `buffers` may hide the method.

    Megatron-core's DistributedDataParallel has a list of that name. A model's own `parameters` is heeded.
    """
    return chain(model.parameters(), nn.Module.buffers(model))


def is_on_meta(model: nn.Module) -> bool:
    """Return True if the model's parameters and buffers have no memory."""
    tensors = list(all_tensors(model))
    return bool(tensors) and all(tensor.is_meta for tensor in tensors)


def give_memory(model: nn.Module, device: torch.device) -> None:
    """Put its parameters and buffers on a device, unwritten.

    `to_empty` would make two of a weight that two modules share.
    """
    by_id: dict[int, Tensor] = {}

    def on_device(tensor: Tensor) -> Tensor:
        if id(tensor) not in by_id:
            empty = torch.empty_like(tensor, device=device)
            by_id[id(tensor)] = (
                nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
            )
        return by_id[id(tensor)]

    tensors = []  # an address that is free again could be taken for a shared weight's
    for module in model.modules():
        named = [*module.named_parameters(recurse=False, remove_duplicate=False)]
        named += [*module.named_buffers(recurse=False, remove_duplicate=False)]  # type: ignore[list-item]
        tensors += named
        for name, tensor in named:
            setattr(module, name, on_device(tensor))
