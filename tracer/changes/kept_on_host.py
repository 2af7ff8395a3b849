"""Memory of an unchanged script that waits on the host until it is used: saved activations, and optimizer state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tracer.changes.state_between_steps import StateBetweenSteps
from tracer.null_gpu import process

_WORTHWHILE_BYTES = 1 << 20
"""A copy of less costs as much time as it saves memory: it stays."""


class SavedOnHost(torch.autograd.graph.saved_tensors_hooks):
    """What forward saves for backward lies in the host's pinned memory until backward uses it.

    Unlike `torch.autograd.graph.save_on_cpu` it leaves parameters, which are on the device in any case, and what is
    small.
    """

    def __init__(self, model: nn.Module) -> None:
        """Set up the hooks that move saved tensors."""
        resident = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def pack(tensor: Tensor) -> tuple[torch.device | None, Tensor]:
            if not is_worth_moving(tensor) or tensor.untyped_storage().data_ptr() in resident:
                return None, tensor.detach()  # without its graph: a node would keep itself
            return tensor.device, copied_to_host(tensor)

        def unpack(packed: tuple[torch.device | None, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor if device is None else copied_to_device(tensor, device)

        super().__init__(pack, unpack)


class StateOnHost(StateBetweenSteps):
    """The state of optimizers is on the device during their steps alone, and else in the host's pinned memory."""

    def is_worthwhile(self, value: Tensor) -> bool:
        """Whether to move it."""
        return is_worth_moving(value)

    def put_away(self, value: Tensor, place: Tensor | None) -> Tensor:
        """Copied to the host, to the same memory each time."""
        return copied_to_host(value) if place is None or place.dtype != value.dtype else _copy(place, value)

    def brought_back(self, place: Tensor, device: torch.device) -> Tensor:
        """Copied to the device."""
        return copied_to_device(place, device)


def is_worth_moving(tensor: Tensor) -> bool:
    """Whether to copy it is worthwhile: a plain one, of some size, on a GPU."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.is_cuda
        and tensor.layout == torch.strided
        and tensor.numel() * tensor.element_size() >= _WORTHWHILE_BYTES
    )


def copied_to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory of the host."""
    return _copy(torch.empty(tensor.shape, dtype=tensor.dtype, layout=tensor.layout, pin_memory=True), tensor)


def copied_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on a device."""
    return _copy(torch.empty_like(tensor, device=device), tensor)


def _copy(into: Tensor, source: Tensor) -> Tensor:
    """A null GPU's numbers are made up: to write gigabytes of them, and back, would be most of a run there."""
    if process.is_active() and source.is_floating_point():
        return into
    return into.copy_(source, non_blocking=True)
