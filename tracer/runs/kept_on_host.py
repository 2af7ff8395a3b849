"""Memory of an unchanged script that waits on the host until it is used: saved activations, and optimizer state."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

_WORTHWHILE_BYTES = 1 << 20
"""A copy of less costs as much time as it saves memory: it stays."""


class SavedOnHost(torch.autograd.graph.saved_tensors_hooks):
    """What forward saves for backward lies in the host's pinned memory until backward uses it.

    Unlike `torch.autograd.graph.save_on_cpu` it leaves parameters, which are on the device in any case, and what is
    small.
    """

    def __init__(self, model: nn.Module) -> None:
        """Set up the hooks that move saved tensors.

        Args:
            model: The model; its parameters stay on the device.
        """
        resident = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def pack(tensor: Tensor) -> tuple[torch.device | None, Tensor]:
            if not _is_moved(tensor) or tensor.untyped_storage().data_ptr() in resident:
                return None, tensor.detach()  # without its graph: a node would keep itself
            return tensor.device, _on_host(tensor)

        def unpack(packed: tuple[torch.device | None, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor if device is None else tensor.to(device, non_blocking=True)

        super().__init__(pack, unpack)


class StateOnHost:
    """The state of optimizers is on the device during their steps alone.

    Attributes:
        num_tensors: How many were moved by now.
    """

    def __init__(self) -> None:
        """Begin with nothing moved."""
        self.num_tensors = 0
        self._places: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[tuple[int, str], Tensor]]
        self._places = weakref.WeakKeyDictionary()

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Move the state to the device of its parameters."""
        places = self._places.get(optimizer, {})
        for parameter, values in _states(optimizer):
            for name, value in values.items():
                on_host = places.get((id(parameter), name))
                if on_host is not None and value is on_host:
                    values[name] = on_host.to(parameter.device, non_blocking=True)

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Move the state to the host, to the same memory each time."""
        places = self._places.setdefault(optimizer, {})
        for parameter, values in _states(optimizer):
            for name, value in values.items():
                if not isinstance(value, Tensor) or not _is_moved(value):
                    continue
                on_host = places.get((id(parameter), name))
                if on_host is None or (on_host.shape, on_host.dtype) != (value.shape, value.dtype):
                    on_host = _on_host(value)
                    places[id(parameter), name] = on_host
                    self.num_tensors += 1
                else:
                    on_host.copy_(value, non_blocking=True)
                values[name] = on_host


def _states(optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, dict[str, Any]]]:
    return [(parameter, values) for parameter, values in optimizer.state.items() if isinstance(values, dict)]


def _is_moved(tensor: Tensor) -> bool:
    """A plain one, of some size, on a GPU."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.is_cuda
        and tensor.layout == torch.strided
        and tensor.numel() * tensor.element_size() >= _WORTHWHILE_BYTES
    )


def _on_host(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, layout=tensor.layout, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
