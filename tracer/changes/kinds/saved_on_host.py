"""Saved tensors on the host: forward copies what it saves for backward to the host, and backward copies it back."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from tracer.capture.torch_private.torch_graph import running_node
from tracer.changes.hooks import Hooks
from tracer.null_gpu import process

_WORTHWHILE_BYTES = 1 << 20
"""A copy of less costs as much time as it saves memory: it stays."""


class ActivationsOnHost(Hooks, makes="saved-on-host"):
    """Has calls of a model save on the host."""

    def in_call(self, model: nn.Module) -> AbstractContextManager[object] | None:
        """Return hooks for what is saved; none where backward computes again, which it uses at once."""
        return SavedOnHost(model) if torch.is_grad_enabled() and running_node() is None else None


class SavedOnHost(torch.autograd.graph.saved_tensors_hooks):
    """Keeps the tensors that forward saves in the host's pinned memory until backward uses them.

    Unlike `torch.autograd.graph.save_on_cpu` it leaves parameters, which are on the device in any case, and what is
    small.
    """

    def __init__(self, model: nn.Module) -> None:
        resident = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def pack(tensor: Tensor) -> tuple[torch.device | None, Tensor]:
            if not _is_worth_moving(tensor) or tensor.untyped_storage().data_ptr() in resident:
                return None, tensor.detach()  # without its graph: a node would keep itself
            return tensor.device, _copied_to_host(tensor)

        def unpack(packed: tuple[torch.device | None, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor if device is None else _copied(torch.empty_like(tensor, device=device), tensor)

        super().__init__(pack, unpack)


def _is_worth_moving(tensor: Tensor) -> bool:
    """Return whether to copy it is worthwhile: a plain one, of some size, on a GPU."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.is_cuda
        and tensor.layout == torch.strided
        and tensor.numel() * tensor.element_size() >= _WORTHWHILE_BYTES
    )


def _copied_to_host(tensor: Tensor) -> Tensor:
    return _copied(torch.empty(tensor.shape, dtype=tensor.dtype, layout=tensor.layout, pin_memory=True), tensor)


def _copied(into: Tensor, source: Tensor) -> Tensor:
    """Copy numbers into a tensor and return it, but for a null GPU's, which are made up.

    To write gigabytes of them, and back, would be most of a run there.
    """
    if process.is_active() and source.is_floating_point():
        return into
    return into.copy_(source, non_blocking=True)
