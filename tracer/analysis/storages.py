"""Every block of one device from its allocation to its free, those from before the recording included."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracer.capture.known_storages import KnownStorages, Role
from tracer.capture.recording import Recording

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# The caching allocator hands out multiples of this many bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
CUDA_ROUNDING_BYTES = 512


@dataclass(frozen=True, slots=True, eq=False)
class Storages:
    """Blocks of one device: those from before the recording first, then allocations in order. Columns [L].

    Attributes:
        device: Index in `Recording.devices`.
        size_bytes: [L]
        address: [L]
        allocation: [L] Row in `Recording.allocations`; -1 for what was there before.
        key: [L] Row in `Recording.keys`; -1 for what no operator saw as a tensor.
        made_at: [L] Position in `events`; -1 for what was there before.
        freed_at: [L] Position of the event that freed it, or with which it must have been freed; one past the last
            where it lives on.
        died_unseen: [L] There before, and freed without a record of it, as the CPU does: its address was handed out
            again, or it was a gradient that `zero_grad` let go of.
        observed_as: [L] The strongest observation of it, a row of `KnownStorages`, or -1.
        events: [D] The device's rows of `Recording.allocations`, in allocator order.
        level_bytes: [D] Bytes alive after each event.
        allocator_bytes: [D] The same from the allocator's running total, without looking at blocks.
    """

    device: int
    size_bytes: Ints
    address: Ints
    allocation: Ints
    key: Ints
    made_at: Ints
    freed_at: Ints
    died_unseen: Bools
    observed_as: Ints
    events: Ints
    level_bytes: Ints
    allocator_bytes: Ints

    def alive_at(self, position: int) -> Ints:
        """Rows alive after the event at this position; -1 is the beginning of the recording."""
        return np.flatnonzero((self.made_at <= position) & (self.freed_at > position))


def allocator_order(recording: Recording, device: int) -> Ints:
    """[D] rows of one device's allocations and frees, in the order in which its allocator served them.

    One thread's rows come in order. Those of several threads are merged by their nanoseconds; within one nanosecond
    the order of the event tree stays.
    """
    rows = np.flatnonzero(recording.allocations.device == device)
    return rows[np.argsort(recording.allocations.time_ns[rows], kind="stable")]


def follow_storages(recording: Recording, known: KnownStorages | None, device: int) -> Storages:
    """Follow every block of one device.

    Args:
        recording: One cycle.
        known: Objects that somebody held. What was observed last before the first event was there before it.
        device: Index in `Recording.devices`.
    """
    allocations = recording.allocations
    events = allocator_order(recording, device)
    size, number = allocations.size_bytes[events], allocations.allocation_id[events]
    end = len(events)
    made, freed = np.flatnonzero(size > 0), np.flatnonzero(size < 0)
    freed_of = dict(zip(number[freed].tolist(), freed.tolist(), strict=True))
    before = _before(recording, known, device, events)
    before_freed = np.array([freed_of.get(n, end) for n in before.number.tolist()], np.int64)
    made_address, made_size = allocations.address[events][made], size[made]
    died = _reused_at(before.address, before.size_bytes, made_address, made_size, made, end)
    died = np.minimum(died, _cleared_at(recording, known, device, events, before.address))
    unseen = died < before_freed
    before_freed = np.minimum(before_freed, died)
    none = np.full(len(before.address), -1, np.int64)

    all_size = np.concatenate([before.size_bytes, made_size])
    all_address = np.concatenate([before.address, made_address])
    made_at = np.concatenate([none, made])
    freed_at = np.concatenate([before_freed, np.array([freed_of.get(n, end) for n in number[made].tolist()], np.int64)])
    return Storages(
        device=device,
        size_bytes=all_size,
        address=all_address,
        allocation=np.concatenate([none, events[made]]),
        key=np.concatenate([before.key, allocations.key[events][made]]),
        made_at=made_at,
        freed_at=freed_at,
        died_unseen=np.concatenate([unseen, np.zeros(len(made), bool)]),
        observed_as=_observed(recording, known, device, events, all_address, made_at, freed_at),
        events=events,
        level_bytes=_levels(all_size, made_at, freed_at, end),
        allocator_bytes=_allocator_levels(recording, events, before.size_bytes, np.where(unseen, before_freed, end)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Before:
    """Blocks from before the recording, columns [P]; number is their allocation id, -1 where none was given."""

    address: Ints
    size_bytes: Ints
    key: Ints
    number: Ints


def _before(recording: Recording, known: KnownStorages | None, device: int, events: Ints) -> _Before:
    """What must have been there: tensors without an allocation, frees without one, and what was observed before."""
    allocations, keys = recording.allocations, recording.keys
    size, number = allocations.size_bytes[events], allocations.allocation_id[events]
    made = set(number[size > 0].tolist())
    by_address: dict[int, tuple[int, int, int]] = {}
    others: list[tuple[int, int, int, int]] = []
    made_keys = np.zeros(len(keys.id), bool)
    rows = allocations.key[(allocations.key >= 0) & (allocations.size_bytes > 0)]
    made_keys[rows] = True
    for key in np.flatnonzero((keys.device == device) & ~made_keys).tolist():
        entry = (int(keys.size_bytes[key]), key, int(keys.allocation_id[key]))
        by_address.setdefault(int(keys.address[key]), entry)
    for event in np.flatnonzero((size < 0) & (allocations.key[events] < 0)).tolist():
        if int(number[event]) not in made:
            others.append((int(allocations.address[events][event]), -int(size[event]), -1, int(number[event])))
    taken = {address for address, *_ in others}
    for address, size_bytes in _observed_before(recording, known, device, events).items():
        if address not in taken:
            seen = by_address.get(address, (0, -1, -1))
            by_address[address] = (max(size_bytes, seen[0]), *seen[1:])
    rounding = CUDA_ROUNDING_BYTES if recording.devices[device].startswith("cuda") else 1
    table = [(a, -(-n // rounding) * rounding, key, num) for a, (n, key, num) in by_address.items()] + others
    columns = np.array(table, np.int64).reshape(-1, 4).T
    return _Before(*(np.ascontiguousarray(column) for column in columns))


def _observed_before(recording: Recording, known: KnownStorages | None, device: int, events: Ints) -> dict[int, int]:
    """Address and size of what was observed last before the first event."""
    rows = _observations(recording, known, device)
    if known is None or not len(rows):
        return {}
    if len(events):
        rows = rows[known.time_ns[rows] <= recording.allocations.time_ns[events[0]]]
    if not len(rows):
        return {}
    last = rows[known.time_ns[rows] == known.time_ns[rows].max()]
    return dict(zip(known.address[last].tolist(), known.size_bytes[last].tolist(), strict=True))


def _observations(recording: Recording, known: KnownStorages | None, device: int) -> Ints:
    name = recording.devices[device]
    if known is None or name not in known.devices:
        return np.empty(0, np.int64)
    return np.flatnonzero(known.device == known.devices.index(name))


def _reused_at(address: Ints, size_bytes: Ints, made_address: Ints, made_size: Ints, made: Ints, end: int) -> Ints:
    """[P] position of the first allocation that overlaps each block from before; `end` where none does."""
    died = np.full(len(address), end, np.int64)
    if not len(address) or not len(made):
        return died
    order = np.argsort(address, kind="stable")
    start, stop = address[order], (address + size_bytes)[order]
    row = np.arange(len(made))
    at = np.searchsorted(start, made_address + made_size, side="left") - 1
    while len(row):
        overlaps = (at >= 0) & (stop[at] > made_address[row])
        row, at = row[overlaps], at[overlaps]
        np.minimum.at(died, order[at], made[row])
        at = at - 1
    return died


def _cleared_at(recording: Recording, known: KnownStorages | None, device: int, events: Ints, address: Ints) -> Ints:
    """[P] position by which `zero_grad` had let go of a gradient from before; past the last for everything else.

    A parameter whose gradient was at one address before the recording and is at another one later has lost the first:
    a gradient is only made anew where there is none. The first `zero_grad` after the beginning is where it went.
    """
    end = len(events)
    cleared = np.full(len(address), end, np.int64)
    rows = _observations(recording, known, device)
    calls = _zero_grad_ends(recording)
    if known is None or not len(rows) or not len(calls) or not end:
        return cleared
    times = recording.allocations.time_ns[events]
    gradients = rows[known.role[rows] == Role.GRADIENT]
    later = gradients[known.time_ns[gradients] > calls[0]]
    moved_to: dict[int, set[int]] = {}
    for name, place in zip(known.name[later].tolist(), known.address[later].tolist(), strict=True):
        moved_to.setdefault(name, set()).add(place)
    earlier = known.time_ns[rows[known.time_ns[rows] <= times[0]]]
    before = gradients[known.time_ns[gradients] == earlier.max(initial=-1)]
    gone = {
        place
        for name, place in zip(known.name[before].tolist(), known.address[before].tolist(), strict=True)
        if name in moved_to and place not in moved_to[name]
    }
    mine = np.array([place in gone for place in address.tolist()], bool)
    cleared[mine] = np.searchsorted(times, calls[0], side="right")
    return cleared


def _zero_grad_ends(recording: Recording) -> Ints:
    """Ends of the calls of `zero_grad` of optimizers and modules, in order."""
    frames, calls = recording.frames, recording.calls
    called = [
        row for row, function in enumerate(frames.function.tolist()) if recording.strings[function] == "zero_grad"
    ]
    return np.sort(calls.end_ns[np.isin(calls.function, np.array(called, np.int64))])


def _levels(size: Ints, made_at: Ints, freed_at: Ints, end: int) -> Ints:
    """[D] bytes alive after each event."""
    change = np.zeros(end + 2, np.int64)
    np.add.at(change, made_at + 1, size)
    np.add.at(change, freed_at + 1, -size)
    return np.asarray(np.cumsum(change)[1 : end + 1], np.int64)


def _allocator_levels(recording: Recording, events: Ints, before_bytes: Ints, died_unseen_at: Ints) -> Ints:
    """[D] what the allocator says is in use after each event.

    CUDA's counter is absolute. The CPU's counts from the first recording on and knows nothing of what was there
    before, so that is added, until it must have been freed unseen. A free that nobody recorded is missing from the
    CPU's counter and is put in.

    Source:
        `total_allocated` of the profiler's allocation events.
    """
    allocations = recording.allocations
    if not len(events):
        return np.empty(0, np.int64)
    total, size = allocations.total_allocated_bytes[events], allocations.size_bytes[events]
    assumed = allocations.assumed[events]
    if recording.devices[int(allocations.device[events[0]])] != "cpu":
        return total
    reported = np.flatnonzero(~assumed)
    first = reported[0]
    rise = np.zeros(len(events), np.int64)
    rise[reported] = total[reported] - (total[first] - size[first])
    # An assumed free shows the counter as it was before it.
    latest = np.maximum.accumulate(np.where(assumed, 0, np.arange(len(events))))
    rise = rise[latest] + np.cumsum(np.where(assumed, size, 0))
    alive = np.zeros(len(events) + 2, np.int64)
    alive[0] = before_bytes.sum()
    np.add.at(alive, died_unseen_at + 1, -before_bytes)
    return np.asarray(rise + np.cumsum(alive)[1 : len(events) + 1], np.int64)


def _observed(
    recording: Recording,
    known: KnownStorages | None,
    device: int,
    events: Ints,
    address: Ints,
    made_at: Ints,
    freed_at: Ints,
) -> Ints:
    """[L] the strongest observation of each block: the one alive at the address when it was looked at."""
    observed = np.full(len(address), -1, np.int64)
    rows = _observations(recording, known, device)
    if known is None or not len(rows):
        return observed
    position = np.searchsorted(recording.allocations.time_ns[events], known.time_ns[rows], side="right") - 1
    wanted = set(known.address[rows].tolist())
    blocks: dict[int, list[int]] = {}
    for block, place in enumerate(address.tolist()):
        if place in wanted:
            blocks.setdefault(place, []).append(block)
    role = known.role.tolist()
    made, freed = made_at.tolist(), freed_at.tolist()
    for row, place, now in zip(rows.tolist(), known.address[rows].tolist(), position.tolist(), strict=True):
        # Blocks of one address follow each other, so only the last one made by now can be alive.
        candidates = blocks.get(place, [])
        at = bisect_right(candidates, now, key=made.__getitem__) - 1
        if at >= 0 and now < freed[candidates[at]]:
            block = candidates[at]
            if observed[block] < 0 or role[row] < role[observed[block]]:
                observed[block] = row
    return observed
