"""Memory reserved from the driver at any moment: the bytes in use, the largest hole, ranges of addresses."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from tracer.arrays import Bools, ColumnTable, Ints
from tracer.block_sizes import SMALL_SEGMENT_BYTES
from tracer.snapshot.actions import Action, BlockState
from tracer.snapshot.columns import DeviceState
from tracer.snapshot.replay import BEFORE, Replay

_GROWN = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_SHRUNK = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """A device's reserved memory at one moment."""

    reserved_bytes: int
    allocated_bytes: int  # Bytes in use, rounded as the allocator does
    free_bytes: int  # Reserved and not in use
    # The largest piece of it within one segment, whatever its stream or pool; a block whose real size is not known
    # counts with its rounded request.
    largest_free_bytes: int


@dataclass(frozen=True, slots=True)
class Usable:
    """Reserved memory that one request could have been served from: that of its stream, pool and size."""

    free_bytes: int
    largest_free_bytes: int  # The largest free piece
    pending_bytes: int  # Freed by the program, and kept until another stream has done with it
    largest_after_pending_bytes: int  # The largest free piece once that has come back
    elsewhere_bytes: int = 0  # Free in segments of other streams and pools


def usable_after(state: DeviceState, replay: Replay, entry: int, *, is_small: bool) -> Usable:
    """Reserved memory that a request which failed at an entry may use; one that names no pool is of the default."""
    trace, lives = state.trace, replay.lives
    mapped = _mapped_after(state, entry)
    is_mine = (mapped.stream == trace.stream[entry]) & (mapped.pool == trace.pool[entry])
    own, others = mapped.take(is_mine & (mapped.is_small == is_small)), mapped.take(~is_mine)
    rows = lives.alive_after(entry)
    is_pending = (lives.free_entry[rows] >= 0) & (lives.free_entry[rows] <= entry)
    # The state at the end shows a free that was requested before the recording began.
    pending = state.blocks.address[state.blocks.state == BlockState.ACTIVE_PENDING_FREE]
    is_live = (lives.end[rows] == len(trace)) & (lives.free_entry[rows] < 0) & (lives.begin[rows] == BEFORE)
    is_pending |= is_live & np.isin(lives.addr[rows], pending)
    holes = _hole_sizes(own, (lives.addr[rows], lives.allocated_bytes[rows]))
    in_use = rows[~is_pending]
    later = _hole_sizes(own, (lives.addr[in_use], lives.allocated_bytes[in_use]))
    return Usable(
        free_bytes=int(holes.sum()),
        largest_free_bytes=int(holes.max(initial=0)),
        pending_bytes=int(later.sum() - holes.sum()),
        largest_after_pending_bytes=int(later.max(initial=0)),
        elsewhere_bytes=int(_hole_sizes(others, (lives.addr[rows], lives.allocated_bytes[rows])).sum()),
    )


def free_for_process(state: DeviceState, replay: Replay, entry: int, fraction: float = 1.0) -> int | None:
    """Bytes that the device had for this process when a request failed; None where the recording does not say.

    Args:
        fraction: The share of the device that the process may reserve (`set_per_process_memory_fraction`). The device
            counts as no larger than the reserved and the free bytes: other processes' memory is not known.
    """
    free_bytes, reserved_bytes = int(state.trace.addr[entry]), int(replay.reserved_bytes[entry + 1])
    if free_bytes < 0:
        return None
    return max(min(free_bytes, int(fraction * (reserved_bytes + free_bytes)) - reserved_bytes), 0)


def fragmentation_after(state: DeviceState, replay: Replay, entry: int) -> Fragmentation:
    """The state of the reserved memory right after an entry; after -1 means at the start of the recording."""
    rows = replay.lives.alive_after(entry)
    reserved = int(replay.reserved_bytes[entry + 1])
    allocated = int(replay.lives.allocated_bytes[rows].sum())
    holes = _hole_sizes(_mapped_after(state, entry), (replay.lives.addr[rows], replay.lives.allocated_bytes[rows]))
    return Fragmentation(
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        free_bytes=max(reserved - allocated, 0),
        largest_free_bytes=int(holes.max(initial=0)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Mapped(ColumnTable):
    """Ranges of addresses, each with +1 or -1; where they sum to one or more, memory is reserved."""

    address: Ints
    size: Ints
    sign: Ints  # +1 if it is there, -1 if it takes away from another
    is_whole: Bools  # A segment of its own, which no free block reaches beyond
    stream: Ints
    pool: Ints  # Number of the pool's name, -1 for the default pool
    is_small: Bools


def _mapped_after(state: DeviceState, entry: int) -> _Mapped:
    """The segments after an entry: those of the end state, with everything undone that happened since."""
    trace, segments = state.trace, state.segments
    gone, new = (entries[entries > entry] for entries in (trace.where(*_SHRUNK), trace.where(*_GROWN)))
    whole = [~segments.is_expandable, trace.action[gone] == Action.SEGMENT_FREE, np.zeros(len(new), dtype=np.bool_)]
    return _Mapped(
        address=np.concatenate([segments.address, trace.addr[gone], trace.addr[new]]),
        size=np.concatenate([segments.total_size, trace.size[gone], trace.size[new]]),
        sign=np.repeat([1, 1, -1], [len(segments), len(gone), len(new)]),
        is_whole=np.concatenate(whole),
        stream=np.concatenate([segments.stream, trace.stream[gone], trace.stream[new]]),
        pool=np.concatenate([segments.pool, trace.pool[gone], trace.pool[new]]),
        # Small requests are served from segments of one size, also from the pages of expandable ones.
        is_small=np.concatenate([segments.is_small, trace.size[np.append(gone, new)] == SMALL_SEGMENT_BYTES]),
    )


def _hole_sizes(mapped: _Mapped, used: tuple[Ints, Ints]) -> Ints:
    """Sizes of the free pieces between used blocks, in one sweep over all addresses where something begins or ends."""
    used_at, used_size = used
    at = np.concatenate([mapped.address, mapped.address + mapped.size, used_at, used_at + used_size])
    none, some = np.zeros(len(used_at), dtype=np.int64), np.ones(len(used_at), dtype=np.int64)
    reserved = np.concatenate([mapped.sign, -mapped.sign, none, none])
    in_use = np.concatenate([0 * mapped.sign, 0 * mapped.sign, some, -some])
    points, point_of = np.unique(at, return_inverse=True)
    if len(points) < 2:
        return np.zeros(0, dtype=np.int64)
    is_reserved = _running(reserved, point_of, len(points)) > 0
    is_free = is_reserved & (_running(in_use, point_of, len(points)) <= 0)
    whole, cut = mapped.is_whole, np.zeros(len(points), dtype=np.bool_)
    cut[np.searchsorted(points, mapped.address[whole])] = True
    cut[np.searchsorted(points, (mapped.address + mapped.size)[whole])] = True
    # Lengths of the maximal free runs of consecutive ranges; a cut begins a new run.
    length, is_free, cut = np.diff(points), is_free[:-1], cut[:-1]
    starts = is_free & (cut | ~np.append(False, is_free[:-1]))
    sizes = np.zeros(int(starts.sum()), dtype=np.int64)
    np.add.at(sizes, (np.cumsum(starts) - 1)[is_free], length[is_free])
    return sizes


def _running(change: Ints, point_of: Ints, num_points: int) -> Ints:
    total = np.zeros(num_points, dtype=np.int64)
    np.add.at(total, point_of.reshape(-1), change)
    return np.cumsum(total)


@dataclass(frozen=True, slots=True, eq=False)
class AddressRanges:
    """Reserved ranges and their lives, by address [ranges]. Entries are positions in the trace of E entries.

    Of a recording the lives are positions of its events.
    """

    address: Ints
    size_bytes: Ints
    begin: Ints  # The entry that reserved it; `BEFORE` (-1) if it was there before the first one
    end: Ints  # The entry that gave it back; E if it still is reserved
    stream: Ints
    pool: Ints  # Number of the pool's name, -1 for the default pool
    is_small: Bools
    is_expandable: Bools  # Whether what lies beside it belongs to the same segment
    known_from: int = BEFORE  # The first entry of which all this is known

    def __len__(self) -> int:
        return len(self.address)


# Stream, pool, is_small, is_expandable.
_Home = tuple[int, int, bool, bool]
# First address, address behind it, begin, home.
_Open = tuple[int, int, int, _Home]
_Row = tuple[int, int, int, int, _Home]


def address_ranges(state: DeviceState) -> AddressRanges:
    """Follow the segments of a device, and the mapped parts of expandable ones, from their entries and the end state.

    What is given back and was never reserved in the recording was there before it; so is what is there at the end and
    no entry reserved.
    """
    trace, segments = state.trace, state.segments
    num_entries = len(trace)
    reserved: list[_Open] = []
    rows: list[_Row] = []
    entries = trace.where(*_GROWN, *_SHRUNK)
    columns = (
        entries.tolist(),
        trace.action[entries].tolist(),
        trace.addr[entries].tolist(),
        trace.size[entries].tolist(),
        trace.stream[entries].tolist(),
        trace.pool[entries].tolist(),
    )
    for entry, action, address, size, stream, pool in zip(*columns, strict=True):
        is_small = size == SMALL_SEGMENT_BYTES
        home = (stream, pool, is_small, action in (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP))
        if action in _GROWN:
            reserved.insert(bisect_left(reserved, (address,)), (address, address + size, entry, home))
        else:
            rows += [(*part[:2], part[2], entry, part[3]) for part in _take(reserved, address, address + size, home)]
    ends = (
        segments.address.tolist(),
        segments.total_size.tolist(),
        segments.stream.tolist(),
        segments.pool.tolist(),
        segments.is_small.tolist(),
        segments.is_expandable.tolist(),
    )
    for address, size, stream, pool, is_small, is_expandable in zip(*ends, strict=True):
        home = (stream, pool, is_small, is_expandable)
        pieces = _take(reserved, address, address + size, home)
        # The end state knows of what pool and size a range is; an entry of a mapped page does not.
        rows += [(first, last, begin, num_entries, home) for first, last, begin, _ in pieces]
    return _columns(sorted(rows))


def _take(reserved: list[_Open], first: int, last: int, home: _Home) -> list[_Open]:
    """Take the parts between two addresses out of what is reserved; what nothing reserved was there before."""
    start = max(bisect_left(reserved, (first,)) - 1, 0)
    stop = start
    pieces: list[_Open] = []
    left: list[_Open] = []
    at = first
    while stop < len(reserved) and reserved[stop][0] < last:
        low, high, begin, of = reserved[stop]
        stop += 1
        if high <= first:
            left.append((low, high, begin, of))
            continue
        if low < first:
            left.append((low, first, begin, of))
        if high > last:
            left.append((last, high, begin, of))
        low, high = max(low, first), min(high, last)
        if low > at:
            pieces.append((at, low, BEFORE, home))
        pieces.append((low, high, begin, of))
        at = high
    if at < last:
        pieces.append((at, last, BEFORE, home))
    reserved[start:stop] = left
    return pieces


def _columns(rows: list[_Row]) -> AddressRanges:
    def column(values: list[int]) -> Ints:
        return np.array(values, np.int64)

    return AddressRanges(
        address=column([row[0] for row in rows]),
        size_bytes=column([row[1] - row[0] for row in rows]),
        begin=column([row[2] for row in rows]),
        end=column([row[3] for row in rows]),
        stream=column([row[4][0] for row in rows]),
        pool=column([row[4][1] for row in rows]),
        is_small=np.array([row[4][2] for row in rows], np.bool_),
        is_expandable=np.array([row[4][3] for row in rows], np.bool_),
    )
