"""How a device of the null GPU gets full early."""

from __future__ import annotations

import ctypes

import torch


def leave_bytes(device: int, left_bytes: int) -> None:
    """Take all but some memory of a device, beside torch, as another program would."""
    with torch.cuda.device(device):
        free_bytes, _ = torch.cuda.mem_get_info(device)
        taken = ctypes.c_void_p()
        assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(taken), ctypes.c_size_t(free_bytes - left_bytes)) == 0
