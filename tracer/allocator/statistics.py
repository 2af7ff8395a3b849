"""Segments and blocks at some moment, as values to compare: the model's, and those that a snapshot shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.allocator.blocks import FREE, PENDING, UNMAPPED, USED, Block, PoolId, State
from tracer.allocator.history import segment_of
from tracer.allocator.state import AllocatorState
from tracer.block_sizes import SMALL_SEGMENT_BYTES
from tracer.snapshot.actions import BlockState
from tracer.snapshot.columns import DeviceState


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """A block at some moment."""

    address: int
    size: int
    requested: int
    state: State


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment at some moment, or a mapped part of an expandable one."""

    pool: PoolId
    stream: int
    is_small: bool  # Which half of the pool it is of
    page: tuple[int, int] | None  # The bytes of a page, and where pages count from, for an expandable one
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
    """Return the state of every block now, by address."""
    return tuple(_segment_at_moment(blocks) for blocks in segments(allocator))


def _segment_at_moment(blocks: Sequence[Block]) -> SegmentInfo:
    first = blocks[0]
    return SegmentInfo(
        pool=first.home.pool.owner,
        stream=first.home.stream,
        is_small=first.home.pool.is_small,
        page=None if first.range is None else (first.range.page, first.range.base),
        blocks=tuple(BlockInfo(b.address, b.size, b.requested, b.state) for b in blocks),
    )


_STATES = {
    int(BlockState.INACTIVE): FREE,
    int(BlockState.ACTIVE_ALLOCATED): USED,
    int(BlockState.ACTIVE_PENDING_FREE): PENDING,
}


def read_end(state: DeviceState, pools: Sequence[PoolId], *, page: int | None = None) -> Moment:
    """Memory that was reserved when the snapshot was taken.

    Args:
        pools: The pool of each segment [segments].
        page: Page of large expandable segments, to say where pages begin: at the lowest that is mapped.
    """
    segments = state.segments
    rows = np.argsort(segments.address, kind="stable").tolist()
    blocks = _blocks_by_segment(state)
    columns = (segments.stream, segments.is_small, segments.is_expandable, segments.address)
    stream, is_small, is_expandable, address = (column.tolist() for column in columns)
    base: dict[tuple[PoolId, int, bool], int] = {}
    infos = []
    for row in rows:
        home = (pools[row], stream[row], is_small[row])
        pages = None
        if is_expandable[row] and page is not None:
            pages = (SMALL_SEGMENT_BYTES if is_small[row] else page, base.setdefault(home, address[row]))
        infos.append(SegmentInfo(*home, pages, tuple(blocks.get(row, ()))))
    return tuple(infos)


def _blocks_by_segment(state: DeviceState) -> dict[int, list[BlockInfo]]:
    blocks = state.blocks
    order = np.argsort(blocks.address, kind="stable")
    requested = np.where(blocks.is_live, blocks.requested_size, 0)
    columns = (blocks.address, blocks.size, requested, blocks.state, segment_of(state, blocks.address))
    by_segment: dict[int, list[BlockInfo]] = {}
    for address, size, requested_bytes, code, segment in zip(
        *(column[order].tolist() for column in columns), strict=True
    ):
        by_segment.setdefault(segment, []).append(BlockInfo(address, size, requested_bytes, _STATES[code]))
    return by_segment
