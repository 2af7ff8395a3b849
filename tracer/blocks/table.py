"""One table of the blocks of a device, whatever it was made from; what is asked of blocks is asked of this table.

Two makers fill it: `from_recording/blocks.py` and `from_snapshot/blocks.py`. What a source does not know is -1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracer.arrays import Bools, Column, ColumnTable, Int, Interned, Ints, PerBlock, Rows, grouped, in_use
from tracer.blocks.kinds import Kind

if TYPE_CHECKING:
    from tracer.blocks.from_snapshot.sites import Sites

NONE = -1


class Phase(IntEnum):
    """A part of a training step."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    OTHER = 3  # Data, metrics and whatever else lies between


# In place of a phase.
NOT_KNOWN, NOT_RECORDED, BEFORE = -1, -2, -3


@dataclass(frozen=True, slots=True, eq=False)
class Blocks(ColumnTable):
    """Every block of one device, columns [B].

    Positions count the source's own order of events: -1 is before the first of them, E behind the last one.
    """

    made_at: PerBlock[Int]  # Position of the event that made it
    freed_at: PerBlock[Int]  # Position of the event at which its memory was free again; E if it still is in use
    size_bytes: PerBlock[Int]  # What its source counts: of a recording as allocated, of a snapshot as requested
    requested_bytes: PerBlock[Int]  # Requested, before rounding
    allocated_bytes: PerBlock[Int]  # As the allocator rounds it
    address: PerBlock[Int]
    row: PerBlock[Int]  # In the source: `Recording.allocations`, or `Lives`; -1 for what was not seen being made
    kind: PerBlock[Int]  # `Kind`
    evidence: PerBlock[Int]  # `Evidence`
    phase: PerBlock[Int]  # `Phase` in which it was made, or `BEFORE`, `NOT_RECORDED` or `NOT_KNOWN`
    frame: PerBlock[Int]  # Row in `Recording.frames` of the line that made it
    stack: PerBlock[Int]  # Number of the stack that allocated it, see `Sites`
    forward: PerBlock[Int]  # Of backward's the stack of their operation of forward, where it is certain
    # Numbers of `values`.
    step: PerBlock[Int]  # In which it was made; of what was made unseen, the one that used it
    module: PerBlock[Int]  # That called the operator
    operator: PerBlock[Int]  # As it was recorded
    origin: PerBlock[Int]  # Of what compiled code made
    place: PerBlock[Int]  # `Site` of the line to blame
    name: PerBlock[Int]  # Of the live tensor observed at its address
    said: Mapping[str, PerBlock[Int]]  # More such columns, which rows alone ask for, by name; a maker may lack some
    values: Sequence[Any]  # The values behind these numbers
    sites: Sites | None  # The lines behind stacks

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(field.name for field in fields(cls) if field.name not in ("said", "values", "sites"))

    @classmethod
    def of(
        cls, num_blocks: int, *, values: Sequence[Any] = (), sites: Sites | None = None, **known: PerBlock[Int]
    ) -> Blocks:
        """Return blocks of which these columns are known, those of `said` among them; the others are -1."""
        columns = dict.fromkeys(cls.names(), np.full(num_blocks, NONE, np.int64))
        said = {name: known.pop(name) for name in known.keys() - columns.keys()}
        return cls(**columns | known, said=said, values=values, sites=sites)

    def take(self, rows: Rows | Bools | slice) -> Blocks:
        """Return some rows, in their order."""
        said = {name: column[rows] for name, column in self.said.items()}
        return replace(ColumnTable.take(self, rows), said=said)

    def followed_by(self, other: Blocks) -> Blocks:
        """Return all rows of this table, then those of another by the same maker."""
        said = {name: np.append(column, other.said[name]) for name, column in self.said.items()}
        return replace(ColumnTable.followed_by(self, other), said=said)

    def said_of(self, name: str) -> PerBlock[Int]:
        """[B] a column of `said`; -1 where the maker lacks it."""
        return self.said.get(name, np.full(len(self), NONE, np.int64))

    def value(self, number: int) -> Any:
        """The value behind a number; None for -1."""
        return self.values[number] if number >= 0 else None

    def alive_at(self, position: int) -> Rows:
        """Rows in use right after the event at this position; -1 is the beginning."""
        return np.flatnonzero((self.made_at <= position) & (self.freed_at > position))

    def levels(self, num_events: int) -> Mapping[Kind, Ints]:
        """Return the bytes of each kind in use at the start and after each event, as `in_use` counts them.

        Returns:
            By the kinds that have any, in the order of `Kind` [E + 1]; together they are the level of all blocks.
        """
        of_kind = {kind: self.kind == kind for kind in Kind}
        levels = {
            kind: in_use(self.size_bytes[mine], self.made_at[mine], self.freed_at[mine], num_events)
            for kind, mine in of_kind.items()
            if mine.any()
        }
        return {kind: level for kind, level in levels.items() if level.any()}


def numbered(values: Interned, columns: Sequence[Column[Any]], value: Callable[..., Hashable]) -> PerBlock[Int]:
    """[B] the number in `values` of what some columns of integers say of each block; -1 where it is None."""
    groups = grouped(columns, value)
    numbers = [NONE if key is None else values[key] for key in groups.keys]
    return np.array([*numbers, NONE], np.int64)[groups.of_row]


@dataclass(frozen=True, slots=True)
class CountedParts:
    """Bytes of a moment that were counted apart from blocks, as `AllocatorCount` has them."""

    counter_bytes: int = 0
    mapped_bytes: int = 0
    before_bytes: int = 0
    unseen_bytes: int = 0
    is_walked: bool = False
    asleep_bytes: int = 0  # Bytes of the counter that are not on the device; the total is without them


NOT_COUNTED: Final = CountedParts()
