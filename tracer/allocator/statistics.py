"""The model's segments and blocks at some moment, as values to compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracer.allocator.blocks import FREE, UNMAPPED, Block, PoolId, State
from tracer.allocator.state import AllocatorState


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """A block at some moment; `life` is -1 for a free one."""

    address: int
    size: int
    requested: int
    state: State
    life: int


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment at some moment, or a mapped part of an expandable one.

    Attributes:
        pool: Its pool.
        stream: Its stream.
        is_small: Which half of the pool it is of.
        page: The bytes of a page, and where pages count from, for an expandable one.
        blocks: Its blocks by address.
    """

    pool: PoolId
    stream: int
    is_small: bool
    page: tuple[int, int] | None
    blocks: tuple[BlockInfo, ...]


Moment = tuple[SegmentInfo, ...]


def segments(allocator: AllocatorState) -> Iterator[list[Block]]:
    """The blocks of each segment, by address; of an expandable one, those of each contiguous mapped range."""
    for _, head in sorted(allocator.heads.items()):
        block: Block | None = head
        mapped: list[Block] = []
        while block is not None:
            if block.state is not UNMAPPED:
                mapped.append(block)
            elif mapped:
                yield mapped
                mapped = []
            block = block.next
        if mapped:
            yield mapped


def moment(allocator: AllocatorState) -> Moment:
    """What all blocks are now, by address."""
    return tuple(_segment_at_moment(blocks) for blocks in segments(allocator))


def _segment_at_moment(blocks: Sequence[Block]) -> SegmentInfo:
    first = blocks[0]
    return SegmentInfo(
        pool=first.home.pool.owner,
        stream=first.home.stream,
        is_small=first.home.pool.is_small,
        page=None if first.range is None else (first.range.page, first.range.base),
        blocks=tuple(
            BlockInfo(b.address, b.size, b.requested, b.state, -1 if b.state is FREE else b.label) for b in blocks
        ),
    )
