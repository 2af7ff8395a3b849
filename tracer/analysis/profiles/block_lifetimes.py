"""Every block of one device from its allocation to its free, also those whose allocation was not recorded."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from tracer.analysis.profiles.allocator_count import AllocatorCount, allocator_count
from tracer.analysis.profiles.allocator_order import allocator_order
from tracer.analysis.profiles.unrecorded_storages import observations_of, unrecorded_storages
from tracer.arrays import Bool, Int, PerBlock, PerEvent, Rows
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.recording import Recording


@dataclass(frozen=True, slots=True, eq=False)
class BlockLifetimes:
    """Blocks of one device: those whose allocation was not recorded first, then allocations in order. Columns [B].

    Attributes:
        device: Index in `Recording.devices`.
        size_bytes: [B]
        address: [B]
        allocation: [B] Row in `Recording.allocations`; -1 for what was not seen being made.
        key: [B] Row in `Recording.keys`; -1 for what no operator saw as a tensor.
        made_at: [B] Position in `events`; -1 for what was there before. Of what was made unseen, the first event of the
            step in which it was used.
        freed_at: [B] Position of the recorded or inferred free in `events`; `len(events)` if still live.
        died_unseen: [B] There before, and freed without a record of it, as the CPU does: its address was handed out
            again, or it was a gradient that `zero_grad` let go of.
        observed_as: [B] The strongest observation of it, a row of `KnownStorages`, or -1.
        events: [D] The device's rows of `Recording.allocations`, in allocator order.
        count: The same as others count it, without looking at these blocks.
    """

    device: int
    size_bytes: PerBlock[Int]
    address: PerBlock[Int]
    allocation: PerBlock[Int]
    key: PerBlock[Int]
    made_at: PerBlock[Int]
    freed_at: PerBlock[Int]
    died_unseen: PerBlock[Bool]
    observed_as: PerBlock[Int]
    events: PerEvent[Int]
    count: AllocatorCount

    @property
    def allocator_bytes(self) -> PerEvent[Int]:
        """[D] what is allocated after each event by the count."""
        return self.count.total_bytes

    @property
    def made_unseen(self) -> PerBlock[Bool]:
        """[B] made during the recording, where the profiler does not record."""
        return np.asarray((self.allocation < 0) & (self.made_at >= 0), np.bool_)

    def alive_at(self, position: int) -> Rows:
        """Rows alive after the event at this position; -1 is the beginning of the recording."""
        return np.flatnonzero((self.made_at <= position) & (self.freed_at > position))


def follow_blocks(recording: Recording, known: KnownStorages | None, device: int) -> BlockLifetimes:
    """Follow every block of one device.

    Args:
        recording: One cycle.
        known: Observations. What was observed last before the first event was there before it.
        device: Index in `Recording.devices`.
    """
    allocations = recording.allocations
    events = allocator_order(recording, device)
    size, number = allocations.size_bytes[events], allocations.allocation_id[events]
    end = len(events)
    made, freed = np.flatnonzero(size > 0), np.flatnonzero(size < 0)
    freed_of = dict(zip(number[freed].tolist(), freed.tolist(), strict=True))
    others = unrecorded_storages(recording, known, device, events)
    none = np.full(len(others.address), -1, np.int64)

    all_size = np.concatenate([others.size_bytes, size[made]])
    all_address = np.concatenate([others.address, allocations.address[events][made]])
    made_at = np.concatenate([others.made_at, made])
    freed_at = np.concatenate(
        [others.freed_at, np.array([freed_of.get(n, end) for n in number[made].tolist()], np.int64)]
    )
    return BlockLifetimes(
        device=device,
        size_bytes=all_size,
        address=all_address,
        allocation=np.concatenate([none, events[made]]),
        key=np.concatenate([others.key, allocations.key[events][made]]),
        made_at=made_at,
        freed_at=freed_at,
        died_unseen=np.concatenate([others.died_unseen, np.zeros(len(made), bool)]),
        observed_as=_observed(recording, known, device, events, all_address, made_at, freed_at),
        events=events,
        count=allocator_count(recording, known, device, events, others),
    )


def _observed(
    recording: Recording,
    known: KnownStorages | None,
    device: int,
    events: PerEvent[Int],
    address: PerBlock[Int],
    made_at: PerBlock[Int],
    freed_at: PerBlock[Int],
) -> PerBlock[Int]:
    """[B] the strongest observation of each block: the one alive at the address when it was looked at.

    That a tensor is reachable from Python says that it is there, and not what it is.
    """
    observed = np.full(len(address), -1, np.int64)
    rows = observations_of(recording, known, device)
    if known is None or not len(rows := rows[known.role[rows] != Role.HELD]):
        return observed
    position = np.searchsorted(recording.allocations.time_ns[events], known.time_ns[rows], side="right") - 1
    wanted = set(known.address[rows].tolist())
    blocks: dict[int, list[int]] = {}
    for block, addr in enumerate(address.tolist()):
        if addr in wanted:
            blocks.setdefault(addr, []).append(block)
    role = known.role.tolist()
    made, freed = made_at.tolist(), freed_at.tolist()
    for row, addr, now in zip(rows.tolist(), known.address[rows].tolist(), position.tolist(), strict=True):
        # Blocks of one address follow each other, so only the last one made by now can be alive.
        candidates = blocks.get(addr, [])
        at = bisect_right(candidates, now, key=made.__getitem__) - 1
        if at >= 0 and now < freed[candidates[at]]:
            block = candidates[at]
            if observed[block] < 0 or role[row] < role[observed[block]]:
                observed[block] = row
    return observed
