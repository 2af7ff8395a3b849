"""Memory from the driver for what no free block serves; where there is none, what has to be given back first."""

from __future__ import annotations

from tracer.allocator import expandable, release
from tracer.allocator.blocks import DEFAULT_POOL, Block, FreeBlocks
from tracer.allocator.sizes import segment_size
from tracer.allocator.state import AllocatorState


class OutOfMemoryError(Exception):
    """The driver has no memory left, and releasing what was cached did not help.

    Attributes:
        size: The rounded request.
        segment_size: What would have had to be reserved for it.
        reserved: What is reserved all the same.
        allocated: What of that is in use.
    """

    def __init__(self, size: int, segment_size: int, reserved: int, allocated: int) -> None:
        super().__init__(f"{size} bytes are out of reach: {reserved} are reserved, {allocated} of them allocated.")
        self.size, self.segment_size, self.reserved, self.allocated = size, segment_size, reserved, allocated


def new_block(allocator: AllocatorState, size: int, home: FreeBlocks) -> Block:
    """Reserve more; where the driver has none, release what is cached, first little and then all.

    Args:
        allocator: What there is; its counts of retries and failures are kept.
        size: Bytes, rounded already.
        home: The free blocks of the pool and the stream that ask.

    Returns:
        A block that is in no list and large enough.

    Raises:
        OutOfMemoryError: All of that did not help.

    Source:
        `malloc`, from "Attempt allocate" on.
    """
    if allocator.collects_garbage:
        release.collect_garbage(allocator)
    block = _reserve(allocator, size, home) or _from_pools(allocator, size, home)
    if block is None and release.release_available(allocator, size, home):
        block = _reserve(allocator, size, home)
    if block is None and not allocator.is_capturing:
        release.release_cached(allocator)
        allocator.num_retries += 1
        block = _reserve(allocator, size, home)
    if block is None:
        allocator.num_ooms += 1
        segment_bytes = segment_size(size, allocator.settings.large_segment_size)
        raise OutOfMemoryError(size, segment_bytes, allocator.reserved_bytes, allocator.allocated_bytes)
    return block


def _reserve(allocator: AllocatorState, size: int, home: FreeBlocks) -> Block | None:
    """A new segment, or more pages of an expandable one (`alloc_block`)."""
    segment_bytes = segment_size(size, allocator.settings.large_segment_size)
    # Even where only pages are mapped, the limit is held against a whole segment.
    if allocator.memory_limit is not None and allocator.reserved_bytes + segment_bytes > allocator.memory_limit:
        return None
    if home.pool.is_expandable:
        return expandable.expand(allocator, size, home)
    address = allocator.driver.reserve(segment_bytes, home.stream, home.pool.owner)
    if address is None:
        return None
    block = Block(allocator.next_counter() | address, segment_bytes, home)
    allocator.heads[address] = block
    allocator.adjust_reserved(segment_bytes, "segment_alloc", address, home)
    return block


def _from_pools(allocator: AllocatorState, size: int, home: FreeBlocks) -> Block | None:
    """A free block of a private pool that helps out (`try_mempool_fallback`)."""
    if home.pool.owner != DEFAULT_POOL:
        return None
    for pool in list(allocator.private_pools.values()):
        if pool.use_on_oom:
            block = allocator.cached_block(size, allocator.home(home.pool.is_small, home.stream, pool.owner))
            if block is not None:
                return block
    return None
