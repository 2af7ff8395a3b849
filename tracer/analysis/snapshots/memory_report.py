"""The memory report of a snapshot: its weights and activations at the peak, and its timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.downsample import reduce_rows
from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.analysis.snapshots.sites import Sites
from tracer.analysis.snapshots.timeline import START, DeviceTimeline
from tracer.arrays import Ints, Rows, grouped

NUM_BUCKETS = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """A weight or an activation."""

    name: str  # The operation or autograd node that made it; the function, where the stack names neither
    bytes: int  # Bytes as requested
    count: int
    frames: tuple[tuple[str, int], ...]  # File and line of the user's frames, innermost first


def weights_at_peak(device: ReplayedDevice) -> tuple[Entry, ...]:
    """An entry for each block that is proven to be a parameter, in the order of their addresses."""
    lives, rows = device.replay.lives, _at_peak(device, Kind.PARAMETER)
    rows = rows[np.argsort(lives.addr[rows], kind="stable")]
    columns = (lives.requested_bytes[rows].tolist(), lives.stack[rows].tolist())
    return tuple(_entry(size, 1, stack, device.sites) for size, stack in zip(*columns, strict=True))


def activations_at_peak(device: ReplayedDevice) -> tuple[Entry, ...]:
    """An entry for each stack of blocks that are proven to be activations, largest first."""
    lives, rows = device.replay.lives, _at_peak(device, Kind.ACTIVATION)
    stacks = grouped([lives.stack[rows]], int)
    columns = (stacks.sums(lives.requested_bytes[rows]), stacks.counts(), stacks.keys)
    entries = [_entry(*row, device.sites) for row in zip(*columns, strict=True)]
    return tuple(sorted(entries, key=lambda entry: (-entry.bytes, entry.name, entry.frames)))


def _at_peak(device: ReplayedDevice, kind: Kind) -> Rows:
    alive = device.replay.lives.alive_after(device.replay.peak_entry)
    rows: Rows = alive[device.kinds.of(alive) == kind]
    return rows


def _entry(size: int, count: int, stack: int, sites: Sites) -> Entry:
    return Entry(sites.operation(stack) or sites.site(stack).frame, size, count, sites.users_lines(stack))


def drawn_levels(device: ReplayedDevice, timeline: DeviceTimeline) -> tuple[Ints, ...]:
    """The timeline, reduced to the rows that a drawing needs: extremes are exact, the peak is among them.

    Returns:
        Columns [rows]: entry, -1 for the start; its time, -1 where the recording has none, and of the start that of the
        first entry; requested, allocated (rounded) and reserved bytes.
    """
    replay, time_us = device.replay, device.state.trace.time_us
    values = np.stack([replay.requested_bytes, timeline.allocated_bytes, replay.reserved_bytes], axis=1)
    number = np.arange(len(values), dtype=np.int64)
    rows = reduce_rows(number, values, num_buckets=NUM_BUCKETS, keep=[replay.peak_entry + 1])
    entry = rows + START
    times = np.append(time_us, -1)[np.maximum(entry, 0)] if len(time_us) else np.full(len(rows), -1)
    return entry, np.asarray(times, np.int64), *values[rows].T
