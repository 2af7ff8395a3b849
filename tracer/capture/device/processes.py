"""Processes on a device, asked of NVIDIA's management library, as nvidia-smi asks it."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

_MOST_PROCESSES: Final = 1024
_NOT_AVAILABLE: Final = 2**64 - 1


def processes_on(uuid: str) -> list[tuple[int, str, int]]:
    """Return number, name and bytes of each process that computes on a device; none where that is not told."""
    device, count, name = ctypes.c_void_p(), ctypes.c_uint(_MOST_PROCESSES), ctypes.create_string_buffer(256)
    rows, found = (ctypes.c_ulonglong * 3 * _MOST_PROCESSES)(), []  # `nvmlProcessInfo_t`: its number, its bytes, more
    with suppress(OSError, AttributeError):  # no driver, or one older than CUDA 11
        library = ctypes.CDLL("libnvidia-ml.so.1")
        is_told = library.nvmlInit_v2() == 0
        is_told &= library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(device)) == 0
        if is_told and library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), rows) == 0:
            for number, size_bytes in ((row[0] & 0xFFFFFFFF, row[1]) for row in rows[: count.value]):
                is_named = library.nvmlSystemGetProcessName(number, name, len(name)) == 0
                if size_bytes != _NOT_AVAILABLE:
                    found.append((number, name.value.decode("utf-8", "replace") if is_named else "?", size_bytes))
        library.nvmlShutdown()
    return found
