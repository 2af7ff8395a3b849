"""Saved tensors on the host: forward copies what it saves for backward to the host, and backward copies it back."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from tracer.capture.torch_private.torch_graph import running_node
from tracer.changes import host_copies
from tracer.changes.hooks import Hooks


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
            if not host_copies.is_worth_moving(tensor) or tensor.untyped_storage().data_ptr() in resident:
                return None, tensor.detach()  # without its graph: a node would keep itself
            return tensor.device, host_copies.copied_to_host(tensor)

        def unpack(packed: tuple[torch.device | None, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor if device is None else host_copies.copied_to_device(tensor, device)

        super().__init__(pack, unpack)
