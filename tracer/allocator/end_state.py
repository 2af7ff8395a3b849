"""The segments and blocks that a snapshot shows, in the model's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tracer.allocator.blocks import FREE, PENDING, USED, PoolId
from tracer.allocator.history import segment_of
from tracer.allocator.sizes import SMALL_SEGMENT_BYTES
from tracer.allocator.statistics import BlockInfo, Moment, SegmentInfo
from tracer.snapshot.actions import BlockState
from tracer.snapshot.columns import DeviceState

_STATES = {
    int(BlockState.INACTIVE): FREE,
    int(BlockState.ACTIVE_ALLOCATED): USED,
    int(BlockState.ACTIVE_PENDING_FREE): PENDING,
}


def read_end(
    state: DeviceState,
    pools: Sequence[PoolId],
    *,
    page: int | None = None,
    life_at: Mapping[int, int] | None = None,
) -> Moment:
    """What was reserved when the snapshot was taken.

    Args:
        state: The device.
        pools: The pool of each segment [segments].
        page: Page of large expandable segments, to say where pages begin: at the lowest that is mapped.
        life_at: Lives by address, to say whose the blocks are.
    """
    segments = state.segments
    rows = np.argsort(segments.address, kind="stable").tolist()
    blocks = _blocks_by_segment(state, life_at or {})
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


def _blocks_by_segment(state: DeviceState, life_at: Mapping[int, int]) -> dict[int, list[BlockInfo]]:
    blocks = state.blocks
    order = np.argsort(blocks.address, kind="stable")
    requested = np.where(blocks.is_live, blocks.requested_size, 0)
    columns = (blocks.address, blocks.size, requested, blocks.state, segment_of(state, blocks.address))
    by_segment: dict[int, list[BlockInfo]] = {}
    for address, size, requested_bytes, code, segment in zip(
        *(column[order].tolist() for column in columns), strict=True
    ):
        known = _STATES[code]
        life = -1 if known is FREE else life_at.get(address, -1)
        by_segment.setdefault(segment, []).append(BlockInfo(address, size, requested_bytes, known, life))
    return by_segment
