"""The null GPU's devices as the tests of this folder find them, and how one of them gets full early."""

from __future__ import annotations

import ctypes
import gc

import torch

_taken: list[ctypes.c_void_p] = []


def set_as_new() -> None:
    """Nothing allocated by anybody, counters and peaks at zero, the first device current, no history."""
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.set_device(0)
    gc.collect()
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.reset_accumulated_memory_stats(device)
    while _taken:
        assert ctypes.CDLL(None).cudaFree(_taken.pop()) == 0


def leave_bytes(device: int, left_bytes: int) -> None:
    """Take all but some memory of a device, beside torch, as another program would."""
    taken = ctypes.c_void_p()
    with torch.cuda.device(device):
        free_bytes, _ = torch.cuda.mem_get_info(device)
        assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(taken), ctypes.c_size_t(free_bytes - left_bytes)) == 0
    _taken.append(taken)
