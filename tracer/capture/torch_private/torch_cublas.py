"""Workspaces that torch's allocator gives to cuBLAS and cublasLt: their sizes, and where the kept ones are."""

from __future__ import annotations

import inspect
import os
import re
from typing import Any

import torch

from tracer.units import KIB, MIB

_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
# Since when cards after Hopper are given as much as Hopper.
_AS_MUCH_AS_HOPPER = (2, 12)


def workspace_bytes(capability: tuple[int, int]) -> int:
    """Bytes of cuBLAS's workspace on a card: CUBLAS_WORKSPACE_CONFIG's pairs of KiB and number, or torch's choice.

    Source:
        aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize; seen on the null GPU with 2.11 to 2.15.
    """
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(size_kib) * int(count) * KIB for size_kib, count in pairs)
    is_large = capability >= (9, 0) if _TORCH >= _AS_MUCH_AS_HOPPER else capability == (9, 0)
    return 32 * MIB if is_large else 4096 * KIB * 2 + 16 * KIB * 8


def cublas_workspaces(device: torch.device) -> list[tuple[int, int]]:
    """Address and size of each block in use that is exactly as large as a workspace that torch allocates for cuBLAS.

    Torch keeps one for each handle and stream, as no tensor, and tells nobody where. With a workspace for every call,
    as from 2.15 on, there is none between two operators.

    Args:
        device: Any; other devices than CUDA's have none.
    """
    if device.type != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    sizes = _sizes_bytes(device)
    snapshot: Any = torch.cuda.memory_snapshot
    is_light = "include_traces" in inspect.signature(snapshot).parameters
    workspaces = []
    for segment in snapshot(include_traces=False) if is_light else snapshot():
        address = int(segment["address"])
        for block in segment["blocks"]:
            is_in_use = block["state"] == "active_allocated" and segment["device"] == device.index
            if is_in_use and block.get("requested_size") in sizes:
                workspaces.append((address, int(block["requested_size"])))
            address += int(block["size"])
    return workspaces


def _sizes_bytes(device: torch.device) -> set[int]:
    """Of cuBLAS and of cublasLt: torch tells them since 2.13."""
    names = ("_cuda_getCublasWorkspaceSize", "_cuda_getCublasLtWorkspaceSize")
    if all(hasattr(torch._C, name) for name in names):
        return {int(getattr(torch._C, name)()) for name in names} - {0}
    lt_kib = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    lt_bytes = int(lt_kib) * KIB if lt_kib.isdecimal() else MIB
    return {workspace_bytes(torch.cuda.get_device_capability(device)), lt_bytes} - {0}
