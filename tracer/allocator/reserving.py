"""Memory from the driver for what no free block serves, and cached memory that is released to the driver.

An expandable segment is a range of addresses behind which memory is put, and taken away, page by page.
"""

from __future__ import annotations

from tracer.allocator.blocks import FREE, UNMAPPED, Block, BlockPool, FreeBlocks, VirtualRange, united
from tracer.allocator.state import AllocatorState
from tracer.block_sizes import SMALL_SEGMENT_BYTES, segment_size


def expand(allocator: AllocatorState, size: int, home: FreeBlocks) -> Block | None:
    """Map pages until a block is large enough, and take it out of its list.

    What was mapped before the driver ran out stays mapped, as a free block.

    Source:
        `try_allocate_expandable_block`.
    """
    block = _candidate(allocator, size, home)
    if block.state is UNMAPPED:
        mapped = _map(allocator, block, min(block.size, size))
        if mapped is None:
            return None
        block = mapped
    while block.size < size:
        beyond = block.next
        assert beyond is not None
        mapped = _map(allocator, beyond, min(size - block.size, beyond.size))
        if mapped is None:
            return None
        block = mapped
    home.remove(block)
    return block


def _candidate(allocator: AllocatorState, size: int, home: FreeBlocks) -> Block:
    """The lowest place where a request fits if pages are mapped, or a new range (`find_expandable_block`)."""
    for block in home.unmapped_blocks:
        before = block.previous
        start = before if before is not None and before.state is FREE else block
        if _has_room(start, size):
            return start
    pool = home.pool
    page = SMALL_SEGMENT_BYTES if pool.is_small else allocator.settings.large_segment_size
    length = -(-max(allocator.address_space, size) // page) * page
    base = allocator.driver.reserve_range(length, home.stream, pool.owner)
    return new_range(allocator, VirtualRange(base, length, page), home)


def new_range(allocator: AllocatorState, range_: VirtualRange, home: FreeBlocks) -> Block:
    """Begin an expandable segment that has no memory yet."""
    block = Block(allocator.next_counter() | range_.base, range_.size, home, range_)
    allocator.heads[range_.base] = block
    home.add_unmapped(block)
    return block


def _has_room(block: Block | None, size: int) -> bool:
    room = 0
    while room < size and block is not None and block.state in (FREE, UNMAPPED):
        room += block.size
        block = block.next
    return room >= size


def _map(allocator: AllocatorState, block: Block, size: int) -> Block | None:
    """Map the first pages of an unmapped block; returns the free block that they are part of now."""
    assert block.range is not None
    home, page, address = block.home, block.range.page, block.address
    length = -(-size // page) * page
    if not allocator.driver.map(address, length):
        return None
    home.remove_unmapped(block)
    if length < block.size:
        home.add_unmapped(block.cut(length))
    block = united(block, FREE)
    home.add(block)
    allocator.adjust_reserved(length, "segment_map", address, home)
    return block


def unmap(allocator: AllocatorState, block: Block) -> None:
    """Give back the whole pages inside a free block; what it has of pages at its edges stays.

    Source:
        `unmap_block`; pages count from the base of the range.
    """
    assert block.range is not None
    home, base, page = block.home, block.range.base, block.range.page
    low = base - (block.address - base) // -page * page
    high = base + (block.end - base) // page * page
    if high <= low:
        return
    home.remove(block)
    if low > block.address:
        front = block
        block = front.cut(low - front.address)
        home.add(front)
    if block.end > high:
        home.add(block.cut(high - block.address))
    block = united(block, UNMAPPED)
    home.add_unmapped(block)
    allocator.driver.unmap(low, high - low)
    allocator.adjust_reserved(low - high, "segment_unmap", low, home)
    if not block.is_split:  # nothing of the range is left
        home.remove_unmapped(block)
        allocator.heads.pop(block.address, None)


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
        return expand(allocator, size, home)
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
            unmap(allocator, block)


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
