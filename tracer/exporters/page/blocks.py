"""The blocks of a page as columns of numbers that are small when packed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracer.analysis.kept_blocks import keep_blocks
from tracer.arrays import Ints, Rows
from tracer.exporters.page.model import PageBlocks, PageSpace
from tracer.exporters.page.pack import Packed, packed

if TYPE_CHECKING:
    from tracer.analysis.peak_row import PeakRow

MOST_BLOCKS: Final = 120_000
"""Shown one by one; smaller ones are grouped."""
MAX_STACK_FRAMES: Final = 40
_MAX_STACKS: Final = 1000
_PYTHON_FRAME = re.compile(r" \([^()]*:\d+\)$")
# Fields of `PeakRow` that are texts, then those that are lines; `data.js` has the same list.
TEXT_FIELDS: Final = (
    "category",
    "torch_category",
    "evidence",
    "phase",
    "module",
    "op",
    "file",
    "name",
    "caller_file",
    "fused_with",
    "dtype",
    "shape",
)
_LINE_FIELDS: Final = ("line", "caller_line")


def blocks_json(blocks: PageBlocks, kept_rows: Rows, *, most_blocks: int = MOST_BLOCKS) -> dict[str, Any]:
    """The blocks at the kept rows of the timeline; positions are indices into the kept rows.

    Args:
        kept_rows: Rows of the timeline that the page keeps, ascending.
        most_blocks: Blocks that are drawn one by one; smaller ones are summed by group.

    Returns:
        Packed tables. The columns of `groups` are numbers of `texts`, one more than the number, and 0 for none; lines
        are lines. Those of `blocks` are the first position, how many positions, bytes and group of each block. Those of
        `changes` are position, group, bytes and count: by how much the blocks smaller than `smaller_than` of a group
        changed. Those of `places` are the address of each block and, where they are not its bytes, its rounded bytes.
    """
    kept = keep_blocks(
        kept_rows,
        made_at=blocks.made_at,
        freed_at=blocks.freed_at,
        size_bytes=blocks.size_bytes,
        group=blocks.group,
        most_blocks=most_blocks,
    )
    # Groups that are seen, by number.
    used = np.union1d(blocks.group[kept.block], kept.change_group)
    texts, columns = _groups([blocks.groups[group] for group in used.tolist()])
    large = np.searchsorted(used, blocks.group[kept.block])
    order = np.lexsort((large, kept.first))
    rows = kept.block[order]
    return {
        "texts": texts,
        "groups": packed(columns),
        "blocks": packed([kept.first[order], (kept.last - kept.first)[order], blocks.size_bytes[rows], large[order]]),
        "changes": packed(
            [kept.change_at, np.searchsorted(used, kept.change_group), kept.change_bytes, kept.change_count]
        ),
        "places": _places(blocks, rows),
        "smaller_than": kept.smaller_than_bytes,
        "stacks": stacks_json([blocks.stacks[group] for group in used.tolist()] if blocks.stacks else []),
    }


def _places(blocks: PageBlocks, rows: Rows) -> Packed | None:
    if blocks.address is None:
        return None
    rounded = [] if blocks.allocated_bytes is None else [blocks.allocated_bytes[rows]]
    return packed([blocks.address[rows], *rounded])


def space_json(space: PageSpace, kept_rows: Rows) -> dict[str, Any]:
    """The reserved ranges that are seen at the kept rows of the timeline.

    Returns:
        `ranges` with the columns first position, how many positions, address, bytes, home, expandable or not; before
        the position `known_from` they are not known.
    """
    first = np.searchsorted(kept_rows, space.made_at, side="left")
    last = np.searchsorted(kept_rows, space.freed_at, side="left")
    seen = np.flatnonzero(first < last)
    columns = (first, last - first, space.address, space.size_bytes, space.home, space.is_expandable.astype(np.int64))
    return {
        "homes": space.homes,
        "ranges": packed([column[seen] for column in columns]),
        "known_from": int(np.searchsorted(kept_rows, space.known_from, side="left")),
    }


def _groups(groups: Sequence[PeakRow]) -> tuple[list[str], list[Ints]]:
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
