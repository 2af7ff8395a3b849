"""Device memory of the null GPU as the host sees it: the same addresses, since it is host memory."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

_FIRST = 4096
"""The first page stays out: an address of 0 is no memory."""
_NUM_BYTES = (1 << 47) - 2 * _FIRST
"""All addresses that a process of Linux has; only what a tensor lies on is ever touched."""


@cache
def _all_of_memory(dtype: torch.dtype) -> torch.Tensor:
    # Leaked on purpose, once: a tensor over each tensor's own bytes would make a ctypes type for each size.
    memory = (ctypes.c_byte * _NUM_BYTES).from_address(_FIRST)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the CPU on the very bytes of one of the null GPU: what is written to it is in both."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    at = (tensor.data_ptr() - _FIRST) // tensor.element_size()
    view = _all_of_memory(tensor.dtype).as_strided(tensor.size(), tensor.stride(), at)
    return view.conj() if tensor.is_conj() else view


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first byte to behind its last."""
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are all that lies between its first and its last byte."""
    start, end = extent(tensor)
    return end - start == tensor.nbytes
