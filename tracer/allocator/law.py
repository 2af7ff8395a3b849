"""The law of sizes: bytes that torch's caching allocator has in use and reserves, as a function of a batch's, say.

This file needs nothing but Python: `predict --law` writes it as law.py, with the law of a program at its end.
"""

from __future__ import annotations

import zlib
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import log

_ROUND, _MIB, _LARGE = 512, 1 << 20, 20 << 20
_SMALL_SEGMENT, _OWN_FROM = 2 << 20, 10 << 20
RESTS = "rests of blocks that are too small to split"
MOST = 1 << 20
"""Largest size that is asked for where a range has no end."""
ALLOCATE, FREE, REQUEST_FREE, COMPLETE_FREE, EMPTY_CACHE, _ABSENT = range(6)
"""Codes of events, each of a block but that of an emptied cache; at some sizes an allocation is absent."""
LEAST, GREATEST = -1, -2
"""In place of a choice: the case that is smallest, or largest."""

Sizes = tuple[int, ...]


def power(sizes: Sizes, exponents: Sizes) -> int:
    """Return the product of the sizes with these exponents."""
    value = 1
    for size, exponent in zip(sizes, exponents, strict=True):
        value *= size**exponent
    return value


def distance(sizes: Sizes, others: Sizes) -> float:
    """Return how far sizes are from others, by their logarithms."""
    return sum(abs(log(a / b)) for a, b in zip(sizes, others, strict=True))


@dataclass(frozen=True)
class Part:
    """A number times a product of sizes, and times the whole steps in another product and `more`, to some power."""

    times: int
    of: Sizes
    counted: Sizes = ()
    step: int = 1
    more: int = 0  # One less than a step counts one that is begun
    exponent: int = 1

    def at(self, sizes: Sizes) -> int:
        """Return its value."""
        value = self.times * power(sizes, self.of)
        if self.counted:
            value *= int(((power(sizes, self.counted) + self.more) // self.step) ** self.exponent)
        return value


@dataclass(frozen=True)
class Sum:
    """A sum of parts, divided by a number and rounded up."""

    parts: tuple[Part, ...]
    divisor: int = 1

    def at(self, sizes: Sizes) -> int:
        """Return its value; never below zero."""
        return max(0, -(-sum(part.at(sizes) for part in self.parts) // self.divisor))


@dataclass(frozen=True)
class BlockLaw:
    """Blocks whose size is the same sum in all runs, or the same one of some."""

    cases: tuple[Sum, ...]  # Bytes
    choice: int  # Number of the choice that says which case counts; or `LEAST` or `GREATEST`
    home: int  # Number of their stream and pool
    label: int  # Number of their label
    is_exact: bool = True  # Enough runs confirm each case; else it is near

    def at(self, sizes: Sizes, chosen: Sequence[int]) -> int:
        """Return their requested bytes."""
        if self.choice >= 0:
            return self.cases[chosen[self.choice]].at(sizes)
        return (min if self.choice == LEAST else max)(case.at(sizes) for case in self.cases)


@dataclass(frozen=True)
class Choice:
    """Cases that follow one another as a product of sizes grows, or of which one counts at multiples of a number."""

    cases: tuple[int, ...] = ()
    axis: Sizes = ()  # Exponents of the product; none where runs follow no such rule
    bounds: tuple[int, ...] = ()  # Products from which on the next case counts
    multiple: int = 0

    def at(self, sizes: Sizes) -> int:
        """Return the case; -1 if there is no rule."""
        if not self.axis:
            return -1
        value = power(sizes, self.axis)
        return self.cases[value % self.multiple == 0 if self.multiple else bisect_right(self.bounds, value)]


@dataclass(frozen=True)
class PeakAtSizes:
    """Peaks of a program at some sizes, and what was in use at the allocated one."""

    fits: bool
    allocated_bytes: int  # `torch.cuda.max_memory_allocated()`
    reserved_bytes: int  # `torch.cuda.max_memory_reserved()`
    at: str = ""  # Label of the allocation at the allocated peak
    by_label: dict[str, int] = field(default_factory=dict)  # Bytes in use then, most first


@dataclass(frozen=True)
class Law:
    """The law of a program's memory."""

    names: tuple[str, ...]  # Of the sizes
    ranges: tuple[tuple[int, int], ...]  # Least and most of each
    labels: tuple[str, ...]
    blocks: tuple[BlockLaw, ...]
    choices: tuple[Choice, ...]
    conditions: tuple[tuple[int, int], ...]  # Of events that are not in all runs: number and case of a choice
    program: str  # The requests of all runs, see `packed`
    runs: tuple[tuple[Sizes, Sizes], ...]  # Their sizes, and the cases of all choices

    def sizes_of(self, named: dict[str, int]) -> Sizes:
        """Return the sizes in their order."""
        if set(named) != set(self.names):
            raise TypeError(f"Name each of {', '.join(self.names)}.")
        return tuple(named[name] for name in self.names)

    def peak(self, sizes: Sizes, capacity_bytes: int | None = None, like: Sequence[int] = ()) -> PeakAtSizes:
        """Replay the requests at these sizes, on a device that has so much for the allocator, or has no end.

        Args:
            like: Cases of a run, which count for each choice without a rule; by default those of a run that is near
                and agrees with the rules: a choice is worth a factor e of a size.
        """
        chosen = [choice.at(sizes) for choice in self.choices]

        def likeness(run: tuple[Sizes, Sizes]) -> float:
            return sum(a == b for a, b in zip(run[1], chosen, strict=True)) - distance(run[0], sizes)

        like = like or max(self.runs, key=likeness)[1]
        chosen = [case if case >= 0 else other for case, other in zip(chosen, like, strict=True)]
        counts = [True, *(chosen[choice] == case for choice, case in self.conditions)]
        requested = [block.at(sizes, chosen) for block in self.blocks]
        events = [
            event & 0xFFFFFFFF if counts[event >> 32] else _ABSENT
            for event in unpacked(self.program)
            if counts[event >> 32] or event & 7 == ALLOCATE
        ]
        return _Replay(self, requested, capacity_bytes).peak(events)

    @property
    def ways(self) -> set[Sizes]:
        """The different cases of the runs."""
        return {cases for _, cases in self.runs}

    def bounds(self, sizes: Sizes) -> tuple[int, int]:
        """Return the least and the most in use at the peak with any run's cases where a choice has no rule."""
        ways = {
            tuple(-1 if each.axis else case for case, each in zip(way, self.choices, strict=True)): way
            for way in self.ways
        }
        peaks = [self.peak(sizes, like=way).allocated_bytes for way in ways.values()]
        return min(peaks), max(peaks)

    def bounds_bytes(self, **sizes: int) -> tuple[int, int]:
        """Return bounds of the peak of the bytes in use; they differ where what is asked for follows no order."""
        return self.bounds(self.sizes_of(sizes))

    def peak_bytes(self, **sizes: int) -> int:
        """Return the peak of the bytes in use, as `torch.cuda.max_memory_allocated()`."""
        return self.peak(self.sizes_of(sizes)).allocated_bytes

    def reserved_bytes(self, **sizes: int) -> int:
        """Return the peak of the reserved bytes, as `torch.cuda.max_memory_reserved()`."""
        return self.peak(self.sizes_of(sizes)).reserved_bytes

    def why(self, **sizes: int) -> dict[str, int]:
        """Return the bytes in use at the peak by kind and line, most first."""
        return self.peak(self.sizes_of(sizes)).by_label

    def largest(self, capacity_bytes: int, **others: int) -> int:
        """Return the largest value of the size that is not named with which it fits; below its range if none does."""
        (name,) = set(self.names) - set(others)
        low, high = self.ranges[self.names.index(name)]
        low, high = low - 1, high + 1
        while high - low > 1:
            middle = min((low + high) // 2, max(2 * low, low + 1))
            fits = self.peak(self.sizes_of({**others, name: middle}), capacity_bytes).fits
            low, high = (middle, high) if fits else (low, middle)
        return low


def packed(events: Iterable[tuple[int, int, int]]) -> str:
    """Pack events: a code, its operand and its condition, or 0.

    The operand is the number of the block's law; or of a free, how many allocations ago it was.
    """
    numbers = (condition << 32 | operand << 3 | code for code, operand, condition in events)
    return b64encode(zlib.compress(array("q", numbers).tobytes(), 9)).decode()


@lru_cache(2)
def unpacked(events: str) -> Sequence[int]:
    """Return each event as one number: its code, its operand from bit 3, its condition from bit 32."""
    numbers = array("q")
    numbers.frombytes(zlib.decompress(b64decode(events)))
    return numbers


class _Piece:
    """A piece of a segment, in use or free."""

    __slots__ = ("following", "home", "is_free", "previous", "rank", "size")

    def __init__(self, rank: int, size: int, home: list[tuple[int, int, _Piece]]) -> None:
        self.rank, self.size, self.home, self.is_free = rank, size, home, False
        self.previous: _Piece | None = None
        self.following: _Piece | None = None


class _Replay:
    """The allocator: `c10/cuda/CUDACachingAllocator.cpp` of torch 2.13 and newer, with its default settings."""

    def __init__(self, law: Law, requested: Sequence[int], capacity_bytes: int | None) -> None:
        self._law, self._capacity = law, capacity_bytes
        self._size = [max(_ROUND, -(-each // _ROUND) * _ROUND) for each in requested]
        self._homes: dict[tuple[int, bool], list[tuple[int, int, _Piece]]] = {}
        self._waiting: dict[int, _Piece] = {}  # Freed, by the number of the allocation; another stream may use it
        self._reserved = self._num_segments = 0

    def peak(self, events: Sequence[int]) -> PeakAtSizes:
        """Replay all events."""
        pieces: list[_Piece | None] = []
        allocated = most = most_reserved = 0
        peak_at = -1
        blocks, size, serve = self._law.blocks, self._size, self._serve
        for position, event in enumerate(events):
            code, operand = event & 7, event >> 3
            if code == ALLOCATE:
                piece = serve(size[operand], blocks[operand].home)
                if piece is None:
                    return PeakAtSizes(False, most, most_reserved)
                pieces.append(piece)
                allocated += piece.size
                if allocated > most:
                    most, peak_at = allocated, position
                most_reserved = max(most_reserved, self._reserved)
            elif code == _ABSENT:
                pieces.append(None)
            elif code == EMPTY_CACHE:
                self._empty_cache()
            else:
                if code != COMPLETE_FREE and (piece := pieces[-operand]) is not None:
                    pieces[-operand] = None
                    allocated -= piece.size
                    self._waiting[len(pieces) - operand] = piece
                if code != REQUEST_FREE:
                    self._complete(len(pieces) - operand)
        at = self._label(events[peak_at] >> 3) if peak_at >= 0 else ""
        return PeakAtSizes(True, most, most_reserved, at, self._by_label(events[: peak_at + 1], most))

    def _label(self, block: int) -> str:
        return self._law.labels[self._law.blocks[block].label]

    def _by_label(self, events: Sequence[int], total: int) -> dict[str, int]:
        """Sum up what is in use after some events; what their sizes leave of the total are rests of pieces."""
        in_use, count = dict[int, int](), 0
        for event in events:
            if event & 7 == ALLOCATE:
                in_use[count] = event >> 3
            elif event & 7 in (FREE, REQUEST_FREE):
                in_use.pop(count - (event >> 3), None)
            count += event & 7 in (ALLOCATE, _ABSENT)
        bytes_of: dict[str, int] = {}
        for operand in in_use.values():
            label = self._label(operand)
            bytes_of[label] = bytes_of.get(label, 0) + self._size[operand]
        if rest := total - sum(bytes_of.values()):
            bytes_of[RESTS] = rest
        return dict(sorted(bytes_of.items(), key=lambda item: -item[1]))

    def _serve(self, size: int, number: int) -> _Piece | None:
        is_small = size <= _MIB
        home = self._homes.setdefault((number, is_small), [])
        at = bisect_left(home, (size,))
        if at < len(home):
            piece = home.pop(at)[2]
        else:
            segment = _SMALL_SEGMENT if is_small else _LARGE if size < _OWN_FROM else -(-size // (2 * _MIB)) * 2 * _MIB
            if self._capacity is not None and self._reserved + segment > self._capacity:
                self._empty_cache()
                if self._reserved + segment > self._capacity:
                    return None
            self._reserved += segment
            self._num_segments += 1
            piece = _Piece(self._num_segments << 64, segment, home)
        piece.is_free = False
        rest = piece.size - size
        if rest > _MIB or (is_small and rest):
            cut = _Piece(piece.rank + size, rest, home)
            cut.previous, cut.following, piece.following, piece.size = piece, piece.following, cut, size
            if cut.following is not None:
                cut.following.previous = cut
            self._add(cut)
        return piece

    def _complete(self, number: int) -> None:
        """Unite the freed piece of an allocation with the free ones beside it, if an emptied cache has not done so."""
        if (piece := self._waiting.pop(number, None)) is None:
            return
        after, before = piece.following, piece.previous
        if after is not None and after.is_free:
            self._unite(piece, after, taken=after)
        if before is not None and before.is_free:
            self._unite(before, piece, taken=before)
            piece = before
        self._add(piece)

    @staticmethod
    def _add(piece: _Piece) -> None:
        piece.is_free = True
        insort(piece.home, (piece.size, piece.rank, piece))

    @staticmethod
    def _unite(front: _Piece, rear: _Piece, *, taken: _Piece) -> None:
        del taken.home[bisect_left(taken.home, (taken.size, taken.rank))]
        front.size += rear.size
        front.following = rear.following
        if rear.following is not None:
            rear.following.previous = front

    def _empty_cache(self) -> None:
        """Wait for other streams, and release the segments that are free as a whole."""
        for number in list(self._waiting):
            self._complete(number)
        for home in self._homes.values():
            for entry in [entry for entry in home if entry[2].previous is None and entry[2].following is None]:
                home.remove(entry)
                self._reserved -= entry[0]
