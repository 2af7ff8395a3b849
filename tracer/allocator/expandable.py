"""Expandable segments: ranges of addresses behind which memory is put, and taken away, page by page."""

from __future__ import annotations

from tracer.allocator.blocks import FREE, UNMAPPED, Block, FreeBlocks, VirtualRange
from tracer.allocator.state import AllocatorState
from tracer.block_sizes import SMALL_SEGMENT_BYTES


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
    block = _united(block, FREE)
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
    block = _united(block, UNMAPPED)
    home.add_unmapped(block)
    allocator.driver.unmap(low, high - low)
    allocator.adjust_reserved(low - high, "segment_unmap", low, home)
    if not block.is_split:  # nothing of the range is left
        home.remove_unmapped(block)
        allocator.heads.pop(block.address, None)


def _united(block: Block, state: int) -> Block:
    """A block that is in no list, merged with its neighbours of this state, which are taken out of theirs."""
    take = block.home.remove if state == FREE else block.home.remove_unmapped
    before, after = block.previous, block.next
    if after is not None and after.state == state:
        take(after)
        block.merge_next()
    if before is not None and before.state == state:
        take(before)
        before.merge_next()
        block = before
    return block
