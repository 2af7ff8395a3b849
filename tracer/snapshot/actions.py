"""The words of the allocator, as the small numbers that the columns store."""

from __future__ import annotations

from enum import IntEnum


class Action(IntEnum):
    """The action of a trace entry; `UNKNOWN` is any word that this version does not know.

    Source: `torch/csrc/cuda/memory_snapshot.cpp`; `segment_map` and `segment_unmap` belong to expandable segments.
    """

    UNKNOWN = 0
    ALLOC = 1
    FREE_REQUESTED = 2
    FREE_COMPLETED = 3
    SEGMENT_ALLOC = 4
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    SEGMENT_UNMAP = 7
    OOM = 8
    SNAPSHOT = 9
    ANNOTATE = 10  # A note on a live block, by torch's `_annotate_tensor` (2.14 on); it changes nothing


class BlockState(IntEnum):
    """The state of a block when the snapshot was taken."""

    INACTIVE = 0
    ACTIVE_ALLOCATED = 1
    ACTIVE_PENDING_FREE = 2


ACTION_CODES = {action.name.lower(): int(action) for action in Action if action is not Action.UNKNOWN}

# torch writes `active_pending_free`; its documentation says `active_awaiting_free`.
STATE_CODES = {
    "inactive": int(BlockState.INACTIVE),
    "active_allocated": int(BlockState.ACTIVE_ALLOCATED),
    "active_pending_free": int(BlockState.ACTIVE_PENDING_FREE),
    "active_awaiting_free": int(BlockState.ACTIVE_PENDING_FREE),
}
