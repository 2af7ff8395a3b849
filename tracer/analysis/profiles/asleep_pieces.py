"""Memory that torch counts and that an engine has unmapped while it sleeps, beside the events of a recording."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.profiles.observed_storages import DeviceRecording
from tracer.arrays import Bools, Ints, Rows


@dataclass(frozen=True, slots=True, eq=False)
class AsleepPieces:
    """Pieces of memory that torch counts and that are not on the device for some events. Columns [Y]."""

    address: Ints  # [Y]
    size_bytes: Ints  # [Y]
    begins_at: Ints  # [Y] Position in `BlockLifetimes.events` of the first event in which it is unmapped
    ends_at: Ints  # [Y] Position of the first event behind that

    def bytes_at(self, position: int) -> int:
        """Bytes that are unmapped after the event at this position."""
        return int(self.size_bytes[self._at(position)].sum())

    def have(self, address: Ints, position: int) -> Bools:
        """Which addresses lie in a piece that is unmapped after the event at this position."""
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


def asleep_pieces(device: DeviceRecording) -> AsleepPieces:
    """Return the pieces of a device; no memory is handed out while an engine goes to sleep or wakes up."""
    known, rows = device.known, device.asleep
    times_ns = np.maximum.accumulate(device.times_ns) if len(device.events) else device.times_ns
    begins_at, ends_at = (
        np.searchsorted(times_ns, column[rows], side="right") for column in (known.asleep_ns, known.awake_ns)
    )
    return AsleepPieces(known.asleep_address[rows], known.asleep_size_bytes[rows], begins_at, ends_at)
