"""Storages of one device without a recorded allocation: there before, or made where the profiler does not record.

A walk over all that Python can reach, right before a recording, tells the two apart. Without a walk, as behind the bare
`TimelineTracer`, everything without an allocation is taken to have been there before.

Storages may lie in one another, as a slice of an array does: their bytes are there once.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from tracer.arrays import Bool, ColumnTable, Int, Ints, PerUnrecorded, Rows
from tracer.blocks.from_recording.observed_storages import DeviceRecording
from tracer.capture.objects.known_storages import BATCH

_NEVER = int(np.iinfo(np.int64).max)

# No caching allocator is known to round small requests further up (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize). A
# recording of large blocks only has multiples of more, which say nothing of small ones.
MAX_ROUNDING_BYTES = 512


@dataclass(frozen=True, slots=True, eq=False)
class UnrecordedStorages(ColumnTable):
    """Storages without a recorded allocation, as columns [U]."""

    address: PerUnrecorded[Int]  # [U]
    size_bytes: PerUnrecorded[Int]  # [U] As the allocator rounds it, where it is known to round
    key: PerUnrecorded[Int]  # [U] Row in `Recording.keys`, or -1
    # [U] -1 for what was there before. Of what was made unseen, the first event of the step that used it.
    made_at: PerUnrecorded[Int]
    # [U] Position of the recorded free, or of the event by which it must have been gone; one past the last where it
    # lives on.
    freed_at: PerUnrecorded[Int]
    died_unseen: PerUnrecorded[Bool]  # [U] There before, and freed without a record of it


def unrecorded_storages(device: DeviceRecording) -> UnrecordedStorages:
    """Find what operators used, or frees ended, or observations show, and no recorded allocation made."""
    end = len(device.events)
    before = _before(device)
    freed_of = frees_of(device)
    recorded = np.array([freed_of.get(number, end) for number in before.number.tolist()], np.int64)
    died = np.minimum(
        reused_at(device, before.address, before.size_bytes),
        device.released_at(before.address),
    )
    # A free that the allocator reports is more exact than when the storage was seen to go.
    died = np.where(recorded < end, end, died)
    table = UnrecordedStorages(
        address=before.address,
        size_bytes=before.size_bytes,
        key=before.key,
        made_at=np.full(len(before.address), -1, np.int64),
        freed_at=np.minimum(recorded, died),
        died_unseen=died < recorded,
    )
    return _add_counter_remainder(device, table.followed_by(_made_unseen(device)))


def frees_of(device: DeviceRecording) -> dict[int, int]:
    """Position of the free of each allocation number."""
    allocations = device.recording.allocations
    number, size = allocations.allocation_id[device.events], allocations.size_bytes[device.events]
    freed = np.flatnonzero(size < 0)
    return dict(zip(number[freed].tolist(), freed.tolist(), strict=True))


# ------------------------------------------------------------------------------------------------ what was there before
@dataclass(frozen=True, slots=True, eq=False)
class _Before:
    """Storages from before the recording, columns [U]; number is their allocation id, -1 where none was given."""

    address: PerUnrecorded[Int]
    size_bytes: PerUnrecorded[Int]
    key: PerUnrecorded[Int]
    number: PerUnrecorded[Int]


def _before(device: DeviceRecording) -> _Before:
    """Find what was there before: tensors and frees without an allocation, and storages observed earlier."""
    allocations, keys, events = device.recording.allocations, device.recording.keys, device.events
    size, number = allocations.size_bytes[events], allocations.allocation_id[events]
    allocated = set(number[size > 0].tolist())
    by_address = {address: (size_bytes, -1, -1) for address, size_bytes in device.observed_before.items()}
    others: list[tuple[int, int, int, int]] = []
    unseen = set(unseen_keys(device).tolist())
    for key in keys_not_made(device).tolist():
        address = int(keys.address[key])
        if key not in unseen and by_address.get(address, (0, -1, -1))[1] < 0:
            by_address[address] = (_held(device, key), key, int(keys.allocation_id[key]))
    for event in np.flatnonzero((size < 0) & (allocations.key[events] < 0)).tolist():
        if int(number[event]) not in allocated:
            address = int(allocations.address[events[event]])
            held = by_address.get(address)
            if held is None:
                by_address[address] = (-int(size[event]), -1, int(number[event]))
            elif held[1:] == (-1, -1):
                # A caching allocator hands out more than a tensor spans where the rest is too little to split off, and
                # its free says so; the CPU's has the size of an earlier recording.
                held_bytes = held[0] if device.is_cpu else -int(size[event])
                by_address[address] = (held_bytes, -1, int(number[event]))
            else:
                others.append((address, -int(size[event]), -1, int(number[event])))
    rounding = _rounding_bytes(device)
    table = [(a, -(-n // rounding) * rounding, key, num) for a, (n, key, num) in by_address.items()] + others
    columns = np.array(table, np.int64).reshape(-1, 4).T
    before = _Before(*(np.ascontiguousarray(column) for column in columns))
    if device.is_cpu:  # others lie where a storage from before has gone
        num = len(by_address)
        before.size_bytes[:num] = own_bytes(before.address[:num], before.size_bytes[:num])
    return before


def _held(device: DeviceRecording, key: int) -> int:
    """Bytes of a storage from before of which an operator saw tensors: what was seen of it, or what those span.

    The CPU's storages are as large as they were seen to be. What tensors span there says less: it is more than there is
    where one goes through its storage in large strides, as a diagonal does, and where the allocator reports a free the
    key has the size that the address had in an earlier recording.
    """
    keys = device.recording.keys
    size_bytes, observed_bytes = int(keys.size_bytes[key]), device.observed_before.get(int(keys.address[key]))
    if observed_bytes is None:
        return size_bytes
    return observed_bytes if device.is_cpu else max(observed_bytes, size_bytes)


def _rounding_bytes(device: DeviceRecording) -> int:
    """Return the unit to which a device's allocator rounds requests, from its reported sizes; the CPU's rounds none."""
    if device.is_cpu:
        return 1
    common = int(np.gcd.reduce(device.recording.allocations.size_bytes[device.events], initial=0))
    return min(common & -common, MAX_ROUNDING_BYTES) if common else MAX_ROUNDING_BYTES


def keys_not_made(device: DeviceRecording) -> Rows:
    """Rows of `Recording.keys` on a device that no recorded allocation made, but for those in idle memory."""
    allocations, keys = device.recording.allocations, device.recording.keys
    was_allocated = np.zeros(len(keys.id), bool)
    was_allocated[allocations.key[(allocations.key >= 0) & (allocations.size_bytes > 0)]] = True
    rows = np.flatnonzero((keys.device == device.index) & ~was_allocated)
    return rows[~device.is_idle(keys.address[rows])]


def _add_counter_remainder(device: DeviceRecording, table: UnrecordedStorages) -> UnrecordedStorages:
    """Add what an absolute counter had when the recording began and no storage shows, as one block without an address.

    The CPU's counter begins with the recording and says nothing of it.
    """
    if device.is_cpu or not len(device.events):
        return table
    allocations, first = device.recording.allocations, device.events[0]
    before_bytes = int(allocations.total_allocated_bytes[first] - allocations.size_bytes[first])
    rest = before_bytes - int(table.size_bytes[table.made_at < 0].sum())
    if rest <= 0:
        return table
    none, size_bytes, end = (np.array([number]) for number in (-1, rest, len(device.events)))
    return table.followed_by(UnrecordedStorages(none, size_bytes, none, none, end, np.array([False])))


# ------------------------------------------------------------------------------------------------- what was made unseen
def unseen_keys(device: DeviceRecording) -> Rows:
    """Storages that operators used, no recorded allocation made, and a walk right before the recording did not find.

    Another thread made them, or a library outside torch, such as numpy. One whose free the CPU's allocator reports was
    made in an earlier cycle: it reports no other. An accelerator's running total rises with each: where it does not,
    only C++ holds the storage, as the random state of cuDNN's dropout, and Python cannot reach it.
    """
    if device.walk_ns is None:
        return np.empty(0, np.int64)
    recording, keys = device.recording, keys_not_made(device)
    is_old = np.isin(recording.keys.address[keys], np.array(list(device.observed_before), np.int64))
    if device.is_cpu:
        freed = recording.allocations.allocation_id[recording.allocations.size_bytes < 0]
        is_old |= np.isin(recording.keys.allocation_id[keys], freed)
    else:
        is_old |= recording.keys.size_bytes[keys] > _largest_unseen_rise(device)
    return keys[~is_old]


def _largest_unseen_rise(device: DeviceRecording) -> int:
    """The most bytes by which an accelerator's running total rose between two recorded events."""
    allocations = device.recording.allocations
    reported = device.events[~allocations.assumed[device.events]]
    total = allocations.total_allocated_bytes[reported]
    return int((total[1:] - allocations.size_bytes[reported][1:] - total[:-1]).max(initial=0))


def _made_unseen(device: DeviceRecording) -> UnrecordedStorages:
    """Storages made unseen, once for each step that uses them: from the step's beginning until the last use in it.

    Neither their beginning nor their end is recorded; an input was seen to be let go. An address that is handed out
    again ends them too.
    """
    recording, keys, end = device.recording, unseen_keys(device), len(device.events)
    # When each step begins [steps + 1], of which what comes before the first is one, and the step of each node.
    step_starts = np.concatenate([[0], recording.step_starts_ns]).astype(np.int64)
    step_of_node = np.searchsorted(step_starts, recording.flow.node_time_ns, side="right") - 1
    edge = np.flatnonzero(np.isin(recording.flow.edge_key, keys))
    lives: dict[tuple[int, int], int] = {}
    for key, node in zip(recording.flow.edge_key[edge].tolist(), recording.flow.edge_node[edge].tolist(), strict=True):
        at = (key, int(step_of_node[node]))
        lives[at] = max(lives.get(at, -1), node)
    next_node_ns = np.append(recording.flow.node_time_ns[1:], _NEVER)
    released = _inputs_released(device)
    table = []
    for (key, step), last in sorted(lives.items()):
        ends = released.get(int(recording.keys.address[key]))
        last_ns = int(next_node_ns[last])
        if ends is not None:
            behind = bisect_right(ends, int(recording.flow.node_time_ns[last]))
            last_ns = ends[behind] if behind < len(ends) else _NEVER
        table.append((key, step_starts[step], last_ns))
    rows = np.array(table, np.int64)
    key, start_ns, end_ns = rows.reshape(-1, 3).T
    address, size_bytes = recording.keys.address[key], recording.keys.size_bytes[key]
    made_at = np.searchsorted(device.times_ns, start_ns, side="left")
    freed_at = np.searchsorted(device.times_ns, end_ns, side="left")
    freed_at = np.minimum(freed_at, _handed_out_again(device, address, size_bytes, made_at))
    freed_of = frees_of(device)
    recorded = [freed_of.get(number, end) for number in recording.keys.allocation_id[key].tolist()]
    freed_at = np.minimum(freed_at, np.array(recorded, np.int64))
    none = np.zeros(len(key), np.bool_)
    return UnrecordedStorages(address, size_bytes, key, made_at, np.maximum(freed_at, made_at), none)


def _inputs_released(device: DeviceRecording) -> dict[int, list[int]]:
    """Times at which inputs were let go, in order, by address; other addresses are left out."""
    known, rows, ends = device.known, device.observations, device.ends
    times: dict[int, list[int]] = {addr: [] for addr in known.address[rows[np.isin(known.role[rows], BATCH)]].tolist()}
    for addr, time_ns in zip(known.ends_address[ends].tolist(), known.ends_ns[ends].tolist(), strict=True):
        if addr in times:
            times[addr].append(time_ns)
    return times


def _handed_out_again(device: DeviceRecording, address: Ints, size_bytes: Ints, after: Ints) -> PerUnrecorded[Int]:
    """[U] position of the first allocation behind `after` that begins in each storage; one past the last if none."""
    allocations, events = device.recording.allocations, device.events
    allocated = np.flatnonzero(allocations.size_bytes[events] > 0)
    begin = allocations.address[events][allocated]
    order = np.lexsort((allocated, begin))
    low = np.searchsorted(begin[order], address, side="left")
    high = np.searchsorted(begin[order], address + size_bytes, side="left")
    reuse = np.full(len(address), len(events), np.int64)
    for row in np.flatnonzero(high > low).tolist():
        inside = allocated[order[low[row] : high[row]]]
        later = inside[inside > after[row]]
        if len(later):
            reuse[row] = later.min()
    return reuse


def reused_at(device: DeviceRecording, address: Ints, size_bytes: Ints) -> PerUnrecorded[Int]:
    """[U] position of the first allocation that overlaps each storage from before; one past the last if none."""
    allocations, events = device.recording.allocations, device.events
    allocated = np.flatnonzero(allocations.size_bytes[events] > 0)
    address_again, size_again = (column[events][allocated] for column in (allocations.address, allocations.size_bytes))
    died = np.full(len(address), len(events), np.int64)
    if not len(address) or not len(allocated):
        return died
    order = np.argsort(address, kind="stable")
    start, stop = address[order], (address + size_bytes)[order]
    row = np.arange(len(allocated))
    at = np.searchsorted(start, address_again + size_again, side="left") - 1
    while len(row):
        overlaps = (at >= 0) & (stop[at] > address_again[row])
        row, at = row[overlaps], at[overlaps]
        np.minimum.at(died, order[at], allocated[row])
        at = at - 1
    return died


def own_bytes(address: Ints, size_bytes: Ints) -> Ints:
    """Return the bytes of each piece of memory that lie in no piece which begins later: together, all bytes once.

    0 to 10, and within it 2 to 4 and 5 to 6: 7, 2, 1. Of pieces that begin at one address, the longer one has the rest.
    """
    order = np.lexsort((-size_bytes, address))
    start, stop = address[order], (address + size_bytes)[order]
    if not len(start) or (start[1:] >= np.maximum.accumulate(stop)[:-1]).all():
        return np.asarray(size_bytes, np.int64)
    own, innermost, row = [0] * len(start), list[int](), 0
    begins, ends = start.tolist(), stop.tolist()
    points = sorted({*begins, *ends})
    for point, following in pairwise(points):
        while row < len(begins) and begins[row] == point:
            heappush(innermost, -row)
            row += 1
        while innermost and ends[-innermost[0]] <= point:
            heappop(innermost)
        if innermost:
            own[-innermost[0]] += following - point
    result = np.empty(len(own), np.int64)
    result[order] = own
    return result
