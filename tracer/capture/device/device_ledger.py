"""The whole device as a ledger: what its driver says is used, and what of that is torch's, and by which pool."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from tracer.capture.device.devices import device_memory, reserved_bytes, uuid_of
from tracer.capture.device.host_memory import pinned_bytes, resident_bytes

DEFAULT_POOL, GRAPH_POOL, OWN_POOL = "default pool", "pools of CUDA graphs", "MemPools and shared pools of graphs"


@dataclass(frozen=True, slots=True)
class Processes:
    """The driver's figures of the processes on a device."""

    own_bytes: int  # Bytes of this process
    other_bytes: int  # Bytes of all other processes
    num_others: int  # How many they are


@dataclass(frozen=True, slots=True)
class DeviceLedger:
    """Use of a device's memory at one moment, in bytes; the parts sum to `used_bytes`."""

    total_bytes: int  # Memory of the device
    used_bytes: int  # Bytes in use by everybody, as the driver says
    pools: Mapping[str, int]  # Reserved by torch in this process, by pool
    # Bytes of this process outside its allocator: the context, libraries and their code; None where other processes
    # cannot be told apart from it.
    context_bytes: int | None
    other_bytes: int | None  # Bytes in use by other processes; None likewise
    num_others: int  # Number of these processes
    # What is in use and is none of these: context, libraries and other processes where they cannot be told apart, or
    # what the driver keeps for itself.
    rest_bytes: int
    # Host memory that is pinned for devices, and what of it torch's cache holds; None where unknown.
    pinned_bytes: tuple[int, int] | None = None
    resident_bytes: int | None = None  # Resident host memory of this process; None where unknown

    @property
    def reserved_bytes(self) -> int:
        """Reserved by torch in this process."""
        return sum(self.pools.values())


def device_ledger(
    device: torch.device, segments: Iterable[Mapping[str, Any]] = (), *, nvml: Any = None
) -> DeviceLedger | None:
    """What is on a device now.

    Returns:
        None where the driver does not say what is used.
    """
    memory = device_memory(device)
    if memory is None:
        return None
    free, total = memory
    used = total - free
    pools = _pools(segments, device) or {DEFAULT_POOL: reserved_bytes(device) or 0}
    reserved = sum(pools.values())
    processes = _processes(device, nvml)
    context = max(0, processes.own_bytes - reserved) if processes is not None else None
    other = processes.other_bytes if processes is not None else None
    return DeviceLedger(
        total_bytes=total,
        used_bytes=used,
        pools=pools,
        context_bytes=context,
        other_bytes=other,
        num_others=processes.num_others if processes is not None else 0,
        rest_bytes=used - reserved - (context or 0) - (other or 0),
        pinned_bytes=pinned_bytes(),
        resident_bytes=resident_bytes(),
    )


def _pools(segments: Iterable[Mapping[str, Any]], device: torch.device) -> dict[str, int]:
    """Reserved bytes by pool.

    Source: `MempoolId_t` in `c10/core/Allocator.h` and `MemPool` in `c10/cuda/CUDACachingAllocator.cpp`: (0, 0) is the
    default, (n, 0) what a graph's capture has made for itself, (0, n) what a program has asked for.
    """
    pools: dict[str, int] = {}
    for segment in segments:
        if segment.get("device") != device.index:
            continue
        of_graph, own = segment.get("segment_pool_id", (0, 0))
        name = GRAPH_POOL if of_graph else OWN_POOL if own else DEFAULT_POOL
        pools[name] = pools.get(name, 0) + int(segment["total_size"])
    return pools


def _processes(device: torch.device, nvml: Any) -> Processes | None:
    """What NVML says of the processes on a device; None where it is not there, or does not know this process."""
    if nvml is None:
        if device.type != "cuda":
            return None
        with suppress(ImportError):
            import pynvml as nvml  # type: ignore[import-not-found, import-untyped, no-redef, unused-ignore]
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(_handle(device, nvml))
    except nvml.NVMLError:  # a driver or a container that does not tell
        return None
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    sizes = {int(process.pid): process.usedGpuMemory for process in running}
    own = sizes.pop(os.getpid(), None)
    # Outside of a container numbers of processes are others; where one has no size, nothing can be told apart.
    if own is None or any(size is None for size in sizes.values()):
        return None
    return Processes(int(own), sum(int(size) for size in sizes.values()), len(sizes))


def _handle(device: torch.device, nvml: Any) -> Any:
    """By the device's own number, since CUDA_VISIBLE_DEVICES renames the others."""
    uuid = uuid_of(device)
    if uuid is None:
        return nvml.nvmlDeviceGetHandleByIndex(device.index)
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
