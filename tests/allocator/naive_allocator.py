"""The caching allocator once more, as plainly as possible: lists that are scanned from end to end at every step.

Written from torch's rules without a look at the product's data structures; it is the oracle of the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tracer.allocator.driver import PackingDriver

MIB = 1 << 20


class NaiveOutOfMemoryError(Exception):
    pass


@dataclass
class Piece:
    address: int
    size: int
    state: str  # free, used, pending, unmapped
    requested: int = 0
    cached_at: int = 0


@dataclass
class Segment:
    address: int
    stream: int
    small: bool
    pool: tuple[int, int]
    counter: int
    page: int = 0  # of an expandable one
    pieces: list[Piece] = field(default_factory=list)


class NaiveAllocator:
    def __init__(
        self,
        *,
        expandable: bool = False,
        max_split: int | None = None,
        max_rounding: int = 20 * MIB,
        large: int = 20 * MIB,
        divisions: tuple[int, ...] = (0,) * 16,
        gc_threshold: float = 0.0,
        capacity: int | None = None,
        limit: int | None = None,
        counters: bool = True,
    ) -> None:
        self.expandable, self.max_split, self.max_rounding, self.large = expandable, max_split, max_rounding, large
        self.divisions, self.gc_threshold, self.limit, self.counters = divisions, gc_threshold, limit, counters
        self.driver = PackingDriver(capacity)
        self.address_space = capacity * 9 // 8 if capacity else 1 << 44
        self.segments: list[Segment] = []
        self.events: list[tuple[str, int, int, int]] = []
        self.made = self.retries = self.peak_reserved = self.peak_allocated = 0
        self.searches: dict[Any, int] = {}

    # ---- what can be asked

    def reserved(self) -> int:
        return sum(p.size for s in self.segments for p in s.pieces if p.state != "unmapped")

    def allocated(self) -> int:
        return sum(p.size for s in self.segments for p in s.pieces if p.state == "used")

    def rounded(self, size: int) -> int:
        if size < 512:
            return 512
        interval = 0
        while interval < 15 and size >= 2 << (20 + interval):
            interval += 1
        parts = self.divisions[interval]
        if parts > 1 and size > 512 * parts:
            power = 1
            while power * 2 <= size:
                power *= 2
            step = power // parts
            return (size + step - 1) // step * step
        return (size + 511) // 512 * 512

    def allocate(self, size: int, stream: int = 0, pool: tuple[int, int] = (0, 0)) -> Piece:
        need = self.rounded(size)
        small = need <= MIB
        found = self._find(need, stream, small, pool)
        if found is None:
            self._collect()
            found = self._grow(need, stream, small, pool)
        if found is None and self._release_available(need, stream, small, pool):
            found = self._grow(need, stream, small, pool)
        if found is None:
            self.empty_cache()
            self.retries += 1
            found = self._grow(need, stream, small, pool)
        if found is None:
            raise NaiveOutOfMemoryError
        segment, piece = found
        rest = piece.size - need
        if small or self.expandable:
            cut = rest >= 512
        else:
            cut = rest > MIB and (self.max_split is None or need < self.max_split)
        if cut:
            at = segment.pieces.index(piece)
            segment.pieces.insert(at + 1, Piece(piece.address + need, rest, "free", cached_at=self._clock(segment)))
            piece.size = need
        piece.state, piece.requested = "used", size
        self.peak_allocated = max(self.peak_allocated, self.allocated())
        return piece

    def request_free(self, piece: Piece) -> None:
        piece.state = "pending"

    def complete_free(self, piece: Piece) -> None:
        segment = next(s for s in self.segments if any(p is piece for p in s.pieces))
        piece.state, piece.requested = "free", 0
        self._join(segment, piece)

    def free(self, piece: Piece) -> None:
        self.request_free(piece)
        self.complete_free(piece)

    def empty_cache(self) -> None:
        for piece in [p for s in self.segments for p in s.pieces if p.state == "pending"]:
            self.complete_free(piece)
        for small in (False, True):
            mine = [s for s in self.segments if s.small == small and s.pool == (0, 0)]
            cached = sorted(
                ((s.stream, p.size, s.counter, p.address, s, p) for s in mine for p in s.pieces if p.state == "free"),
                key=lambda row: row[:4],
            )
            for *_, segment, piece in cached:
                if not segment.page and len(segment.pieces) == 1:
                    self._release(segment, piece)
            for *_, segment, piece in cached:
                if segment.page:
                    self._unmap(segment, piece)

    # ---- how it is found

    def _clock(self, segment: Segment) -> int:
        return self.searches.get((segment.pool, segment.small), 0)

    def _free(self, stream: int, small: bool, pool: tuple[int, int]) -> list[tuple[Segment, Piece]]:
        mine = [s for s in self.segments if (s.stream, s.small, s.pool) == (stream, small, pool)]
        pairs = [(s, p) for s in mine for p in s.pieces if p.state == "free"]
        return sorted(pairs, key=lambda pair: (pair[1].size, pair[0].counter, pair[1].address))

    def _find(self, need: int, stream: int, small: bool, pool: tuple[int, int]) -> tuple[Segment, Piece] | None:
        if self.gc_threshold:
            self.searches[pool, small] = self.searches.get((pool, small), 0) + 1
        fitting = [pair for pair in self._free(stream, small, pool) if pair[1].size >= need]
        if not fitting:
            return None
        best = 0
        while fitting[best][0].page and best + 1 < len(fitting):
            if self._could_be(*fitting[best + 1]) >= self._could_be(*fitting[best]):
                break
            best += 1
        segment, piece = fitting[best]
        if self.max_split is not None:
            if need < self.max_split and piece.size >= self.max_split:
                return None
            if need >= self.max_split and piece.size >= need + self.max_rounding:
                return None
        return segment, piece

    def _could_be(self, segment: Segment, piece: Piece) -> int:
        at = segment.pieces.index(piece)
        after = segment.pieces[at + 1] if at + 1 < len(segment.pieces) else None
        return piece.size + (after.size if after is not None and after.state == "unmapped" else 0)

    def _segment_size(self, need: int) -> int:
        if need <= MIB:
            return 2 * MIB
        return self.large if need < 10 * MIB else (need + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)

    def _grow(self, need: int, stream: int, small: bool, pool: tuple[int, int]) -> tuple[Segment, Piece] | None:
        size = self._segment_size(need)
        if self.limit is not None and self.reserved() + size > self.limit:
            return None
        if self.expandable:
            return self._expand(need, stream, small, pool)
        address = self.driver.reserve(size, stream, pool)
        if address is None:
            return None
        segment = self._new(address, stream, small, pool)
        segment.pieces.append(Piece(address, size, "free"))
        self._log("segment_alloc", address, size, stream)
        return segment, segment.pieces[0]

    def _new(self, address: int, stream: int, small: bool, pool: tuple[int, int], page: int = 0) -> Segment:
        self.made += 1
        segment = Segment(address, stream, small, pool, self.made if self.counters else 0, page)
        self.segments.append(segment)
        return segment

    def _expand(self, need: int, stream: int, small: bool, pool: tuple[int, int]) -> tuple[Segment, Piece] | None:
        place = self._place(need, stream, small, pool)
        if place is None:
            page = 2 * MIB if small else self.large
            length = (max(self.address_space, need) + page - 1) // page * page
            segment = self._new(self.driver.reserve_range(length, stream, pool), stream, small, pool, page)
            segment.pieces.append(Piece(segment.address, length, "unmapped"))
            place = segment, segment.pieces[0]
        segment, piece = place
        while piece.state == "unmapped" or piece.size < need:
            after = piece if piece.state == "unmapped" else segment.pieces[segment.pieces.index(piece) + 1]
            missing = need if piece is after else need - piece.size
            found = self._map(segment, after, min(missing, after.size))
            if found is None:
                return None
            piece = found
        return segment, piece

    def _place(self, need: int, stream: int, small: bool, pool: tuple[int, int]) -> tuple[Segment, Piece] | None:
        mine = [s for s in self.segments if s.page and (s.stream, s.small, s.pool) == (stream, small, pool)]
        pairs = [(s, p) for s in mine for p in s.pieces if p.state == "unmapped"]
        for segment, piece in sorted(pairs, key=lambda pair: pair[1].address):
            at = segment.pieces.index(piece)
            if at and segment.pieces[at - 1].state == "free":
                at -= 1
            room = 0
            for other in segment.pieces[at:]:
                if other.state not in ("free", "unmapped"):
                    break
                room += other.size
            if room >= need:
                return segment, segment.pieces[at]
        return None

    def _map(self, segment: Segment, piece: Piece, size: int) -> Piece | None:
        length = (size + segment.page - 1) // segment.page * segment.page
        if not self.driver.map(piece.address, length):
            return None
        at = segment.pieces.index(piece)
        if length < piece.size:
            segment.pieces.insert(at + 1, Piece(piece.address + length, piece.size - length, "unmapped"))
        self._log("segment_map", piece.address, length, segment.stream)
        piece.size, piece.state = length, "free"
        joined = self._join(segment, piece)
        self.peak_reserved = max(self.peak_reserved, self.reserved())
        return joined

    def _join(self, segment: Segment, piece: Piece) -> Piece:
        """Unite a piece with neighbours of its state."""
        at = next(i for i, other in enumerate(segment.pieces) if other is piece)
        first = last = at
        while first and segment.pieces[first - 1].state == piece.state:
            first -= 1
        while last + 1 < len(segment.pieces) and segment.pieces[last + 1].state == piece.state:
            last += 1
        parts = segment.pieces[first : last + 1]
        joined = Piece(parts[0].address, sum(p.size for p in parts), piece.state, cached_at=self._clock(segment))
        segment.pieces[first : last + 1] = [joined]
        return joined

    def _unmap(self, segment: Segment, piece: Piece) -> None:
        begin, end, page = piece.address - segment.address, piece.address + piece.size - segment.address, segment.page
        low, high = (begin + page - 1) // page * page, end // page * page
        if low >= high:
            return
        at = segment.pieces.index(piece)
        middle = Piece(segment.address + low, high - low, "unmapped")
        parts = [
            Piece(piece.address, low - begin, "free", cached_at=self._clock(segment)),
            middle,
            Piece(segment.address + high, end - high, "free", cached_at=self._clock(segment)),
        ]
        segment.pieces[at : at + 1] = [part for part in parts if part.size]
        self.driver.unmap(segment.address + low, high - low)
        self._log("segment_unmap", segment.address + low, high - low, segment.stream)
        self._join(segment, middle)
        if len(segment.pieces) == 1:
            self.segments.remove(segment)

    def _release(self, segment: Segment, piece: Piece) -> None:
        self.segments.remove(segment)
        self.driver.release(piece.address, piece.size)
        self._log("segment_free", piece.address, piece.size, segment.stream)

    def _release_available(self, need: int, stream: int, small: bool, pool: tuple[int, int]) -> bool:
        if self.max_split is None:
            return False
        wanted = max(need, self.max_split)
        cached = self._free(stream, small, pool)
        enough = [pair for pair in cached if pair[1].size >= wanted]
        if enough and not enough[0][0].page:
            self._release(*enough[0])
            return True
        total = 0
        for segment, piece in reversed([pair for pair in cached if pair[1].size < wanted]):
            if total >= wanted or piece.size < self.max_split:
                break
            if not segment.page:
                total += piece.size
                self._release(segment, piece)
        return total >= wanted

    def _collect(self) -> None:
        if not self.gc_threshold or self.limit is None:
            return
        excess = self.reserved() - int(self.gc_threshold * self.limit)
        while excess > 0:
            whole = [s for s in self.segments if not s.small and not s.page and s.pool == (0, 0)]
            whole = [s for s in whole if len(s.pieces) == 1 and s.pieces[0].state == "free"]
            if not whole:
                return
            whole.sort(key=lambda s: (s.stream, s.pieces[0].size, s.counter, s.address))
            ages = [self._clock(s) - s.pieces[0].cached_at for s in whole]
            mean = sum(ages) / len(ages)
            for segment, age in zip(whole, ages, strict=True):
                if age >= mean:
                    excess -= segment.pieces[0].size
                    self._release(segment, segment.pieces[0])

    def _log(self, action: str, address: int, size: int, stream: int) -> None:
        self.events.append((action, address, size, stream))
        self.peak_reserved = max(self.peak_reserved, self.reserved())
