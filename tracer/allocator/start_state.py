"""The allocator's state before the first entry of a recording, rebuilt backwards from the segments at its end."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from tracer.allocator.blocks import PENDING, USED, Block, FreeBlocks, PoolId, VirtualRange
from tracer.allocator.caching_allocator import CachingAllocator
from tracer.allocator.driver import Ranges
from tracer.allocator.history import History, SegmentEvent
from tracer.allocator.reserving import new_range
from tracer.allocator.settings import AllocatorSettings
from tracer.block_sizes import SMALL_BYTES, SMALL_SEGMENT_BYTES, round_size, round_sizes
from tracer.snapshot.columns import DeviceState
from tracer.snapshot.replay import BEFORE

_Home = tuple[PoolId, int, bool]  # pool, stream, is small


@dataclass(slots=True)
class Span:
    """A segment, or a mapped part of an expandable one, that was there at the start."""

    address: int
    size: int
    stream: int
    pool: PoolId
    is_small: bool | None  # Which half of the pool; None until it is known
    base: int | None = None  # Where the expandable segment begins that it is part of; None for a plain segment
    # Number, address and size of the blocks in it, by address.
    lives: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class StartState:
    """Memory that was there before the first entry."""

    spans: tuple[Span, ...]
    reserved_bytes: int  # The sum of the spans
    num_unclear_sizes: int  # Blocks whose size nothing tells; they count with their rounded request
    num_contradictions: int  # Entries that do not fit the end state


def find_start(state: DeviceState, history: History, settings: AllocatorSettings) -> StartState:
    """Undo the recorded trace.

    What a freed block's size was is not recorded, only what was asked for. In the small pool and in expandable segments
    it is the request, rounded. In the large pool a gap of at most 1 MiB behind a block is part of it, since it would
    have been split off otherwise; behind a larger one, the first allocation that is placed in the gap begins at the
    block's end.
    """
    undo = _Undo(state, history, settings)
    entries = history.segment_entry.tolist()
    for event, entry in zip(reversed(history.segment_events), reversed(entries), strict=True):
        undo.event(event, entry)
    spans = undo.spans()
    num_outside = _put_lives(spans, history)
    placed = _Placements(history)
    num_unclear = _find_sizes(spans, history, settings, placed)
    _find_halves(spans, history, settings, placed)
    return StartState(
        spans=tuple(spans),
        reserved_bytes=sum(span.size for span in spans),
        num_unclear_sizes=num_unclear,
        num_contradictions=undo.num_contradictions + num_outside,
    )


class _Undo:
    """The segments, while the trace is walked backwards."""

    def __init__(self, state: DeviceState, history: History, settings: AllocatorSettings) -> None:
        self.num_contradictions = 0
        self._halves = _Halves(state, history, settings)
        self._plain: dict[int, Span] = {}
        self._mapped: dict[_Home, Ranges] = {}
        self._lowest: dict[_Home, int] = {}
        segments = state.segments
        columns = (segments.address, segments.total_size, segments.stream, segments.is_small, segments.is_expandable)
        rows = zip(*(column.tolist() for column in columns), history.end_pools, strict=True)
        for address, size, stream, is_small, is_expandable, pool in rows:
            if is_expandable:
                self._map((pool, stream, is_small), address, size)
            else:
                self._plain[address] = Span(address, size, stream, pool, is_small)

    def event(self, event: SegmentEvent, entry: int) -> None:
        """Undo what one entry says."""
        if event.action == "segment_alloc":
            block = self._plain.pop(event.address, None)
            self.num_contradictions += block is None or block.size != event.size
        elif event.action == "segment_free":
            self.num_contradictions += event.address in self._plain
            self._plain[event.address] = Span(event.address, event.size, event.stream, event.pool, None)
        elif event.action == "segment_map":
            self._unmap(self._home(event, entry), event.address, event.size)
        else:
            self._map(self._home(event, entry), event.address, event.size)

    def spans(self) -> list[Span]:
        """Return the spans that are left when everything is undone."""
        mapped = [
            Span(address, size, home[1], home[0], home[2], self._lowest[home])
            for home, ranges in self._mapped.items()
            for address, size in ranges
        ]
        spans: list[Span] = []
        for span in sorted([*self._plain.values(), *mapped], key=lambda span: (span.address, span.size)):
            if spans and spans[-1].address + spans[-1].size > span.address:
                self.num_contradictions += 1
            elif span.size:
                spans.append(span)
        return spans

    def _ranges(self, home: _Home, address: int) -> Ranges:
        self._lowest[home] = min(self._lowest.get(home, address), address)
        return self._mapped.setdefault(home, Ranges())

    def _map(self, home: _Home, address: int, size: int) -> None:
        ranges = self._ranges(home, address)
        if ranges.overlaps(address, size):
            self.num_contradictions += 1
        else:
            ranges.add(address, size)

    def _unmap(self, home: _Home, address: int, size: int) -> None:
        ranges = self._ranges(home, address)
        self.num_contradictions += not ranges.remove(address, size)
        if not ranges:  # a segment without a page is given up: what was there earlier was another one
            del self._lowest[home]

    def _home(self, event: SegmentEvent, entry: int) -> _Home:
        return event.pool, event.stream, self._halves.is_small(event, entry)


class _Halves:
    """The half of the pool, small or large, of an entry about an expandable segment, which entries do not name.

    Small ones grow by single pages of 2 MiB. Several free pages of one, given back together, could also be a page of a
    large one; then the last block that was there decides, or else the nearest place that is known.
    """

    def __init__(self, state: DeviceState, history: History, settings: AllocatorSettings) -> None:
        self._page = page = settings.large_segment_size
        segments = state.segments
        chosen = np.flatnonzero(segments.is_expandable)
        columns = (segments.stream, segments.address, segments.total_size, segments.is_small)
        known = set(zip(*(column[chosen].tolist() for column in columns), strict=True))
        for event in history.segment_events:
            if event.action == "segment_map":
                known.add((event.stream, event.address, event.size, event.size % page != 0))
        self._known = sorted(known)
        lives = history.lives
        order = np.argsort(lives.addr, kind="stable")
        self._address, self._end = lives.addr[order], lives.end[order]
        self._is_small = round_sizes(lives.requested_bytes[order], settings.roundup_power2_divisions) <= SMALL_BYTES

    def is_small(self, event: SegmentEvent, entry: int) -> bool:
        """Return True if a map or unmap belongs to the half of the pool for small blocks."""
        if event.action == "segment_map" or event.size % self._page:
            return event.size % self._page != 0
        first, last = np.searchsorted(self._address, (event.address, event.address + event.size))
        ended = np.where(self._end[first:last] <= entry, self._end[first:last], -1)
        if len(ended) and ended.max() >= 0:
            return bool(self._is_small[first + int(np.argmax(ended))])
        at = bisect_right(self._known, (event.stream, event.address, 1 << 63, True))
        near = [known for known in self._known[max(at - 1, 0) : at + 1] if known[0] == event.stream]
        return min(near, key=lambda known: _distance(event.address, known[1], known[2]))[3] if near else False


def _distance(address: int, start: int, size: int) -> int:
    """Return the distance of an address from a range; 0 inside."""
    return max(start - address, address - (start + size - 1), 0)


class _Placements:
    """Addresses at which the recording's allocations were placed, in ascending order."""

    def __init__(self, history: History) -> None:
        lives = history.lives
        rows = np.flatnonzero(lives.begin != BEFORE)
        rows = rows[np.argsort(lives.addr[rows], kind="stable")]
        self._address, self._entry, self._requested = lives.addr[rows], lives.begin[rows], lives.requested_bytes[rows]

    def first_between(self, low: int, high: int, before: int) -> tuple[int, int] | None:
        """Address and request of the first allocation that begins between two addresses, before some entry."""
        begin, end = np.searchsorted(self._address, (low, high))
        if begin == end:
            return None
        at = begin + int(np.argmin(self._entry[begin:end]))
        if self._entry[at] >= before:
            return None
        return int(self._address[at]), int(self._requested[at])


def _put_lives(spans: list[Span], history: History) -> int:
    """Distribute the first lives over the spans; returns how many lie in none."""
    lives, rows = history.lives, history.first_lives
    if not spans:
        return len(rows)
    begin = np.array([span.address for span in spans])
    end = begin + np.array([span.size for span in spans])
    at = np.searchsorted(begin, lives.addr[rows], side="right") - 1
    inside = (at >= 0) & (lives.addr[rows] < end[np.maximum(at, 0)])
    columns = (at[inside], rows[inside], lives.addr[rows[inside]])
    for span, life, address in zip(*(column.tolist() for column in columns), strict=True):
        spans[span].lives.append((life, address, 0))
    return int(np.count_nonzero(~inside))


def _find_sizes(spans: list[Span], history: History, settings: AllocatorSettings, placed: _Placements) -> int:
    """Fill in what the blocks' sizes were; returns how many are not certain."""
    lives = history.lives
    rounded = round_sizes(lives.requested_bytes, settings.roundup_power2_divisions)
    num_unclear = 0
    for span in spans:
        if not span.lives:
            continue
        if span.is_small is None:
            span.is_small = bool(rounded[span.lives[0][0]] <= SMALL_BYTES)
        ends = [address for _, address, _ in span.lives[1:]] + [span.address + span.size]
        for at, ((life, address, _), end) in enumerate(zip(span.lives, ends, strict=True)):
            gap, size = end - address, int(rounded[life])
            if lives.end[life] == history.num_entries:
                size = int(lives.allocated_bytes[life])
            elif span.base is None and not span.is_small:
                if gap - size <= SMALL_BYTES:
                    size = gap
                elif first := placed.first_between(address + 1, end, int(lives.end[life])):
                    size = first[0] - address
                else:
                    num_unclear += 1
            span.lives[at] = (life, address, min(size, gap))
    return num_unclear


def _find_halves(spans: list[Span], history: History, settings: AllocatorSettings, placed: _Placements) -> None:
    """Segments that were empty and were released: what is placed in them before that tells which half they are of."""
    released: dict[int, int] = {}
    for event, entry in zip(history.segment_events, history.segment_entry.tolist(), strict=True):
        if event.action == "segment_free":
            released.setdefault(event.address, entry)
    for span in spans:
        if span.is_small is None:
            first = placed.first_between(span.address, span.address + span.size, released[span.address])
            if first is None:
                span.is_small = span.size == SMALL_SEGMENT_BYTES
            else:
                span.is_small = round_size(first[1], settings.roundup_power2_divisions) <= SMALL_BYTES


def load(allocator: CachingAllocator, start: StartState, history: History) -> dict[int, Block]:
    """Put an allocator that has nothing yet into the start state.

    Returns:
        The blocks in use, by life.
    """
    live: dict[int, Block] = {}
    unmapped: dict[tuple[_Home, int], Block] = {}
    for span in start.spans:
        home = allocator.home(bool(span.is_small), span.stream, span.pool)
        if span.base is None:
            block = Block(allocator.next_counter() | span.address, span.size, home)
            allocator.heads[span.address] = block
        else:
            key = ((span.pool, span.stream, bool(span.is_small)), span.base)
            block = unmapped.get(key) or _range_from(allocator, span, home)
            block, unmapped[key] = _mapped_part(block, span, home)
        _lay(block, span, history, live)
        allocator.reserved_bytes += span.size
    for life, block in live.items():
        block.label, block.requested = life, int(history.lives.requested_bytes[life])
        allocator.requested_bytes += block.requested
        if history.waits_at_start[life]:
            block.state = PENDING
            allocator.pending[block] = None
        else:
            allocator.allocated_bytes += block.size
    allocator.peak_reserved_bytes = allocator.reserved_bytes
    allocator.peak_allocated_bytes = allocator.allocated_bytes
    allocator.peak_requested_bytes = allocator.requested_bytes
    return live


def _range_from(allocator: CachingAllocator, span: Span, home: FreeBlocks) -> Block:
    assert span.base is not None
    page = SMALL_SEGMENT_BYTES if span.is_small else allocator.settings.large_segment_size
    return new_range(allocator, VirtualRange(span.base, -(-allocator.address_space // page) * page, page), home)


def _mapped_part(unmapped: Block, span: Span, home: FreeBlocks) -> tuple[Block, Block]:
    """Cut a span out of the unmapped rest of its range; returns it, in no list, and the rest behind it."""
    home.remove_unmapped(unmapped)
    if span.address > unmapped.address:
        rest = unmapped.cut(span.address - unmapped.address)
        home.add_unmapped(unmapped)
        unmapped = rest
    rest = unmapped.cut(span.size)
    home.add_unmapped(rest)
    return unmapped, rest


def _lay(block: Block, span: Span, history: History, live: dict[int, Block]) -> None:
    """Cut a span into its used and free blocks."""
    for life, address, size in span.lives:
        if address > block.address:
            rest = block.cut(address - block.address)
            block.home.add(block)
            block = rest
        block.state = USED
        live[life] = block
        if size == block.size:
            return
        block = block.cut(size)
    block.home.add(block)
