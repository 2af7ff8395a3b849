"""Copies of large tensors on the host, for changes that keep them there until they are used."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tracer.null_gpu import process

_WORTHWHILE_BYTES = 1 << 20
"""A copy of less costs as much time as it saves memory: it stays."""


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
    return copied(torch.empty(tensor.shape, dtype=tensor.dtype, layout=tensor.layout, pin_memory=True), tensor)


def copied_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on a device."""
    return copied(torch.empty_like(tensor, device=device), tensor)


def copied(into: Tensor, source: Tensor) -> Tensor:
    """Copy numbers into a tensor and return it, but for a null GPU's, which are made up.

    To write gigabytes of them, and back, would be most of a run there.
    """
    if process.is_active() and source.is_floating_point():
        return into
    return into.copy_(source, non_blocking=True)
