"""What a snapshot says in the words of the memory report: weights, activations, the peak and its timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tracer.analysis.downsample import reduce_rows
from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.findings import DeviceFinding, ReplayedSnapshot, SnapshotFinding
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.analysis.snapshots.sites import Sites
from tracer.analysis.snapshots.timeline import START, DeviceTimeline
from tracer.arrays import Ints, grouped

NUM_BUCKETS = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """A weight or an activation."""

    name: str  # The operation or autograd node that made it; the function, where the stack names neither
    bytes: int  # Bytes as requested
    count: int
    frames: tuple[tuple[str, int], ...]  # File and line of the user's frames, innermost first


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """The timeline, reduced to the rows that a drawing needs: extremes are exact, the peak is among them [rows]."""

    entry: Ints  # -1 for the start
    time_us: Ints  # -1 where the recording has no times; of the start that of the first entry
    requested_bytes: Ints  # Bytes in use, as asked for
    allocated_bytes: Ints  # Bytes in use, rounded
    reserved_bytes: Ints  # From the driver


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotReport:
    """The answer for one device, with the other devices' findings beside it."""

    finding: SnapshotFinding
    shown: int  # Position of the device that weights, activations, peak and levels are about
    # One entry per block at the peak that is proven to be a parameter, in the order of their addresses.
    weights: tuple[Entry, ...]
    # Blocks at the peak that are proven to be activations, one entry per stack, largest first.
    activations: tuple[Entry, ...]
    levels: Levels
    settings: Mapping[str, object]  # What is known of the recording

    @property
    def device(self) -> DeviceFinding:
        """The finding of the device shown."""
        return self.finding.devices[self.shown]


def snapshot_report(
    replayed: ReplayedSnapshot,
    finding: SnapshotFinding,
    shown: int,
    timeline: DeviceTimeline,
    *,
    settings: Mapping[str, object],
) -> SnapshotReport:
    """Gather the report of one device."""
    device = replayed.devices[shown]
    lives = device.replay.lives
    rows = lives.alive_after(device.replay.peak_entry)
    kind = device.kinds.of(rows)
    weights, activations = rows[kind == Kind.PARAMETER], rows[kind == Kind.ACTIVATION]
    return SnapshotReport(
        finding=finding,
        shown=shown,
        weights=_one_each(device, weights[np.argsort(lives.addr[weights], kind="stable")]),
        activations=_by_stack(device, activations),
        levels=_levels(device, timeline),
        settings=settings,
    )


def _one_each(device: ReplayedDevice, rows: Ints) -> tuple[Entry, ...]:
    lives = device.replay.lives
    columns = (lives.requested_bytes[rows].tolist(), lives.stack[rows].tolist())
    return tuple(_entry(size, 1, stack, device.sites) for size, stack in zip(*columns, strict=True))


def _by_stack(device: ReplayedDevice, rows: Ints) -> tuple[Entry, ...]:
    lives = device.replay.lives
    stacks = grouped([lives.stack[rows]], int)
    columns = (stacks.sums(lives.requested_bytes[rows]), stacks.counts(), stacks.keys)
    entries = [_entry(*row, device.sites) for row in zip(*columns, strict=True)]
    return tuple(sorted(entries, key=lambda entry: (-entry.bytes, entry.name, entry.frames)))


def _entry(size: int, count: int, stack: int, sites: Sites) -> Entry:
    return Entry(sites.operation(stack) or sites.site(stack).frame, size, count, sites.users_lines(stack))


def _levels(device: ReplayedDevice, timeline: DeviceTimeline) -> Levels:
    replay, time_us = device.replay, device.state.trace.time_us
    values = np.stack([replay.requested_bytes, timeline.allocated_bytes, replay.reserved_bytes], axis=1)
    number = np.arange(len(values), dtype=np.int64)
    rows = reduce_rows(number, values, num_buckets=NUM_BUCKETS, keep=[replay.peak_entry + 1])
    entry = rows + START
    times = np.append(time_us, -1)[np.maximum(entry, 0)] if len(time_us) else np.full(len(rows), -1)
    return Levels(entry, np.asarray(times, np.int64), *values[rows].T)
