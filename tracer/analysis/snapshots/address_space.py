"""What was reserved from the driver at any moment: ranges of addresses, each with its life."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from tracer.arrays import Bools, Ints
from tracer.block_sizes import SMALL_SEGMENT_BYTES
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import DeviceState
from tracer.snapshot.replay import BEFORE

_GROWN = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_SHRUNK = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


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
