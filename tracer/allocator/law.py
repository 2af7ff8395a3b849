"""The law of sizes: what torch's caching allocator has in use and reserves, as a function of sizes such as a batch's.

This file needs nothing but Python: `predict --law` writes it as law.py, with the law of a program at its end.
"""

from __future__ import annotations

import json
import zlib
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

_ROUND, _MIB, _LARGE = 512, 1 << 20, 20 << 20
_SMALL_SEGMENT, _OWN_FROM = 2 << 20, 10 << 20
RESTS = "rests of blocks that are too small to split"
MOST = 1 << 20
"""Largest size that is asked for where a range has no end."""
ALLOCATE, FREE, REQUEST_FREE, COMPLETE_FREE, EMPTY_CACHE = range(5)
"""Codes of events; each is of a block, the last one of none."""

Sizes = tuple[int, ...]
Term = tuple[int, Sizes]
"""A factor, and the exponent of each size."""


def power(sizes: Sizes, exponents: Sizes) -> int:
    """Return the product of the sizes with these exponents."""
    value = 1
    for size, exponent in zip(sizes, exponents, strict=True):
        value *= size**exponent
    return value


@dataclass(frozen=True)
class Part:
    """A sum of terms, divided by `divisor` and rounded up, to some power, times a number and a product of sizes."""

    terms: tuple[Term, ...]
    divisor: int = 1
    times: int = 1
    of: Sizes = ()
    exponent: int = 1

    def at(self, sizes: Sizes) -> int:
        """Return its value."""
        value = -(-sum(factor * power(sizes, exponents) for factor, exponents in self.terms) // self.divisor)
        return int(value**self.exponent) * self.times * (power(sizes, self.of) if self.of else 1)


Sums = tuple[tuple[Part, ...], ...]
"""Sums of parts, of which the smallest counts."""


def smallest(sums: Sums, sizes: Sizes) -> int:
    """Return the smallest sum."""
    return max(0, min(sum(part.at(sizes) for part in parts) for parts in sums))


@dataclass(frozen=True)
class BlockLaw:
    """Blocks whose size is the same sum in all runs."""

    requested: Sums  # Bytes
    home: int  # Number of their stream and pool
    label: int  # Number of their label
    is_exact: bool = True  # Whether enough runs confirm the sum; else it is near


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
    programs: tuple[str, ...]  # Their requests, see `packed`; the same in all runs but for the sizes
    runs: tuple[tuple[Sizes, int], ...]  # Sizes that were run, and the program there
    axes: tuple[Sizes, ...]  # Exponents of the products of sizes that tell programs apart

    @classmethod
    def of(cls, text: str) -> Law:
        """Return the law that `text` has as JSON."""
        values = json.loads(text)

        def part(part: dict[str, Any]) -> Part:
            terms = tuple((factor, tuple(exponents)) for factor, exponents in part["terms"])
            return Part(terms, part["divisor"], part["times"], tuple(part["of"]), part["exponent"])

        def block(block: dict[str, Any]) -> BlockLaw:
            sums = tuple(tuple(map(part, parts)) for parts in block["requested"])
            return BlockLaw(sums, block["home"], block["label"], block["is_exact"])

        runs = [(tuple(sizes), program) for sizes, program in values["runs"]]
        tables: dict[str, Any] = {name: tuple(map(tuple, values[name])) for name in ("ranges", "axes")}
        strings: dict[str, Any] = {name: tuple(values[name]) for name in ("names", "labels", "programs")}
        return cls(**strings, **tables, blocks=tuple(map(block, values["blocks"])), runs=tuple(runs))

    def sizes_of(self, named: dict[str, int]) -> Sizes:
        """Return the sizes in their order."""
        if set(named) != set(self.names):
            raise TypeError(f"Name each of {', '.join(self.names)}.")
        return tuple(named[name] for name in self.names)

    def program_at(self, sizes: Sizes) -> str:
        """Return the program of the nearest run, by the factors between sizes, or their products."""

        def distance(run: tuple[Sizes, int]) -> float:
            return sum(abs(log(power(sizes, axis) / power(run[0], axis))) for axis in self.axes)

        return self.programs[min(self.runs, key=distance)[1]]

    def peak(self, sizes: Sizes, capacity_bytes: int | None = None) -> PeakAtSizes:
        """Replay the requests at these sizes, on a device that has so much for the allocator, or has no end."""
        requested = [smallest(block.requested, sizes) for block in self.blocks]
        return _Replay(self, requested, capacity_bytes).peak(unpacked(self.program_at(sizes)))

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


def packed(events: Iterable[tuple[int, int]]) -> str:
    """Pack events: a code, and the number of the block's size or, of a free, how many allocations ago it was."""
    return b64encode(zlib.compress(array("i", [operand << 3 | code for code, operand in events]).tobytes(), 9)).decode()


def unpacked(events: str) -> Sequence[int]:
    """Return each event as one number: eight times its operand, and its code."""
    numbers = array("i")
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
        pieces: list[_Piece] = []
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
            elif code == EMPTY_CACHE:
                self._empty_cache()
            else:
                piece = pieces[-operand]
                if code != COMPLETE_FREE:
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
        made = [event >> 3 for event in events if event & 7 == ALLOCATE]
        count, in_use = 0, dict(enumerate(made))
        for event in events:
            count += event & 7 == ALLOCATE
            if event & 7 in (FREE, REQUEST_FREE):
                del in_use[count - (event >> 3)]
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
