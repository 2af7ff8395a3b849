"""Processes on a device, asked of NVIDIA's management library, as nvidia-smi asks it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Final

_MOST_PROCESSES: Final = 1024
_NOT_AVAILABLE: Final = 2**64 - 1


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_t` since its second version."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def processes_on(uuid: str) -> list[tuple[int, str, int]]:
    """Return number, name and bytes of each process that computes on a device; none where that is not told."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2():
            return []
        try:
            return list(_processes(library, uuid))
        finally:
            library.nvmlShutdown()
    except (OSError, AttributeError):  # no driver, or one older than CUDA 11
        return []


def _processes(library: Any, uuid: str) -> Iterator[tuple[int, str, int]]:
    device, count, found = ctypes.c_void_p(), ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
    if library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(device)):
        return
    if library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found):
        return
    for process in found[: count.value]:
        name = ctypes.create_string_buffer(256)
        is_named = not library.nvmlSystemGetProcessName(process.pid, name, len(name))
        if process.used_bytes != _NOT_AVAILABLE:
            yield process.pid, name.value.decode("utf-8", "replace") if is_named else "?", process.used_bytes
