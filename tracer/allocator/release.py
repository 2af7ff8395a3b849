"""Memory that the allocator releases to the driver: everything cached, only what is needed, or what has grown old."""

from __future__ import annotations

from tracer.allocator import expandable
from tracer.allocator.blocks import Block, BlockPool, FreeBlocks
from tracer.allocator.state import AllocatorState


def release_cached(allocator: AllocatorState, *, default_pool: bool = True) -> None:
    """Release all that is not in use: the large pool, the small one, then private pools that nobody uses any more.

    What other streams work with is waited for first.

    Args:
        allocator: The allocator that releases.
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

    Args:
        allocator: The allocator that releases.
        size: Rounded bytes of the request.
        home: The list that the request is for.

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
