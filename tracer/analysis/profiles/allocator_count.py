"""What was allocated, counted without looking at blocks: the other side of the law that rows sum to the peak.

On an accelerator the allocator's own running total says it. The CPU's begins with the recording, leaves out what other
parts of torch map into memory (it reports a total of 0 with those), and knows nothing of what was there before or was
made by a thread that is not recorded; each of these is counted by itself here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.profiles.allocator_order import alive_bytes
from tracer.analysis.profiles.unrecorded_storages import (
    UnrecordedStorages,
    ends_unseen,
    keys_not_made,
    last_walk_ns,
    observed_before,
    unseen_keys,
)
from tracer.arrays import Bool, Int, PerEvent
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.recording import Recording


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorCount:
    """After each of a device's events, columns [D]; the parts sum to the total.

    Attributes:
        counter_bytes: By torch's allocator: its running total, on the CPU since the recording began.
        mapped_bytes: In files and shared memory that torch mapped since then; the CPU only.
        before_bytes: In storages that were there before the recording, until they must be gone; the CPU only.
        unseen_bytes: In storages that were made where the profiler does not record; the CPU only.
        is_walked: Whether all that Python could reach was looked at right before the recording.
    """

    counter_bytes: PerEvent[Int]
    mapped_bytes: PerEvent[Int]
    before_bytes: PerEvent[Int]
    unseen_bytes: PerEvent[Int]
    is_walked: bool

    @property
    def total_bytes(self) -> PerEvent[Int]:
        """[D] all of it."""
        return self.counter_bytes + self.mapped_bytes + self.before_bytes + self.unseen_bytes

    def at(self, position: int) -> CountedParts:
        """The parts after one event."""
        return CountedParts(
            counter_bytes=int(self.counter_bytes[position]),
            mapped_bytes=int(self.mapped_bytes[position]),
            before_bytes=int(self.before_bytes[position]),
            unseen_bytes=int(self.unseen_bytes[position]),
            is_walked=self.is_walked,
        )


@dataclass(frozen=True, slots=True)
class CountedParts:
    """One row of `AllocatorCount`."""

    counter_bytes: int
    mapped_bytes: int
    before_bytes: int
    unseen_bytes: int
    is_walked: bool


def allocator_count(
    recording: Recording,
    known: KnownStorages | None,
    device: int,
    events: PerEvent[Int],
    unrecorded: UnrecordedStorages,
) -> AllocatorCount:
    """Count what was allocated after each event of one device.

    Args:
        recording: One cycle.
        known: Observations.
        device: Index in `Recording.devices`.
        events: [D] The device's events in allocator order.
        unrecorded: Of the same device; of what was made unseen only operators tell.

    Source:
        `total_allocated` of the profiler's allocation events; c10/core/CPUAllocator.cpp (ProfiledCPUMemoryReporter),
        aten/src/ATen/MapAllocator.cpp.
    """
    none = np.zeros(len(events), np.int64)
    is_walked = last_walk_ns(recording, known, events) is not None
    if recording.devices[device] != "cpu":
        return AllocatorCount(_running_total(recording, events), none, none, none, is_walked)
    mapped = _is_mapped(recording, events)
    size = recording.allocations.size_bytes[events]
    unseen = unrecorded.made_at >= 0
    return AllocatorCount(
        counter_bytes=_rise_of_the_counter(recording, events, mapped),
        mapped_bytes=np.cumsum(np.where(mapped, size, 0)),
        before_bytes=_before_bytes(recording, known, device, events),
        unseen_bytes=alive_bytes(
            unrecorded.size_bytes[unseen], unrecorded.made_at[unseen], unrecorded.freed_at[unseen], len(events)
        ),
        is_walked=is_walked,
    )


def _running_total(recording: Recording, events: PerEvent[Int]) -> PerEvent[Int]:
    """[D] an absolute counter; an assumed free, which no allocator reported, leaves it as it was."""
    total, assumed = recording.allocations.total_allocated_bytes[events], recording.allocations.assumed[events]
    latest = np.maximum.accumulate(np.where(assumed, 0, np.arange(len(events))))
    return np.asarray(total[latest], np.int64) if len(events) else total


def _is_mapped(recording: Recording, events: PerEvent[Int]) -> PerEvent[Bool]:
    """[D] whether an event is of mapped memory: its total is 0 though something was just allocated, or still is."""
    allocations = recording.allocations
    total, size = allocations.total_allocated_bytes[events], allocations.size_bytes[events]
    number, assumed = allocations.allocation_id[events], allocations.assumed[events]
    mapped = (size > 0) & (total == 0) & ~assumed
    made_mapped = set(number[mapped].tolist())
    made_counted = set(number[(size > 0) & ~mapped].tolist())
    counted = 0  # the counter after the event before
    for event in range(len(events)):
        if assumed[event] or mapped[event]:
            continue
        if size[event] < 0 and total[event] == 0:
            one = int(number[event])
            unknown = one not in made_counted and counted + size[event] != 0
            mapped[event] = one in made_mapped or unknown
        if not mapped[event]:
            counted = int(total[event])
    return np.asarray(mapped, np.bool_)


def _rise_of_the_counter(recording: Recording, events: PerEvent[Int], mapped: PerEvent[Bool]) -> PerEvent[Int]:
    """[D] how much the CPU's counter has risen; it may begin anywhere, and an assumed free is put in."""
    allocations = recording.allocations
    total, size, assumed = (
        column[events] for column in (allocations.total_allocated_bytes, allocations.size_bytes, allocations.assumed)
    )
    counted = np.flatnonzero(~assumed & ~mapped)
    put_in = np.cumsum(np.where(assumed, size, 0))
    if not len(counted):
        return put_in
    first = counted[0]
    start = total[first] - size[first]
    latest = np.full(len(events), -1, np.int64)
    latest[counted] = counted
    latest = np.maximum.accumulate(latest)
    return np.asarray(np.where(latest >= 0, total[latest] - start, 0) + put_in, np.int64)


def _before_bytes(
    recording: Recording, known: KnownStorages | None, device: int, events: PerEvent[Int]
) -> PerEvent[Int]:
    """[D] bytes of the distinct addresses that were taken before the recording, until they must be gone.

    A free of one that the CPU's allocator reports is in its counter, but with the size that the address had when it was
    last handed out in a recording; what that is off by is put right here.
    """
    allocations, keys, end = recording.allocations, recording.keys, len(events)
    taken = dict(observed_before(recording, known, device, events))
    old = np.setdiff1d(keys_not_made(recording, device), unseen_keys(recording, known, device, events))
    for address, size_bytes in zip(keys.address[old].tolist(), keys.size_bytes[old].tolist(), strict=True):
        taken[address] = max(taken.get(address, 0), size_bytes)
    size, number, address = (
        column[events].tolist() for column in (allocations.size_bytes, allocations.allocation_id, allocations.address)
    )
    made = {one for one, bytes_ in zip(number, size, strict=True) if bytes_ > 0}
    freed: dict[int, int] = {}
    for position in range(end):
        if size[position] < 0 and number[position] not in made:
            taken.setdefault(address[position], -size[position])
            freed.setdefault(address[position], position)
    addresses = np.array(list(taken), np.int64)
    size_bytes = np.array(list(taken.values()), np.int64)
    unseen_ends = ends_unseen(recording, known, device, events, addresses, size_bytes)
    recorded = np.array([freed.get(addr, end) for addr in taken], np.int64)
    is_recorded = recorded <= np.minimum(unseen_ends, end - 1)
    reported = np.array([-size[freed[addr]] if addr in freed else 0 for addr in taken], np.int64)
    level = alive_bytes(size_bytes, np.full(len(addresses), -1, np.int64), np.where(is_recorded, end, unseen_ends), end)
    wrong_by = (size_bytes - reported)[is_recorded]
    return level - alive_bytes(wrong_by, recorded[is_recorded], np.full(len(wrong_by), end, np.int64), end)
