"""`torch.autograd.graph.save_on_cpu` in a rehearsal: what forward saves lies on the host until backward uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tracer.rehearsal.rule import Gpu

ON_HOST = "on host"
"""In `Gpu.memory`: whom to tell of tensors that are not on the device."""


def save_on_host(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    """A replacement of `save_on_cpu.__init__`, which on the CPU would keep every tensor as it is.

    A view is copied without the storage around it, to the host and back, as `Tensor.cpu()` and `Tensor.to()` do.
    """

    def pack(tensor: Tensor) -> Tensor:
        packed = torch.empty(tensor.size(), dtype=tensor.dtype, layout=tensor.layout, device=tensor.device)
        gpu.memory[ON_HOST]([packed])
        return packed.copy_(tensor)

    def unpack(packed: Tensor) -> Tensor:
        return packed.clone()

    def init(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
        saved_tensors_hooks.__init__(self, pack, unpack)

    return init
