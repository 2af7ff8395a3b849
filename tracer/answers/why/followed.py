"""The blocks of a failure in a second run that was followed behind it: next uses, and the operators that made them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tracer.arrays import Ints
from tracer.block_sizes import round_size
from tracer.capture.objects.later_uses import LaterUses, Making, NextUse


@dataclass(frozen=True, eq=False)
class Followed:
    """Blocks in use that the second run has, too."""

    uses: LaterUses
    places: Ints  # In the columns of `uses`, ascending by block
    rows: Ints  # The block of each
    asked: int  # Place of what the failed request is for; -1 where it is not there

    @property
    def freed(self) -> Ints:
        """Blocks that the program freed as far as it was followed, or that it was followed past to its end."""
        freed = np.array(self.uses.freed, np.int64)[self.places]
        return np.sort(self.rows[(freed > 0) | self.uses.is_to_the_end])

    def used_next(self, holds: Callable[[NextUse | None], bool], *, is_last: bool = False) -> Ints:
        """Return the blocks whose next use, None for none, meets a condition.

        Args:
            is_last: Whether it has to be the last use, too.
        """
        meets = np.array([*map(holds, self.uses.uses), holds(None)], np.bool_)
        is_one = meets[np.array(self.uses.use, np.int64)[self.places]]
        if is_last:
            is_one &= np.array(self.uses.is_last, np.bool_)[self.places]
        return np.sort(self.rows[is_one])

    def read_again(self, rows: Ints, *, by_program: bool = False) -> Ints:
        """Return those of some blocks that an operator reads later; `by_program`: one outside of a backward."""
        read = self.used_next(
            lambda use: use is not None and not use.overwrites and not (by_program and use.in_backward)
        )
        return np.intersect1d(rows, read)

    def place(self, row: int | None) -> int | None:
        """Return a block's place; that of the failed request for None; None where it was not seen."""
        if row is None:
            return self.asked if self.asked >= 0 else None
        found = np.flatnonzero(self.rows == row)
        return int(self.places[found[0]]) if len(found) else None

    def making(self, row: int | None) -> Making | None:
        """Return the operator that made a block, or the failed request for None; None where it is not known."""
        place = self.place(row)
        if place is None or self.uses.making[place] == len(self.uses.makings):
            return None
        return self.uses.makings[self.uses.making[place]]

    def next_use(self, row: int | None) -> NextUse | None:
        """Return the next use of a block, or of what the failed request is for; None where there is none."""
        place = self.place(row)
        if place is None or self.uses.use[place] == len(self.uses.uses):
            return None
        return self.uses.uses[self.uses.use[place]]

    @property
    def read_bytes(self) -> Ints:
        """Bytes of each block of `rows` that are ever read, at the most."""
        return np.array(self.uses.read_bytes, np.int64)[self.places]

    @property
    def asked_read_bytes(self) -> int | None:
        """Bytes of what the failed request is for that are ever read, at the most; None where that is not known."""
        return self.uses.read_bytes[self.asked] if self.asked >= 0 else None


_LEAST_ALIKE = 0.95
"""Share of the blocks in use: so many have their sizes in a second run that is of the same program."""


def followed(uses: LaterUses, rows: Ints, distance: Ints, size_bytes: Ints, asked_bytes: int) -> Followed | None:
    """Match the blocks in use with those of a second run; None where these are others.

    Two runs of a program with threads, or with other random numbers, may allocate other blocks.

    Args:
        rows: Blocks in use [blocks].
        distance: Of each, allocations from it until the failed request [blocks].
        size_bytes: As requested [blocks].
        asked_bytes: As the allocator rounds it.
    """
    there = np.array(uses.distance, np.int64)
    _, places, own = np.intersect1d(there, distance, return_indices=True)
    is_alike = size_bytes[own] == np.array(uses.size_bytes, np.int64)[places]
    if is_alike.sum() < max(1, _LEAST_ALIKE * len(places)):
        return None
    asked = [at for at in np.flatnonzero(there == 0).tolist() if round_size(uses.size_bytes[at]) == asked_bytes]
    return Followed(uses, places[is_alike], rows[own[is_alike]], asked[0] if asked else -1)
