"""One device's part of a recording, with the observations of live tensors that concern it.

An address proves something only for the life of the storage that was seen at it. So a cycle's own looks count, from the
walk right before it to the look at its end: at an earlier or later one, others may have lain at the same addresses.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

import numpy as np

from tracer.arrays import Bools, Int, Ints, PerBlock, PerEvent, PerUnrecorded, Rows
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.recording import Recording
from tracer.capture.torch_names import STEP_PREFIX

_FOREVER = int(np.iinfo(np.int64).max)


class DeviceRecording:
    """One device's events, and which observations of live tensors concern them."""

    def __init__(self, recording: Recording, known: KnownStorages | None, device: int) -> None:
        self.recording, self.index = recording, device  # Index in `Recording.devices`
        self.known = KnownStorages.empty() if known is None else known
        # [D] Rows of `Recording.allocations` in the order in which the device's allocator served them. One thread's
        # come in order; of several threads they are merged by their nanoseconds, and within one the tree's order stays.
        rows = np.flatnonzero(recording.allocations.device == device)
        self.events: PerEvent[Int] = rows[np.argsort(recording.allocations.time_ns[rows], kind="stable")]
        name = recording.devices[device]
        self.is_cpu = name == "cpu"
        self._known_index = self.known.devices.index(name) if name in self.known.devices else -1

    @cached_property
    def observations(self) -> Rows:
        """Rows of `KnownStorages` on the device, in any cycle."""
        return np.flatnonzero((self.known.device == self._known_index) & (self.known.role != Role.IDLE))

    @property
    def ends(self) -> Rows:
        """[Z] rows of the ends of storages on the device."""
        return np.flatnonzero(self.known.ends_device == self._known_index)

    @property
    def asleep(self) -> Rows:
        """[Y] rows of the pieces of the device that were unmapped."""
        return np.flatnonzero(self.known.asleep_device == self._known_index)

    @cached_property
    def times_ns(self) -> PerEvent[Int]:
        """[D] time of each event."""
        return np.asarray(self.recording.allocations.time_ns[self.events], np.int64)

    @property
    def _first_ns(self) -> int:
        return int(self.times_ns[0]) if len(self.events) else _FOREVER

    @cached_property
    def walk_ns(self) -> int | None:
        """Time of the last walk over all reachable objects before the first event; None without a walk."""
        walks = self.known.walks_ns[self.known.walks_ns <= self._first_ns]
        return int(walks.max()) if len(walks) else None

    @property
    def _since_ns(self) -> int:
        """The last walk before the first event, or else the last look."""
        if self.walk_ns is not None:
            return self.walk_ns
        time_ns = self.known.time_ns[self.observations]
        return int(time_ns[time_ns <= self._first_ns].max(initial=0))

    @cached_property
    def observations_within(self) -> Rows:
        """Rows of `KnownStorages` on the device from the last look before the recording to the first one after it.

        Whoever looks finds something on some device: a session has a model or an optimizer.
        """
        known, rows, recording = self.known, self.observations, self.recording
        # The end of the last step, or of the last event where no step ended.
        ends = recording.spans.end_ns[recording.spans_named(STEP_PREFIX)]
        last_ns = max(int(recording.allocations.time_ns.max(initial=0)), int(ends.max(initial=0)))
        until = int(known.time_ns[known.time_ns >= last_ns].min(initial=_FOREVER))
        time_ns = known.time_ns[rows]
        return rows[(time_ns >= self._since_ns) & (time_ns <= until)]

    @cached_property
    def observations_before(self) -> Rows:
        """Rows of `observations_within` from before the first event."""
        rows = self.observations_within
        return rows[self.known.time_ns[rows] <= self._first_ns]

    @cached_property
    def observed_before(self) -> dict[int, int]:
        """Address and size of all that was observed in the last walk before the first event, or after it until then.

        Without a walk, of what was observed last before the first event.
        """
        rows = self.observations_before
        return dict(zip(self.known.address[rows].tolist(), self.known.size_bytes[rows].tolist(), strict=True))

    def is_idle(self, address: Ints) -> Bools:
        """Return True for each address that lay in free memory when last observed before the cycle.

        Tensors that CUDA graphs leave behind lie in unused memory of a private pool, others of the CPU in a mapped
        file; operators use both.
        """
        known, time_ns = self.known, self.known.time_ns
        is_piece = (known.device == self._known_index) & (known.role == Role.IDLE)
        pieces = np.flatnonzero(is_piece & (time_ns >= self._since_ns) & (time_ns <= self._first_ns))
        pieces = pieces[known.time_ns[pieces] == known.time_ns[pieces].max(initial=0)]
        order = np.argsort(known.address[pieces])
        begin = known.address[pieces][order]
        end = begin + known.size_bytes[pieces][order]
        place = np.searchsorted(begin, address, side="right") - 1
        inside = place >= 0
        inside[inside] = address[inside] < end[place[inside]]
        return inside

    def released_at(self, address: PerUnrecorded[Int]) -> PerUnrecorded[Int]:
        """[U] position of the first event after a storage found by a walk was seen to go; past the last if none."""
        known = self.known
        position = np.full(len(address), len(self.events), np.int64)
        if self.walk_ns is None:
            return position
        ends = self.ends[known.ends_ns[self.ends] >= self.walk_ns]
        first: dict[int, int] = {}
        for addr, time_ns in zip(known.ends_address[ends].tolist(), known.ends_ns[ends].tolist(), strict=True):
            first.setdefault(addr, time_ns)
        for row, addr in enumerate(address.tolist()):
            if addr in first:
                position[row] = np.searchsorted(self.times_ns, first[addr], side="left")
        return position

    def observed_as(self, address: PerBlock[Int], made_at: PerBlock[Int], freed_at: PerBlock[Int]) -> PerBlock[Int]:
        """[B] the strongest observation of each block: the one alive at the address when it was looked at.

        That a tensor is reachable from Python says that it is there, and not what it is.

        Args:
            made_at: [B] Position in `events` at which it was made; -1 before them.
            freed_at: [B] Position in `events` at which it was freed; their number if it never was.
        """
        known, rows = self.known, self.observations_within
        observed = np.full(len(address), -1, np.int64)
        rows = rows[~np.isin(known.role[rows], (Role.HELD, Role.BUCKET))]
        position = np.searchsorted(self.times_ns, known.time_ns[rows], side="right") - 1
        wanted = set(known.address[rows].tolist())
        blocks: dict[int, list[int]] = {}
        for block, addr in enumerate(address.tolist()):
            if addr in wanted:
                blocks.setdefault(addr, []).append(block)
        role = known.role.tolist()
        begins, freed = made_at.tolist(), freed_at.tolist()
        for row, addr, now in zip(rows.tolist(), known.address[rows].tolist(), position.tolist(), strict=True):
            # Blocks of one address follow each other, so only the last one made by now can be alive.
            candidates = blocks.get(addr, [])
            at = bisect_right(candidates, now, key=begins.__getitem__) - 1
            if at >= 0 and now < freed[candidates[at]]:
                block = candidates[at]
                if observed[block] < 0 or role[row] < role[observed[block]]:
                    observed[block] = row
        return observed
