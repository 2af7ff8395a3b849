"""Blocks of a long recording, few enough to be sent along, and exact at the moments that were chosen.

A moment is a row of a timeline: the state after an event. Of a long timeline only some rows are kept, and what lived
and died between two of them is seen at none. Large blocks stay one by one. Of small ones stays, for each group, by how
much it changed from one kept row to the next: at every kept row the bytes and counts of each group are those of its
blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.arrays import Int, Ints, PerBlock, Rows


@dataclass(frozen=True, slots=True, eq=False)
class KeptBlocks:
    """What is known of a recording's blocks at its kept rows.

    Positions are indices into the kept rows; a block is in use at those with `first <= position < last`.
    """

    block: Rows  # Blocks that stay one by one, by their first position
    first: Ints  # The first kept row at which each is in use
    last: Ints  # The first kept row at which it no longer is; the number of kept rows if it is in use at the last one
    smaller_than_bytes: int  # Blocks below this size are grouped; 0 if none is
    change_group: Ints  # Group of each change, by position
    change_at: Ints  # Position at which the change is first seen
    change_bytes: Ints  # By how much the group's small blocks grew
    change_count: Ints  # By how many they became more


def keep_blocks(
    kept_rows: Rows,
    *,
    made_at: PerBlock[Int],
    freed_at: PerBlock[Int],
    size_bytes: PerBlock[Int],
    group: PerBlock[Int],
    most_blocks: int,
) -> KeptBlocks:
    """Reduce blocks to what is seen at the kept rows.

    Args:
        kept_rows: Rows of the timeline, ascending.
        made_at: [B] First row at which each block is in use; negative if it was there before.
        freed_at: [B] First row at which it no longer is.
        size_bytes: [B]
        group: [B] A number that small blocks are put together by.
        most_blocks: How many may stay one by one; the limit of size is the least power of two that achieves it.
    """
    first = np.searchsorted(kept_rows, made_at, side="left")
    last = np.searchsorted(kept_rows, freed_at, side="left")
    seen = np.flatnonzero(first < last)
    limit = _limit(size_bytes[seen], most_blocks)
    large = seen[size_bytes[seen] >= limit]
    large = large[np.argsort(first[large], kind="stable")]
    small = seen[size_bytes[seen] < limit]
    changes = _changes(group[small], first[small], last[small], size_bytes[small], len(kept_rows))
    return KeptBlocks(large, first[large], last[large], limit, *changes)


def _limit(size_bytes: Ints, most_blocks: int) -> int:
    """The least power of two that at most so many sizes reach; 0 if they are not more."""
    if len(size_bytes) <= most_blocks:
        return 0
    # Of those that would be too many the largest: the limit lies above it.
    largest = int(np.partition(size_bytes, len(size_bytes) - most_blocks - 1)[len(size_bytes) - most_blocks - 1])
    return 1 << largest.bit_length()


def _changes(group: Ints, first: Ints, last: Ints, size_bytes: Ints, num_rows: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Group, position, bytes and count of each change, by position; what cancels out is no change."""
    ends = last < num_rows
    key = np.concatenate([first, last[ends]]) * (int(group.max(initial=0)) + 1)
    key += np.concatenate([group, group[ends]])
    distinct, index = np.unique(key, return_inverse=True)
    grown, more = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
    np.add.at(grown, index, np.concatenate([size_bytes, -size_bytes[ends]]))
    np.add.at(more, index, np.concatenate([np.ones(len(first), np.int64), -np.ones(int(ends.sum()), np.int64)]))
    is_change = (grown != 0) | (more != 0)
    at, of_group = np.divmod(distinct[is_change], int(group.max(initial=0)) + 1)
    return of_group, at, grown[is_change], more[is_change]
