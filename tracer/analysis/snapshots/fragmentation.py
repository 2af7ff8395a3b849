"""How much of what is reserved from the driver is in use, and how large the largest hole is, at any moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.snapshot.actions import Action
from tracer.snapshot.columns import Bools, DeviceState, Int64s
from tracer.snapshot.replay import Replay


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """One moment of a device's reserved memory.

    Attributes:
        reserved_bytes: Reserved from the driver.
        allocated_bytes: In use, rounded as the allocator does.
        free_bytes: Reserved and not in use.
        largest_free_bytes: The largest piece of it within one segment, whatever its stream or pool; a block whose real
            size is not known counts with its rounded request.
    """

    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int
    largest_free_bytes: int


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
class _Mapped:
    """Ranges of addresses, each with +1 or -1; where they sum to one or more, memory is reserved.

    Attributes:
        address: Begin of each range.
        size: Its bytes.
        sign: +1 if it is there, -1 if it takes away from another.
        is_whole: A segment of its own, which no free block reaches beyond.
    """

    address: Int64s
    size: Int64s
    sign: Int64s
    is_whole: Bools


def _mapped_after(state: DeviceState, entry: int) -> _Mapped:
    """The segments after an entry: those of the end state, with everything undone that happened since."""
    trace, segments = state.trace, state.segments
    gone = _since(trace.where(Action.SEGMENT_FREE, Action.SEGMENT_UNMAP), entry)
    new = _since(trace.where(Action.SEGMENT_ALLOC, Action.SEGMENT_MAP), entry)
    whole = [~segments.is_expandable, trace.action[gone] == Action.SEGMENT_FREE, np.zeros(len(new), dtype=np.bool_)]
    return _Mapped(
        address=np.concatenate([segments.address, trace.addr[gone], trace.addr[new]]),
        size=np.concatenate([segments.total_size, trace.size[gone], trace.size[new]]),
        sign=np.repeat([1, 1, -1], [len(segments), len(gone), len(new)]),
        is_whole=np.concatenate(whole),
    )


def _since(entries: Int64s, entry: int) -> Int64s:
    return entries[entries > entry]


def _hole_sizes(mapped: _Mapped, used: tuple[Int64s, Int64s]) -> Int64s:
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
    cut = np.zeros(len(points), dtype=np.bool_)
    whole = mapped.is_whole
    cut[np.searchsorted(points, mapped.address[whole])] = True
    cut[np.searchsorted(points, (mapped.address + mapped.size)[whole])] = True
    return _merged(np.diff(points), is_free[:-1], cut[:-1])


def _running(change: Int64s, point_of: Int64s, num_points: int) -> Int64s:
    total = np.zeros(num_points, dtype=np.int64)
    np.add.at(total, point_of.reshape(-1), change)
    return np.cumsum(total)


def _merged(length: Int64s, is_free: Bools, cut: Bools) -> Int64s:
    """Lengths of the maximal free runs of consecutive ranges; a cut begins a new run."""
    starts = is_free & (cut | ~np.append(False, is_free[:-1]))
    run = np.cumsum(starts) - 1
    sizes = np.zeros(int(starts.sum()), dtype=np.int64)
    np.add.at(sizes, run[is_free], length[is_free])
    return sizes
