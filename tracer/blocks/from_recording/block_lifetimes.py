"""Every block of one device from its allocation to its free, also those whose allocation was not recorded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracer.arrays import Bool, Bools, Int, Ints, PerBlock, PerEvent, Rows, in_use
from tracer.blocks.from_recording.allocator_count import AllocatorCount, allocator_count
from tracer.blocks.from_recording.observed_storages import DeviceRecording
from tracer.blocks.from_recording.unrecorded_storages import frees_of, unrecorded_storages
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.recording import Recording


@dataclass(frozen=True, slots=True, eq=False)
class AsleepPieces:
    """Pieces of memory that torch counts and that an engine has unmapped for some events, as it sleeps. Columns [Y]."""

    address: Ints  # [Y]
    size_bytes: Ints  # [Y]
    begins_at: Ints  # [Y] Position in `BlockLifetimes.events` of the first event in which it is unmapped
    ends_at: Ints  # [Y] Position of the first event behind that

    def bytes_at(self, position: int) -> int:
        """Bytes that are unmapped after the event at this position."""
        return int(self.size_bytes[self._at(position)].sum())

    def have(self, address: Ints, position: int) -> Bools:
        """Mark addresses in a piece that is unmapped after the event at this position."""
        asleep = self._at(position)
        asleep = asleep[np.argsort(self.address[asleep])]
        if not len(asleep):
            return np.zeros(len(address), np.bool_)
        piece = asleep[np.maximum(np.searchsorted(self.address[asleep], address, side="right") - 1, 0)]
        return np.asarray((address >= self.address[piece]) & (address < self.address[piece] + self.size_bytes[piece]))

    def _at(self, position: int) -> Rows:
        return np.flatnonzero((self.begins_at <= position) & (self.ends_at > position))

    def awake(self, address: Ints, made_at: Ints, freed_at: Ints) -> tuple[Rows, Ints, Ints]:
        """Return the spans of events in which blocks are on the device: row of the block, begin and end [spans].

        `made=2, freed=9`, unmapped from 4 to 6: 2 to 4 and 6 to 9.
        """
        row, asleep, awake = self.spans(address, made_at, freed_at)
        rows = np.arange(len(address))
        begins, ends = np.concatenate([made_at, awake]), np.concatenate([freed_at, asleep])
        of_span = np.concatenate([rows, row])
        by_begin, by_end = np.lexsort((begins, of_span)), np.lexsort((ends, of_span))
        begins, ends = begins[by_begin], ends[by_end]
        is_there = begins < ends
        return of_span[by_begin][is_there], begins[is_there], ends[is_there]

    def spans(self, address: Ints, made_at: Ints, freed_at: Ints) -> tuple[Rows, Ints, Ints]:
        """Return the spans of events in which blocks are unmapped: row of the block, begin and end [spans]."""
        order = np.argsort(address, kind="stable")
        first = np.searchsorted(address[order], self.address)
        count = np.searchsorted(address[order], self.address + self.size_bytes) - first
        piece = np.repeat(np.arange(len(count)), count)
        row = order[np.repeat(first, count) + np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count)]
        begin, end = np.maximum(made_at[row], self.begins_at[piece]), np.minimum(freed_at[row], self.ends_at[piece])
        is_asleep = begin < end
        return row[is_asleep], begin[is_asleep], end[is_asleep]


@dataclass(frozen=True, slots=True, eq=False)
class BlockLifetimes:
    """Blocks of one device: those whose allocation was not recorded first, then allocations in order. Columns [B]."""

    device: int  # Index in `Recording.devices`
    size_bytes: PerBlock[Int]  # [B]
    address: PerBlock[Int]  # [B]
    allocation: PerBlock[Int]  # [B] Row in `Recording.allocations`; -1 for what was not seen being made
    key: PerBlock[Int]  # [B] Row in `Recording.keys`; -1 for what no operator saw as a tensor
    # [B] Position in `events`; -1 for what was there before. Of what was made unseen, the first event of the step in
    # which it was used.
    made_at: PerBlock[Int]
    freed_at: PerBlock[Int]  # [B] Position of the recorded or inferred free in `events`; `len(events)` if still live
    # [B] There before, and freed without a record of it, as the CPU does: it was seen to go, or its address was handed
    # out again.
    died_unseen: PerBlock[Bool]
    observed_as: PerBlock[Int]  # [B] The strongest observation of it, a row of `KnownStorages`, or -1
    events: PerEvent[Int]  # [D] The device's rows of `Recording.allocations`, in allocator order
    count: AllocatorCount  # The same as others count it, without looking at these blocks
    asleep: AsleepPieces  # What of them is not on the device

    @property
    def allocator_bytes(self) -> PerEvent[Int]:
        """[D] what is allocated after each event by the count."""
        return self.count.total_bytes

    @property
    def made_unseen(self) -> PerBlock[Bool]:
        """[B] made during the recording, where the profiler does not record."""
        return np.asarray((self.allocation < 0) & (self.made_at >= 0), np.bool_)

    def alive_at(self, position: int) -> Rows:
        """Rows on the device after the event at this position; -1 is the beginning of the recording."""
        rows = self.counted_at(position)
        return rows[~self.asleep.have(self.address[rows], position)]

    def counted_at(self, position: int) -> Rows:
        """Rows of `alive_at` and of the blocks that are unmapped then, as torch counts them."""
        return np.flatnonzero((self.made_at <= position) & (self.freed_at > position))


def follow_blocks(recording: Recording, known: KnownStorages | None, device: int) -> BlockLifetimes:
    """Follow every block of one device.

    Args:
        known: Observations. What was observed last before the first event was there before it.
    """
    on_device = DeviceRecording(recording, known, device)
    allocations, events, end = recording.allocations, on_device.events, len(on_device.events)
    size, number = allocations.size_bytes[events], allocations.allocation_id[events]
    allocated, freed_of = np.flatnonzero(size > 0), frees_of(on_device)
    others = unrecorded_storages(on_device)
    none = np.full(len(others.address), -1, np.int64)

    all_size = np.concatenate([others.size_bytes, size[allocated]])
    all_address = np.concatenate([others.address, allocations.address[events][allocated]])
    made_at = np.concatenate([others.made_at, allocated])
    freed_at = np.concatenate(
        [others.freed_at, np.array([freed_of.get(n, end) for n in number[allocated].tolist()], np.int64)]
    )
    asleep = _asleep_pieces(on_device)
    count = allocator_count(on_device, others)
    if len(asleep.address):
        row, begins_at, ends_at = asleep.spans(all_address, made_at, freed_at)
        count = replace(count, asleep_bytes=in_use(all_size[row], begins_at, ends_at, end)[1:])
    return BlockLifetimes(
        device=device,
        size_bytes=all_size,
        address=all_address,
        allocation=np.concatenate([none, events[allocated]]),
        key=np.concatenate([others.key, allocations.key[events][allocated]]),
        made_at=made_at,
        freed_at=freed_at,
        died_unseen=np.concatenate([others.died_unseen, np.zeros(len(allocated), bool)]),
        observed_as=on_device.observed_as(all_address, made_at, freed_at),
        events=events,
        count=count,
        asleep=asleep,
    )


def _asleep_pieces(device: DeviceRecording) -> AsleepPieces:
    """Return the pieces of a device; no memory is handed out while an engine goes to sleep or wakes up."""
    known, rows = device.known, device.asleep
    times_ns = np.maximum.accumulate(device.times_ns) if len(device.events) else device.times_ns
    begins_at, ends_at = (
        np.searchsorted(times_ns, column[rows], side="right") for column in (known.asleep_ns, known.awake_ns)
    )
    return AsleepPieces(known.asleep_address[rows], known.asleep_size_bytes[rows], begins_at, ends_at)
