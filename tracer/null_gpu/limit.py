"""How much of a null GPU a program may take: the card's memory, or for a while another size, or without end."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from tracer.units import GIB

WITHOUT_END_BYTES = 4096 * GIB


@contextmanager
def limited_to(limit_bytes: int, num_devices: int) -> Iterator[None]:
    """Memory runs out there meanwhile; what the card says of itself stays. What was before holds again at the end.

    Args:
        limit_bytes: Memory of each device; `WITHOUT_END_BYTES` to see what a program needs.
    """
    limit = ctypes.CDLL(None).null_gpu_limit_bytes
    limit.argtypes, limit.restype = (ctypes.c_int, ctypes.c_size_t), ctypes.c_size_t
    before = [limit(device, limit_bytes) for device in range(num_devices)]
    try:
        yield
    finally:
        for device, before_bytes in enumerate(before):
            limit(device, before_bytes)
