"""Blocks of a device's memory: what may be a library's workspace, what private pools do not use, and what is unmapped.

vLLM's sleep mode keeps the addresses of its weights and its KV cache, and gives back what lies behind them.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch

from tracer.capture.torch_private.torch_cuda import are_workspaces_kept, workspace_sizes

_Block = tuple[int, Mapping[str, Any]]
_DEFAULT_POOL = (0, 0)


@dataclass(frozen=True, slots=True)
class DeviceBlocks:
    """Findings of a look at the allocator's segments; empty for other devices than CUDA's."""

    # Address and bytes of each block in use that is exactly as large as a workspace that torch allocates for cuBLAS.
    # Torch keeps one for each handle and stream, as no tensor, and tells nobody where. With a workspace for every call,
    # as from 2.15 on, there is none between two operators.
    workspaces: tuple[tuple[int, int], ...] = ()
    # Address and bytes of each block in use that is exactly as large as a bucket of gradients.
    buckets: tuple[tuple[int, int], ...] = ()
    # Begin and end of each piece of a private pool that is not in use, by address. Replayed CUDA graphs work in such
    # memory, and tensors of theirs refer to it, while the allocator counts it as free.
    idle: tuple[tuple[int, int], ...] = ()
    # Bytes of each block in use, by address: what a storage there takes. It is more than the storage where the rest of
    # a piece was too little to split off.
    sizes: Mapping[int, int] = field(default_factory=dict)
    # Begin and end of each segment, by address. A tensor elsewhere lies in memory that torch's allocator has not
    # reserved, such as pinned host memory that the device reads.
    segments: tuple[tuple[int, int], ...] = ()


def device_blocks(device: torch.device, *, bucket_bytes: Collection[int] = ()) -> DeviceBlocks:
    """Look at the allocator of a device."""
    if device.type != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return DeviceBlocks()
    segments = [segment for segment in _segments() if segment["device"] == device.index]
    private = _private(segments)
    in_use = [(address, block) for address, block in _blocks(segments) if block["state"] == "active_allocated"]
    # A bucket may be as large as a workspace, of which there are one or two.
    wanted = workspace_sizes(device).difference(bucket_bytes) if are_workspaces_kept() else set()
    requested_sizes = [(address, int(block.get("requested_size", 0))) for address, block in in_use]
    idle = (
        (address, address + int(block["size"])) for address, block in _blocks(private) if block["state"] == "inactive"
    )
    return DeviceBlocks(
        workspaces=tuple((address, size) for address, size in requested_sizes if size in wanted),
        buckets=tuple((address, size) for address, size in requested_sizes if size in bucket_bytes),
        idle=tuple(sorted(idle)),
        sizes={address: int(block["size"]) for address, block in in_use},
        segments=tuple(sorted((int(one["address"]), int(one["address"]) + int(one["total_size"])) for one in segments)),
    )


@dataclass(frozen=True, slots=True)
class PoolBytes:
    """Bytes of a private pool: reserved for it, and of that in blocks that torch counts as allocated."""

    reserved_bytes: int
    allocated_bytes: int


def used_in_private_pools(device_index: int) -> frozenset[int]:
    """Addresses of blocks of private pools of a CUDA device that are in use."""
    private = _private(segment for segment in _segments() if segment["device"] == device_index)
    return frozenset(address for address, block in _blocks(private) if block["state"] == "active_allocated")


def private_pool_bytes(device_index: int) -> int:
    """Bytes that are reserved for all private pools of a CUDA device, such as those of CUDA graphs."""
    private = _private(segment for segment in _segments() if segment["device"] == device_index)
    return sum(int(segment["total_size"]) for segment in private)


def pool_bytes(device_index: int, pools: Collection[tuple[int, int]]) -> dict[tuple[int, int], PoolBytes]:
    """Bytes of private pools of a CUDA device; one for which nothing is reserved is left out."""
    sums: dict[tuple[int, int], PoolBytes] = {}
    for segment in _segments():
        pool = tuple(segment.get("segment_pool_id", ()))
        if segment["device"] == device_index and pool in pools:
            before = sums.get(pool, PoolBytes(0, 0))
            sums[pool] = PoolBytes(
                before.reserved_bytes + int(segment["total_size"]),
                before.allocated_bytes + int(segment["allocated_size"]),
            )
    return sums


def _private(segments: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [segment for segment in segments if tuple(segment.get("segment_pool_id", _DEFAULT_POOL)) != _DEFAULT_POOL]


def _segments() -> Any:
    snapshot: Any = torch.cuda.memory_snapshot
    is_light = "include_traces" in inspect.signature(snapshot).parameters
    return snapshot(include_traces=False) if is_light else snapshot()


def _blocks(segments: Iterable[Mapping[str, Any]]) -> Iterator[_Block]:
    for segment in segments:
        address = int(segment["address"])
        for block in segment["blocks"]:
            yield address, block
            address += int(block["size"])


STILL_ASLEEP_NS: Final = 1 << 62
SLEEP_MODULE: Final = "vllm.device_allocator.cumem"
_CLASS: Final = "CuMemAllocator"
_ENDS_SLEEP: Final = "wake_up"
_CALLS: Final = ("sleep", "discard", _ENDS_SLEEP)


class AsleepPiece(NamedTuple):
    """A piece that was unmapped for some time."""

    device: int  # Number of the device
    address: int
    size_bytes: int
    asleep_ns: int  # When, on the profiler's clock
    awake_ns: int  # When it was mapped again; `STILL_ASLEEP_NS` where it was not


class AsleepMemory:
    """Notes which pieces are unmapped, and when."""

    def __init__(self) -> None:
        self._since_ns: dict[tuple[int, int, int], int] = {}  # By device, address and size
        self._pieces: list[AsleepPiece] = []

    @property
    def pieces(self) -> tuple[AsleepPiece, ...]:
        """Return the pieces so far, those that are still unmapped last."""
        now = [AsleepPiece(*place, since_ns, STILL_ASLEEP_NS) for place, since_ns in self._since_ns.items()]
        return (*self._pieces, *now)

    def note(self, unmapped: Iterable[tuple[int, int, int]]) -> None:
        """Note all that is unmapped now: device, address and size of each piece."""
        now_ns, found = time.time_ns(), set(unmapped)
        for place in self._since_ns.keys() - found:
            self._pieces.append(AsleepPiece(*place, self._since_ns.pop(place), now_ns))
        for place in found - self._since_ns.keys():
            self._since_ns[place] = now_ns


ASLEEP: Final = AsleepMemory()
"""This process's."""


def follow_sleep(module: Any) -> None:
    """Note what vLLM's allocator unmaps from now on.

    Args:
        module: `vllm.device_allocator.cumem`.
    """
    allocator = getattr(module, _CLASS, None)
    for name in _CALLS:
        if (original := getattr(allocator, name, None)) is not None:
            setattr(allocator, name, _noting(original, name))


def _noting(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def noted(allocator: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return original(allocator, *arguments, **options)
        finally:
            tags = next(iter((*arguments, *options.values())), None)
            ASLEEP.note(_unmapped(allocator, name, tags))

    return noted


def _unmapped(allocator: Any, called: str, tags: Any) -> list[tuple[int, int, int]]:
    """Return what is unmapped after a call; in earlier versions of vLLM no piece says so, and all of it sleeps."""
    found = []
    for data in allocator.pointer_to_data.values():
        device, size_bytes, address = data.handle[:3]
        is_awake = called == _ENDS_SLEEP and (tags is None or data.tag in tags)
        if getattr(data, "is_asleep", not is_awake):
            found.append((int(device), int(address), int(size_bytes)))
    return found
