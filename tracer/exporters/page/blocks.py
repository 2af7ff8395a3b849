"""The blocks of a page as columns of numbers that are small when packed, and few enough to be sent along.

A moment is a row of the timeline: the state after an event. Of a long timeline only some rows are kept, and what lived
and died between two of them is seen at none. Large blocks stay one by one. Of small ones stays, for each group, by how
much it changed from one kept row to the next: at every kept row the bytes and counts of each group are those of its
blocks. Reserved ranges stand under the names of their streams and pools.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

import numpy as np

from tracer.arrays import Int, Ints, PerBlock, Rows
from tracer.exporters.page.model import Page, PageSpace

if TYPE_CHECKING:
    from tracer.allocator.fragmentation import AddressRanges
    from tracer.answers.rows import Row

MOST_BLOCKS: Final = 120_000  # Shown one by one; smaller ones are grouped
MAX_STACK_FRAMES: Final = 40
_MAX_STACKS: Final = 1000
_PYTHON_FRAME = re.compile(r" \([^()]*:\d+\)$")
# Fields of `Row` that are texts, then those that are lines; `data.js` has the same list.
TEXT_FIELDS: Final = (
    "category",
    "torch_category",
    "evidence",
    "phase",
    "module",
    "op",
    "function",
    "file",
    "name",
    "caller_file",
    "dtype",
    "shape",
)
_LINE_FIELDS: Final = ("line", "caller_line")


def blocks_json(page: Page, kept_rows: Rows, *, most_blocks: int = MOST_BLOCKS) -> dict[str, Any]:
    """The blocks at the kept rows of the timeline; positions are indices into the kept rows.

    Returns:
        Packed tables. The columns of `groups` are numbers of `texts`, one more than the number, and 0 for none; lines
        are lines. Those of `blocks` are the first position, how many positions, bytes and group of each block. Those of
        `changes` are position, group, bytes and count: by how much the blocks smaller than `smaller_than` of a group
        changed. Those of `places` are the address of each block and, where they are not its bytes, its rounded bytes.
    """
    blocks, group = page.blocks, page.group
    assert blocks is not None and group is not None
    kept = keep_blocks(
        kept_rows,
        made_at=blocks.made_at + page.first_row,
        freed_at=blocks.freed_at + page.first_row,
        size_bytes=blocks.size_bytes,
        group=group,
        most_blocks=most_blocks,
    )
    # Groups that are seen, by number.
    used = np.union1d(group[kept.block], kept.change_group)
    groups = [page.groups[number] for number in used.tolist()]
    texts, columns = _groups(groups)
    large = np.searchsorted(used, group[kept.block])
    order = np.lexsort((large, kept.first))
    rows = kept.block[order]
    # A recording has sizes as allocated, a snapshot as requested.
    rounded = [blocks.allocated_bytes[rows]] if page.source == "snapshot" else []
    return {
        "texts": texts,
        "groups": packed(columns),
        "blocks": packed([kept.first[order], (kept.last - kept.first)[order], blocks.size_bytes[rows], large[order]]),
        "changes": packed(
            [kept.change_at, np.searchsorted(used, kept.change_group), kept.change_bytes, kept.change_count]
        ),
        "places": packed([blocks.address[rows], *rounded]) if page.has_addresses else None,
        "smaller_than": kept.smaller_than_bytes,
        "stacks": stacks_json(
            [one.stack or () for one in groups] if any(one.stack is not None for one in groups) else []
        ),
    }


def space_json(page: Page, kept_rows: Rows) -> dict[str, Any] | None:
    """The reserved ranges that are seen at the kept rows of the timeline.

    Returns:
        `ranges` with the columns first position, how many positions, address, bytes, home, expandable or not; before
        the position `known_from` they are not known. None where nothing is known of what was reserved.
    """
    space = page.space
    if space is None:
        return None
    ranges = space.ranges
    first, last, known_from = (
        np.searchsorted(kept_rows, entries + page.first_row, side="left")
        for entries in (ranges.begin, ranges.end, np.array(ranges.known_from))
    )
    seen = np.flatnonzero(first < last)
    is_expandable = ranges.is_expandable.astype(np.int64)
    columns = (first, last - first, ranges.address, ranges.size_bytes, space.home, is_expandable)
    return {
        "homes": space.homes,
        "ranges": packed([column[seen] for column in columns]),
        "known_from": int(known_from),
    }


def _groups(groups: Sequence[Row]) -> tuple[list[str], list[Ints]]:
    """The distinct texts of the groups, and a column of numbers for each field."""
    number: dict[str, int] = {}

    def numbers(values: Iterable[str | None]) -> Ints:
        """Number of each text, counted from 1; 0 for none."""
        return np.array([0 if text is None else number.setdefault(text, len(number)) + 1 for text in values], np.int64)

    columns = [numbers(_text(getattr(group, name)) for group in groups) for name in TEXT_FIELDS]
    columns += [np.array([getattr(group, name) or 0 for group in groups], np.int64) for name in _LINE_FIELDS]
    return list(number), columns


def _text(value: str | tuple[int, ...] | None) -> str | None:
    return (" x ".join(map(str, value)) or "scalar") if isinstance(value, tuple) else value


def stacks_json(stacks: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Each frame once, and for each row the numbers of its frames: Python's first, then the others."""
    number: dict[str, int] = {}
    shown = stacks[:_MAX_STACKS]
    rows = [[number.setdefault(frame, len(number)) for frame in stack[:MAX_STACK_FRAMES]] for stack in shown]
    return {
        "frames": list(number),
        "python": [int(bool(_PYTHON_FRAME.search(frame))) for frame in number],
        "rows": rows,
        "cut": [max(len(stack) - MAX_STACK_FRAMES, 0) for stack in shown],
    }


def page_space(ranges: AddressRanges, text: Callable[[int], str]) -> PageSpace:
    """Reserved ranges by stream and pool."""
    columns = np.stack([ranges.stream, ranges.pool, ~ranges.is_small | ranges.is_expandable], axis=1)
    homes, home = np.unique(columns, axis=0, return_inverse=True)
    names = []
    for stream, pool, is_large in homes.tolist():
        private = f", private pool {text(pool)}" if pool >= 0 else ""
        names.append(f"stream {stream}{private}{'' if is_large else ', segments for small blocks'}")
    return PageSpace(tuple(names), home.reshape(-1), ranges)


@dataclass(frozen=True, slots=True, eq=False)
class KeptBlocks:
    """Facts of a recording's blocks at its kept rows.

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
        made_at: [B] First row at which each block is in use; negative if it was there before.
        freed_at: [B] First row at which it no longer is.
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


class Packed(TypedDict):
    """A table of integers as text; `total` is the number of rows that it was reduced from."""

    total: int
    rows: int
    columns: int
    packed: str


def packed(columns: Sequence[Ints], *, total: int | None = None) -> Packed:
    """A table of columns in packed form."""
    rows = len(columns[0]) if columns else 0
    return {
        "total": rows if total is None else total,
        "rows": rows,
        "columns": len(columns),
        "packed": pack(columns),
    }


def pack(columns: Iterable[Ints]) -> str:
    """Columns of one length as text. All values below 2**53, which JavaScript counts exactly.

    The columns' differences, as little-endian int64, sorted by the significance of their bytes, deflated, in base64.
    Most differences are 0, so a row costs a few bytes.
    """
    deltas = np.array([np.diff(column, prepend=0) for column in columns], "<i8")
    planes = deltas.reshape(-1, 1).view(np.uint8).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode()


def unpacked(table: Packed) -> Ints:
    """Undo `packed`; returns [columns, rows]."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(table["packed"])), np.uint8).reshape(8, -1)
    deltas = np.ascontiguousarray(planes.T).view("<i8").reshape(table["columns"], table["rows"])
    return np.asarray(np.cumsum(deltas, axis=1), np.int64)
