"""Sets of addresses as disjoint ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator


class Ranges:
    """Disjoint ranges, ascending; neighbours are one range."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Start and size of each."""
        return ((start, self._sizes[start]) for start in self._starts)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._starts)

    def add(self, start: int, size: int) -> tuple[int, int]:
        """Add a range that none of these overlaps; returns the one that it is part of now."""
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start + size:
            size += self._sizes.pop(self._starts.pop(at))
        if at and self._starts[at - 1] + self._sizes[self._starts[at - 1]] == start:
            start = self._starts[at - 1]
            self._sizes[start] += size
            return start, self._sizes[start]
        insort(self._starts, start)
        self._sizes[start] = size
        return start, size

    def remove(self, start: int, size: int) -> bool:
        """Take a range away; False, and nothing happens, if it does not lie within one of these."""
        at = bisect_right(self._starts, start) - 1
        if at < 0 or self._starts[at] + self._sizes[self._starts[at]] < start + size:
            return False
        whole = self._starts.pop(at)
        length = self._sizes.pop(whole)
        for first, last in ((whole, start), (start + size, whole + length)):
            if last > first:
                insort(self._starts, first)
                self._sizes[first] = last - first
        return True

    def overlaps(self, start: int, size: int) -> bool:
        """Whether an address of the range is in one of these."""
        at = bisect_left(self._starts, start + size) - 1
        return at >= 0 and self._starts[at] + self._sizes[self._starts[at]] > start

    def take_lowest(self, size: int) -> int | None:
        """The first bytes of the lowest range that is large enough."""
        start = next((start for start in self._starts if self._sizes[start] >= size), None)
        if start is not None:
            self.remove(start, size)
        return start

    def take_highest(self, size: int) -> int | None:
        """The last bytes of the highest range that is large enough."""
        start = next((start for start in reversed(self._starts) if self._sizes[start] >= size), None)
        if start is None:
            return None
        address = start + self._sizes[start] - size
        self.remove(address, size)
        return address
