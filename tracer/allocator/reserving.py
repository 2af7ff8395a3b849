"""Memory from the driver for what no free block serves, and cached memory that is released to the driver."""

from __future__ import annotations

from tracer.allocator import expandable
from tracer.allocator.blocks import Block, BlockPool, FreeBlocks
from tracer.allocator.state import AllocatorState
from tracer.block_sizes import segment_size


class OutOfMemoryError(Exception):
    """The driver has no memory left, and releasing what was cached did not help.

    Attributes:
        size: The rounded request.
        segment_size: What would have had to be reserved for it.
    """

    def __init__(self, size: int, segment_size: int, reserved: int, allocated: int) -> None:
        super().__init__(f"{size} bytes are out of reach: {reserved} are reserved, {allocated} of them allocated.")
        self.size, self.segment_size, self.reserved, self.allocated = size, segment_size, reserved, allocated


def new_block(allocator: AllocatorState, size: int, home: FreeBlocks) -> Block:
    """Reserve more; where the driver has none, release what is cached, first little and then all.

    Args:
        size: Bytes, rounded already.

    Returns:
        A block that is in no list and large enough.

    Raises:
        OutOfMemoryError: All of that did not help.

    Source:
        `malloc`, from "Attempt allocate" on.
    """
    if allocator.collects_garbage:
        collect_garbage(allocator)
    block = _reserve(allocator, size, home)
    if block is None and release_available(allocator, size, home):
        block = _reserve(allocator, size, home)
    if block is None and not allocator.is_capturing:
        release_cached(allocator)
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


def release_cached(allocator: AllocatorState, *, default_pool: bool = True) -> None:
    """Release all that is not in use: the large pool, the small one, then private pools that nobody uses any more.

    Blocks that other streams still use are waited for first.

    Args:
        default_pool: Whether the default pools' blocks go too, and not only those of unused private pools.

    Source:
        `release_cached_blocks`.
    """
    if default_pool:
        allocator.synchronize()
        _release_blocks(allocator, allocator.large)
        _release_blocks(allocator, allocator.small)
    for pool in list(allocator.private_pools.values()):
        if not pool.users:
            _release_blocks(allocator, pool.small)
            _release_blocks(allocator, pool.large)


def _release_blocks(allocator: AllocatorState, pool: BlockPool) -> None:
    """Plain segments first; expandable ones of the same pool are unmapped afterwards."""
    free = pool.in_order()
    for block in free:
        if block.range is None and not block.is_split:
            release_segment(allocator, block)
    for block in free:
        if block.range is not None:
            expandable.unmap(allocator, block)


def release_segment(allocator: AllocatorState, block: Block) -> None:
    """Give one plain segment back, of which this free block is all."""
    block.home.remove(block)
    allocator.heads.pop(block.address, None)
    allocator.driver.release(block.address, block.size)
    allocator.adjust_reserved(-block.size, "segment_free", block.address, block.home)


def release_available(allocator: AllocatorState, size: int, home: FreeBlocks) -> bool:
    """Under `max_split_size`, release oversize blocks, as few as make room for a request.

    Returns:
        Whether so much was released that trying again makes sense.

    Source:
        `release_available_cached_blocks`.
    """
    limit = allocator.settings.max_split_size
    if limit is None:
        return False
    wanted = max(size, limit)
    at = home.first_fit(wanted)
    if at < len(home.blocks) and home.blocks[at].range is None:
        release_segment(allocator, home.blocks[at])
        return True
    released = 0
    for block in home.blocks[:at][::-1]:
        if released >= wanted or block.size < limit:
            break
        if block.range is None:
            released += block.size
            release_segment(allocator, block)
    return released >= wanted


def collect_garbage(allocator: AllocatorState) -> None:
    """Above the threshold, release whole segments of the large pool that were not used for longer than the average.

    Source:
        `garbage_collect_cached_blocks`.
    """
    assert allocator.memory_limit is not None
    threshold = int(allocator.settings.garbage_collection_threshold * allocator.memory_limit)
    excess = allocator.reserved_bytes - threshold
    while excess > 0:
        old = oldest_segments(allocator)
        if not old:
            return
        for block in old:
            excess -= block.size
            release_segment(allocator, block)


def oldest_segments(allocator: AllocatorState) -> list[Block]:
    """The cached segments of at least average age, counted in searches since they were cached."""
    pool = allocator.large
    whole = [block for block in pool.in_order() if block.range is None and not block.is_split]
    total = sum(pool.searches - block.made_at for block in whole)
    return [block for block in whole if (pool.searches - block.made_at) * len(whole) >= total]
