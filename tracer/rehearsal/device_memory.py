"""What a rehearsal needs of a device: its requests, through the model of the allocator, and how far that may be off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.allocator.blocks import Block
from tracer.allocator.caching_allocator import CachingAllocator
from tracer.allocator.driver import PackingDriver
from tracer.allocator.reserving import OutOfMemoryError
from tracer.allocator.settings import AllocatorSettings
from tracer.arrays import Bool, Int, PerAllocation
from tracer.units import MIB


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRequests:
    """All that a rehearsal asked of the device's allocator, from the first parameter on, in order [requests]."""

    storage: PerAllocation[Int]  # A number for each storage; the free carries the same
    size_bytes: PerAllocation[Int]  # Bytes as requested; negative for a free
    op: PerAllocation[Int]  # Row in `Rehearsal.whole.ops` of the operator that asked, or -1
    step: PerAllocation[Int]  # The step in which it was, from 0; -1 before the first
    # What a library may take behind this row and give back at once, such as a convolution's workspace; 0 for nothing.
    # No part of `size_bytes`.
    undecided_bytes: PerAllocation[Int]
    in_backward: PerAllocation[Bool]  # Whether that is in a backward pass


@dataclass(frozen=True, slots=True)
class UnservedRequest:
    """The first request that a device had no memory for."""

    request: int  # Row in `DeviceRequests`
    size_bytes: int  # The rounded request
    reserved_bytes: int  # What was reserved then
    allocated_bytes: int  # What of that was in use


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """The allocator's decisions on the requests. Columns [requests], up to the one that failed."""

    peak_allocated_bytes: int  # The most in use, rounded as the allocator does: `max_memory_allocated`
    peak_requested_bytes: int  # The most in use, as asked for
    peak_reserved_bytes: int  # The most taken from the driver: `max_memory_reserved`
    num_segments: int  # Segments at the end
    num_retries: int  # How often the cache was emptied for a request
    address: PerAllocation[Int]  # Address of every request
    size_bytes: PerAllocation[Int]  # The block's, negative for a free
    allocated_bytes: PerAllocation[Int]  # Bytes in use after each request
    reserved_bytes: PerAllocation[Int]  # Reserved after each request
    failure: UnservedRequest | None  # The first request that could not be served; None if all could


def serve(
    requests: DeviceRequests, settings: AllocatorSettings | None = None, *, capacity_bytes: int | None = None
) -> DeviceMemory:
    """Ask an allocator with nothing cached for all of it.

    Args:
        settings: The allocator's; by default torch's.
        capacity_bytes: What it can reserve; None for no limit.
    """
    allocator = CachingAllocator(settings, driver=PackingDriver(capacity_bytes), device_bytes=capacity_bytes)
    blocks: dict[int, Block] = {}
    rows = np.zeros((4, len(requests.storage)), np.int64)
    address, size, allocated, reserved = rows
    failure, number = None, -1
    for number, (storage, requested) in enumerate(
        zip(requests.storage.tolist(), requests.size_bytes.tolist(), strict=True)
    ):
        if requested > 0:
            try:
                block = blocks[storage] = allocator.allocate(requested)
            except OutOfMemoryError as error:
                failure = UnservedRequest(number, error.size, error.reserved, error.allocated)
                rows = rows[:, :number]
                break
            address[number], size[number] = block.address, block.size
        else:
            block = blocks.pop(storage)
            address[number], size[number] = block.address, -block.size
            allocator.free(block)
        allocated[number], reserved[number] = allocator.allocated_bytes, allocator.reserved_bytes
    address, size, allocated, reserved = rows
    return DeviceMemory(
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_requested_bytes=allocator.peak_requested_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        num_segments=len(allocator.heads),
        num_retries=allocator.num_retries,
        address=address,
        size_bytes=size,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        failure=failure,
    )


_LARGE_BYTES = MIB  # smaller requests have a pool of their own, whose segments are of 2 MiB


@dataclass(frozen=True, slots=True)
class Spread:
    """Lowest and highest of several answers."""

    low_bytes: int  # Least bytes that are reserved
    high_bytes: int  # Most bytes that are reserved


def reserved_spread(
    requests: DeviceRequests,
    memory: DeviceMemory,
    settings: AllocatorSettings | None = None,
    *,
    capacity_bytes: int | None = None,
) -> Spread:
    """The range of peak reserved memory if single allocations were others than rehearsed.

    High: every operator that makes something large also takes as much for its own use, and gives it back; or every
    convolution, or those of backward passes alone, takes a workspace for copies in another layout, as many of cuDNN's
    engines do and as nobody knows of a version that cannot be asked. Low: what fills the device at its peak is packed
    without gaps, or with the gaps that expandable segments leave.
    """
    more = [_with_scratch(requests)]
    if requests.undecided_bytes.any():
        more += [_with_workspaces(requests, only_backward=variant) for variant in (False, True)]
    expandable = serve(requests, AllocatorSettings(expandable_segments=True))
    answers = [memory.peak_reserved_bytes, expandable.peak_reserved_bytes]
    high = max(*answers, *(serve(variant, settings).peak_reserved_bytes for variant in more))
    limit = capacity_bytes if capacity_bytes is not None else high
    return Spread(low_bytes=min(*answers, limit), high_bytes=max(memory.peak_reserved_bytes, min(high, limit)))


def _with_scratch(requests: DeviceRequests) -> DeviceRequests:
    """The same with a second, short-lived allocation beside every large one that an operator makes."""
    is_large = (requests.size_bytes >= _LARGE_BYTES) & (requests.op >= 0)
    return _with_more(requests, np.where(is_large, requests.size_bytes, 0))


def _with_workspaces(requests: DeviceRequests, *, only_backward: bool) -> DeviceRequests:
    """The same with all that libraries may take for themselves."""
    taken = requests.in_backward if only_backward else np.ones(len(requests.op), bool)
    return _with_more(requests, np.where(taken, requests.undecided_bytes, 0))


def _with_more(requests: DeviceRequests, more_bytes: PerAllocation[Int]) -> DeviceRequests:
    """The same with an allocation behind each row, of so many bytes, that is freed at once; 0 for none."""
    repeat = np.where(more_bytes > 0, 3, 1)
    rows = np.repeat(np.arange(len(requests.storage)), repeat)
    first = np.cumsum(repeat) - repeat
    nth = np.arange(len(rows)) - first[rows]
    new = requests.storage.max(initial=0) + 1 + rows
    sign = np.where(nth == 2, -1, 1)
    return DeviceRequests(
        storage=np.where(nth == 0, requests.storage[rows], new),
        size_bytes=np.where(nth == 0, requests.size_bytes[rows], sign * more_bytes[rows]),
        op=requests.op[rows],
        step=requests.step[rows],
        undecided_bytes=np.zeros(len(rows), np.int64),
        in_backward=requests.in_backward[rows],
    )
