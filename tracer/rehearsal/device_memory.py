"""What a rehearsal needs of a device: its allocations in order, through the model of the caching allocator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.allocator.blocks import Block
from tracer.allocator.caching_allocator import CachingAllocator
from tracer.allocator.driver import PackingDriver
from tracer.allocator.reserving import OutOfMemoryError
from tracer.allocator.settings import AllocatorSettings
from tracer.arrays import Bool, Int, PerAllocation


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
        requests: DeviceRequests in order.
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
