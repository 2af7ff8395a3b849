"""Which bytes of device memory hold values: sorted ranges, since tensors are read in other pieces than written."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import IntEnum


class Known(IntEnum):
    """What is known of the values in a range of device memory; of two that are combined, the smaller holds."""

    UNKNOWN = 0
    """No kernel wrote them, or one that computes nothing."""
    DRAWN = 1
    """Computed from drawn numbers, or drawn."""
    EXACT = 2
    """Written by the host, or computed from what is exact."""


class KnownRanges:
    """Disjoint ranges of addresses that hold values, in order; all else is `Known.UNKNOWN`."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._known: list[Known] = []

    def __len__(self) -> int:
        return len(self._starts)

    def forget(self, start: int, end: int) -> None:
        """Make a range unknown."""
        first = bisect_right(self._ends, start)
        if first == len(self._starts) or self._starts[first] >= end or start >= end:
            return
        last = bisect_left(self._starts, end)
        rest: list[tuple[int, int, Known]] = []
        if self._starts[first] < start:
            rest.append((self._starts[first], start, self._known[first]))
        if self._ends[last - 1] > end:
            rest.append((end, self._ends[last - 1], self._known[last - 1]))
        self._replace(first, last, rest)

    def note(self, start: int, end: int, known: Known) -> None:
        """Set what is known of a range; neighbours of which the same is known are merged."""
        self.forget(start, end)
        if known == Known.UNKNOWN or start >= end:
            return
        first = last = bisect_left(self._starts, start)
        if first and self._ends[first - 1] == start and self._known[first - 1] == known:
            first -= 1
            start = self._starts[first]
        if last < len(self._starts) and self._starts[last] == end and self._known[last] == known:
            end = self._ends[last]
            last += 1
        self._replace(first, last, [(start, end, known)])

    def known(self, start: int, end: int) -> Known:
        """What is known of the whole range, by its worst part; an empty one is exact."""
        lowest = Known.EXACT
        at = bisect_right(self._ends, start)
        while start < end:
            if at == len(self._starts) or self._starts[at] > start:
                return Known.UNKNOWN
            lowest = min(lowest, self._known[at])
            start = self._ends[at]
            at += 1
        return lowest

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range that are unknown."""
        gaps = []
        at = bisect_right(self._ends, start)
        while start < end:
            begin = min(self._starts[at], end) if at < len(self._starts) else end
            if begin > start:
                gaps.append((start, begin))
            start = self._ends[at] if at < len(self._starts) else end
            at += 1
        return gaps

    def _replace(self, first: int, last: int, by: list[tuple[int, int, Known]]) -> None:
        self._starts[first:last] = [start for start, _, _ in by]
        self._ends[first:last] = [end for _, end, _ in by]
        self._known[first:last] = [known for _, _, known in by]
