"""The blocks of a failure in a second run that was followed behind it: next uses, and the operators that made them.

A line is a file's name and a number; of a backward both are empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeAlias

import numpy as np

from tracer.arrays import Ints
from tracer.block_sizes import round_size
from tracer.capture.objects.later_uses import LaterUses, Making, NextUse

Line: TypeAlias = tuple[str, int]


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

    def alike(self, making: Making) -> tuple[Making, ...]:
        """Return all that makes results of one shape at one line of the program."""
        place = making.file, making.line, making.result.shape
        return tuple(each for each in self.uses.makings if (each.file, each.line, each.result.shape) == place)

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
    def ahead_bytes(self) -> Ints:
        """Of these, those that are read from the failed request on; all where that was not noted."""
        ahead = self.uses.ahead_bytes or self.uses.size_bytes
        return np.array(ahead, np.int64)[self.places]

    @property
    def asked_read_bytes(self) -> int | None:
        """Bytes of what the failed request is for that are ever read, at the most; None where that is not known."""
        return self.uses.read_bytes[self.asked] if self.asked >= 0 else None


_LEAST_ALIKE = 0.95
"""Share of the bytes in use: so many are in a second run that is of the same program."""


def followed(
    uses: LaterUses, rows: Ints, distance: Ints, lines: Sequence[Line], size_bytes: Ints, asked_bytes: int
) -> Followed | None:
    """Match the blocks in use with those of a second run; None where these are others.

    Blocks that are as many allocations before the failure are the same if their sizes are, or their lines, where data
    has other lengths. Where
    a thread or a tool has allocated in between, those of a line and size are the same in their order.

    Args:
        rows: Blocks in use [blocks].
        distance: Of each, allocations from it until the failed request [blocks].
        lines: The line of each [blocks].
        size_bytes: As requested [blocks].
        asked_bytes: As the allocator rounds it.
    """
    there, sizes = np.array(uses.distance, np.int64), np.array(uses.size_bytes, np.int64)
    of_making = _lines_of(uses)
    made_at = [of_making[row] for row in uses.making]
    _, places, own = np.intersect1d(there, distance, return_indices=True)
    pairs = [
        (place, at)
        for place, at in zip(places.tolist(), own.tolist(), strict=True)
        if size_bytes[at] == sizes[place]
        or (
            made_at[place][1] and made_at[place] == lines[at] and sizes[place] <= 2 * size_bytes[at] <= 4 * sizes[place]
        )
    ]
    least_bytes = _LEAST_ALIKE * int(size_bytes.sum())
    if not pairs or size_bytes[[at for _, at in pairs]].sum() < least_bytes:
        pairs = _in_order(
            [at for at in np.argsort(-there).tolist() if there[at]],
            np.argsort(-distance).tolist(),
            made_at,
            lines,
            sizes.tolist(),
            size_bytes.tolist(),
        )
        if not pairs or size_bytes[[at for _, at in pairs]].sum() < least_bytes:
            return None
    chosen, known = np.array(pairs, np.int64).T
    asked = [at for at in np.flatnonzero(there == 0).tolist() if round_size(uses.size_bytes[at]) == asked_bytes]
    return Followed(uses, chosen, rows[known], asked[0] if asked else -1)


def _in_order(
    there: list[int], here: list[int], made_at: list[Line], lines: Sequence[Line], sizes: list[int], own: list[int]
) -> list[tuple[int, int]]:
    """Pairs of blocks of one line and size, of which there are as many in both runs; then of those of one size."""
    pairs: list[tuple[int, int]] = []
    for is_of_line in (True, False):
        alike: dict[object, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for nth, (order, at, size) in enumerate(((there, made_at, sizes), (here, lines, own))):
            for place in order:
                alike[(at[place], size[place]) if is_of_line else size[place]][nth].append(place)
        found = [
            pair for mine, other in alike.values() if len(mine) == len(other) for pair in zip(mine, other, strict=True)
        ]
        pairs += found
        seen = ({place for place, _ in found}, {place for _, place in found})
        there, here = (
            [place for place in order if place not in of] for order, of in zip((there, here), seen, strict=True)
        )
    return pairs


def _lines_of(uses: LaterUses) -> list[Line]:
    """The line of each row of `makings`, and of none."""
    return [*((PurePath(making.file).name, making.line) for making in uses.makings), ("", 0)]


Behind: TypeAlias = Callable[[Making, float], float]
"""Share of a block made later that a change leaves, by what makes it, and the share of it that is ever read."""


def peaks_behind(
    uses: LaterUses, in_use: Mapping[int, float], shares: Mapping[tuple[Line, int], float], behind: Sequence[Behind]
) -> tuple[int, int]:
    """The most bytes of large blocks in use from the failed request on, and where blocks keep a share of their bytes.

    Args:
        in_use: Share of each block that was there at the failed request, by its allocations before this one.
        shares: Share of the blocks of a line and size; other blocks of that line keep the same.
        behind: Share of each block that is made later, by each change.
    """
    made, freed, size = (
        np.array(each, np.int64) for each in (uses.large.made, uses.large.freed, uses.large.size_bytes)
    )
    of_line = {line: share for (line, _), share in shares.items() if line[1]}
    lines = _lines_of(uses)
    there = defaultdict[tuple[Line, int], list[float]](list)  # A backward's blocks have no line here
    for row, each, number in zip(uses.large.making, uses.large.size_bytes, uses.large.made, strict=True):
        if uses.request - number in in_use:
            there[lines[row], each].append(in_use[uses.request - number])
    shares = {**shares, **{key: sum(known) / len(known) for key, known in there.items()}}
    share, of_size = np.ones(len(size)), dict[int, float]()
    for at, (row, each) in enumerate(zip(uses.large.making, uses.large.size_bytes, strict=True)):
        of_later = shares.get((lines[row], each), of_line.get(lines[row], 1.0))
        share[at] = in_use.get(uses.request - made[at], of_later)
        if row < len(uses.makings) and made[at] >= uses.request:
            left = (of(uses.makings[row], uses.large.read_bytes[at] / each) for of in behind)
            share[at] = min(share[at], *left, 1.0)
            of_size[each] = max(of_size.get(each, 0.0), share[at])
    # An operator copies an operand that it cannot read as it lies.
    for at in np.flatnonzero((made >= uses.request) & (np.array(uses.large.making) == len(uses.makings))).tolist():
        share[at] = min(share[at], of_size.get(uses.large.size_bytes[at], 1.0))
    times = np.unique(np.append(made, uses.request))
    begin = np.searchsorted(times, made)
    end = np.where(freed > 0, np.searchsorted(times, freed, side="right"), len(times))
    peaks = []
    for sizes in (size, size * share):
        change = np.zeros(len(times) + 1)
        np.add.at(change, begin, sizes)
        np.add.at(change, end, -sizes)
        peaks.append(int(np.cumsum(change)[:-1][times >= uses.request].max()))
    return peaks[0], peaks[1]
