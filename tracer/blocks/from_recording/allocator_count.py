"""Allocated bytes, counted without looking at blocks: the other side of the law that rows sum to the peak.

On an accelerator the allocator's own running total says it. The CPU's says what was made since the recording began,
less what it reports of other storages. It leaves out what other parts of torch map into memory (it reports a total of 0
with those), what was there before, and what was made by a thread that is not recorded; each of these is counted by
itself here. Of storages from before, the count goes by what a walk saw and by when weak references saw them go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.arrays import Bool, Int, PerEvent, in_use
from tracer.blocks.from_recording.observed_storages import DeviceRecording
from tracer.blocks.from_recording.unrecorded_storages import (
    UnrecordedStorages,
    keys_not_made,
    own_bytes,
    reused_at,
    unseen_keys,
)
from tracer.blocks.table import CountedParts
from tracer.capture.recording import Recording


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorCount:
    """After each of a device's events, columns [D]; the parts sum to the total."""

    # By torch's allocator: its running total; the CPU's, of what it gave out since the recording began.
    counter_bytes: PerEvent[Int]
    mapped_bytes: PerEvent[Int]  # Bytes of files and shared memory that torch mapped since then; the CPU only
    # Bytes of storages that were there before the recording, until they must be gone; the CPU only.
    before_bytes: PerEvent[Int]
    unseen_bytes: PerEvent[Int]  # Bytes of storages that were made where the profiler does not record; the CPU only
    is_walked: bool  # Whether all that Python could reach was looked at right before the recording
    # Bytes of that which an engine that sleeps has unmapped, so that they are not on the device; None for none.
    asleep_bytes: PerEvent[Int] | None = None

    @property
    def total_bytes(self) -> PerEvent[Int]:
        """[D] all of it that is on the device."""
        counted = self.counter_bytes + self.mapped_bytes + self.before_bytes + self.unseen_bytes
        return counted if self.asleep_bytes is None else counted - self.asleep_bytes

    def at(self, position: int) -> CountedParts:
        """The parts after one event."""
        return CountedParts(
            counter_bytes=int(self.counter_bytes[position]),
            mapped_bytes=int(self.mapped_bytes[position]),
            before_bytes=int(self.before_bytes[position]),
            unseen_bytes=int(self.unseen_bytes[position]),
            is_walked=self.is_walked,
            asleep_bytes=0 if self.asleep_bytes is None else int(self.asleep_bytes[position]),
        )


def allocator_count(device: DeviceRecording, unrecorded: UnrecordedStorages) -> AllocatorCount:
    """Count what was allocated after each event of one device.

    Source:
        `total_allocated` of the profiler's allocation events; c10/core/CPUAllocator.cpp (ProfiledCPUMemoryReporter),
        aten/src/ATen/MapAllocator.cpp.
    """
    recording, events, is_walked = device.recording, device.events, device.walk_ns is not None
    none = np.zeros(len(events), np.int64)
    if not device.is_cpu:
        return AllocatorCount(_running_total(recording, events), none, none, none, is_walked)
    mapped, foreign = match_counter_to_events(recording, events)
    size = recording.allocations.size_bytes[events]
    unseen = unrecorded.made_at >= 0
    return AllocatorCount(
        counter_bytes=_rise_of_the_counter(recording, events, mapped, foreign),
        mapped_bytes=np.cumsum(np.where(mapped & ~foreign, size, 0)),
        before_bytes=_before_bytes(device, foreign),
        unseen_bytes=in_use(
            unrecorded.size_bytes[unseen], unrecorded.made_at[unseen], unrecorded.freed_at[unseen], len(events)
        )[1:],
        is_walked=is_walked,
    )


def _running_total(recording: Recording, events: PerEvent[Int]) -> PerEvent[Int]:
    """[D] an absolute counter; an assumed free, which no allocator reported, leaves it as it was."""
    total, assumed = recording.allocations.total_allocated_bytes[events], recording.allocations.assumed[events]
    latest = np.maximum.accumulate(np.where(assumed, 0, np.arange(len(events))))
    return np.asarray(total[latest], np.int64) if len(events) else total


def match_counter_to_events(recording: Recording, events: PerEvent[Int]) -> tuple[PerEvent[Bool], PerEvent[Bool]]:
    """Follow the table of sizes of the CPU's reporter, event by event.

    The table is by address and outlives recordings; whatever happens between them leaves it as it is. So a free of an
    address at which this recording saw nothing made has the size that lay there in an earlier recording, and the
    counter drops by it, whatever is freed. A free of an address that is not in the table is not reported.

    Returns:
        [D] whether an event is of mapped memory: its total is 0 though something was just allocated, or still is; and
        whether it is a free of what this recording did not see being made.
    """
    allocations = recording.allocations
    total, size, address, is_assumed = (
        column[events].tolist()
        for column in (
            allocations.total_allocated_bytes,
            allocations.size_bytes,
            allocations.address,
            allocations.assumed,
        )
    )
    mapped, foreign = (np.zeros(len(events), np.bool_) for _ in range(2))
    is_mapped_at: dict[int, bool] = {}  # by address, whether it is mapped
    counted = 0  # the counter after the event before
    ahead = 0  # the next event that certainly is the allocator's, as far as one was looked for
    for event in range(len(events)):
        if size[event] > 0:
            is_mapped_at[address[event]] = mapped[event] = total[event] == 0
        else:
            maker = is_mapped_at.pop(address[event], None)
            if maker is False and event < ahead < len(events) and address[ahead] == address[event]:
                ahead = 0  # this free is assumed, so that it was no such event, and the one ahead frees something else
            foreign[event] = maker is None
            if maker is None:
                maker = total[event] == 0 and counted + size[event] != 0
                if total[event] == 0 and not maker:
                    # Where a foreign free of as many bytes as the counter has reports 0, what the counter had right
                    # before that next event alone tells whether it fell.
                    if ahead <= event:
                        ahead = _next_of_the_counter(event, total, size, address, is_assumed, is_mapped_at)
                    maker = ahead < len(events) and total[ahead] - size[ahead] == counted
            mapped[event] = maker
        if not mapped[event] and not is_assumed[event]:
            counted = total[event]
    return mapped, foreign


def _next_of_the_counter(
    event: int,
    total: Sequence[int],
    size: Sequence[int],
    address: Sequence[int],
    is_assumed: Sequence[bool],
    is_mapped_at: Mapping[int, bool],
) -> int:
    """The next event that certainly is of what the CPU's counter has; one past the last if there is none.

    Until it comes it is that of the events between too, unless what it frees is assumed to be free before.

    Args:
        is_mapped_at: What is there at each address, as far as it is known: whether it is mapped.
    """
    mapped_since: set[int] = set()
    for later in range(event + 1, len(total)):
        if is_assumed[later]:
            continue
        is_own = size[later] < 0 and address[later] not in mapped_since and is_mapped_at.get(address[later]) is False
        if total[later] != 0 or is_own:
            return later
        if size[later] > 0:
            mapped_since.add(address[later])
    return len(total)


def _rise_of_the_counter(
    recording: Recording, events: PerEvent[Int], mapped: PerEvent[Bool], foreign: PerEvent[Bool]
) -> PerEvent[Int]:
    """[D] what the CPU's counter has of what was made since the recording began.

    It may begin anywhere. An assumed free is put in, and frees of what was not made in this recording are taken out.
    """
    allocations = recording.allocations
    total, size, assumed = (
        column[events] for column in (allocations.total_allocated_bytes, allocations.size_bytes, allocations.assumed)
    )
    counted = np.flatnonzero(~assumed & ~mapped)
    put_in = np.cumsum(np.where(assumed & ~mapped, size, 0) - np.where(foreign & ~mapped, size, 0))
    if not len(counted):
        return put_in
    first = counted[0]
    start = total[first] - size[first]
    latest = np.full(len(events), -1, np.int64)
    latest[counted] = counted
    latest = np.maximum.accumulate(latest)
    return np.asarray(np.where(latest >= 0, total[latest] - start, 0) + put_in, np.int64)


def _before_bytes(device: DeviceRecording, foreign: PerEvent[Bool]) -> PerEvent[Int]:
    """[D] bytes of the storages from before the recording, until they are gone.

    They are those of the last walk, with the size and the end that Python saw, and what operators used or frees ended
    beside them.
    """
    recording, events, end = device.recording, device.events, len(device.events)
    allocations, keys = recording.allocations, recording.keys
    size_at = dict(device.observed_before)
    old = np.setdiff1d(keys_not_made(device), unseen_keys(device))
    for address, size_bytes in zip(keys.address[old].tolist(), keys.size_bytes[old].tolist(), strict=True):
        size_at.setdefault(address, size_bytes)
    frees = np.flatnonzero(foreign)
    reported: dict[int, int] = {}
    for position, event in zip(frees.tolist(), events[frees].tolist(), strict=True):
        address = int(allocations.address[event])
        size_at.setdefault(address, -int(allocations.size_bytes[event]))
        reported.setdefault(address, position)
    address, size_bytes = np.array(list(size_at), np.int64), np.array(list(size_at.values()), np.int64)
    size_bytes = own_bytes(address, size_bytes)
    ends = np.array([reported.get(place, end) for place in size_at], np.int64)
    # A free has an earlier recording's size: what is made inside of it before proves it smaller, and not yet gone.
    ends = np.where(ends < end, ends, reused_at(device, address, size_bytes))
    ends = np.minimum(ends, device.released_at(address))
    return in_use(size_bytes, np.full(len(address), -1, np.int64), ends, end)[1:]


def most_held_bytes(recordings: Sequence[Recording]) -> dict[str, int]:
    """The most that the allocator of each accelerator had handed out in some cycles, by name, largest first.

    The CPU is left out: its counter begins with the recording. So is an accelerator that gave back all that it held.
    """
    most_bytes: dict[str, int] = {}
    for recording in recordings:
        device, total = recording.allocations.device, recording.allocations.total_allocated_bytes
        for index, name in enumerate(recording.devices):
            most = int(total[device == index].max(initial=0))
            if name != "cpu" and most:
                most_bytes[name] = max(most_bytes.get(name, 0), most)
    return dict(sorted(most_bytes.items(), key=lambda item: (-item[1], item[0])))


def default_device(recordings: Sequence[Recording]) -> str:
    """The device that a person means when they name none: the accelerator that held most, else the CPU."""
    return next(iter(most_held_bytes(recordings)), "cpu")
