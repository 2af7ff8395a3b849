"""What one device held over its recording, kind by kind: the curves and phases that a drawing needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from tracer.analysis.kinds import Kind, levels_by_kind
from tracer.arrays import Ints, in_use
from tracer.units import NS_PER_US

if TYPE_CHECKING:
    from tracer.analysis.snapshots.kind_finder import KindFinder, ReplayedDevice
    from tracer.snapshot.columns import DeviceState, Snapshot


START: Final = -1
# A drawing counts in 53 bits; a longer span than this (104 days) is no time of a recording.
_MAX_SPAN_US: Final = 2**53 // NS_PER_US
_OPTIMIZER_PREFIXES: Final = ("Optimizer.step#", "Optimizer.zero_grad#")
MAX_STRETCHES: Final = 2000
"""Most stretches drawn of each phase; more would be narrower than a pixel."""
BandKind = Literal["step", "forward", "backward", "optimizer"]


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of the axis: a step or an annotated region, or a phase."""

    kind: BandKind
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTimeline:
    """A device's recording of E entries; row 0 is its start, row i + 1 the state after entry i."""

    axis: Literal["time", "entry"]  # "time", or "entry" where the entries have no usable times
    times: Ints  # Nanoseconds since the first entry, or the number of the entry, -1 for the start [entries + 1]
    levels: Mapping[Kind, Ints]  # Requested bytes in use by kind, see `levels_by_kind` [entries + 1]
    allocated_bytes: Ints  # Bytes in use, rounded as far as known [entries + 1]
    reserved_bytes: Ints  # Reserved from the driver [entries + 1]
    # Annotated regions, what stacks or annotations show of backward and optimizer, and forward, from the first
    # activation that was made to the backward that follows.
    stretches: tuple[Band, ...]
    left_out: tuple[BandKind, ...]  # Kinds of which there are more stretches than `MAX_STRETCHES`


def device_timeline(device: ReplayedDevice) -> DeviceTimeline:
    """The curves of one device, in a few passes over its blocks."""
    from tracer.snapshot.replay import BEFORE

    state, replay, kinds = device.state, device.replay, device.kinds
    axis, times = _axis(state)
    lives, num_entries = replay.lives, len(state.trace)
    kind = kinds.of(np.arange(len(lives)))
    activations = np.sort(lives.begin[(kind == Kind.ACTIVATION) & (lives.begin != BEFORE)])
    stretches_of: tuple[tuple[BandKind, list[Band]], ...] = (
        ("step", _regions(device.snapshot, state, axis)),
        *_phases(kinds, times, activations),
    )
    drawn = [stretch for _, stretches in stretches_of if len(stretches) <= MAX_STRETCHES for stretch in stretches]
    return DeviceTimeline(
        axis=axis,
        times=times,
        levels=levels_by_kind(kind, lives.requested_bytes, lives.begin, lives.end, num_entries),
        allocated_bytes=in_use(lives.allocated_bytes, lives.begin, lives.end, num_entries),
        reserved_bytes=replay.reserved_bytes,
        stretches=tuple(sorted(drawn, key=lambda stretch: stretch.start)),
        left_out=tuple(phase for phase, stretches in stretches_of if len(stretches) > MAX_STRETCHES),
    )


def _axis(state: DeviceState) -> tuple[Literal["time", "entry"], Ints]:
    time_us = state.trace.time_us
    if len(time_us) and time_us[0] >= 0 and time_us[-1] - time_us[0] <= _MAX_SPAN_US:
        since = (time_us - time_us[0]) * NS_PER_US
        return "time", np.concatenate([since[:1], since])
    return "entry", np.arange(START, len(time_us), dtype=np.int64)


def _phases(kinds: KindFinder, times: Ints, activations: Ints) -> tuple[tuple[BandKind, list[Band]], ...]:
    """The phases, from their entries; one that the recording does not end goes to its last entry."""

    def stretches(phase: BandKind, runs: tuple[Ints, Ints]) -> list[Band]:
        last = len(times) - 1
        starts, ends = (times[np.minimum(entries + 1, last)].tolist() for entries in runs)
        return [Band(phase, phase, start, end) for start, end in zip(starts, ends, strict=True)]

    forward = forward_runs(activations, kinds.phases.backwards, kinds.phases.steps, end=len(times) - 1)
    return (
        ("forward", stretches("forward", forward)),
        ("backward", stretches("backward", kinds.phases.backwards)),
        ("optimizer", stretches("optimizer", kinds.phases.steps)),
    )


def forward_runs(
    activations: Ints, backward: tuple[Ints, Ints], optimizer: tuple[Ints, Ints], *, end: int
) -> tuple[Ints, Ints]:
    """What lies before each backward, from the first activation in it; and what the recording ends in, likewise."""
    starts, ends = (np.append(*columns) for columns in zip(backward, optimizer, strict=True))
    order = np.argsort(starts, kind="stable")
    starts, ends, is_backward = starts[order], ends[order], order < len(backward[0])
    following = np.searchsorted(starts, activations, side="right")
    over = np.append(0, np.maximum.accumulate(ends))[following]
    leads_to_backward = np.append(is_backward, True)[following]
    outside = (activations >= over) & leads_to_backward
    run, first = np.unique(following[outside], return_index=True)
    return activations[outside][first], np.append(starts, end)[run]


def _regions(snapshot: Snapshot, state: DeviceState, axis: str) -> list[Band]:
    """The outermost annotated regions, except the optimizer's, which are a phase; only times can place them."""
    notes = state.annotations
    if axis == "entry" or not len(notes):
        return []
    first_us, last_us = int(state.trace.time_us[0]), int(state.trace.time_us[-1])
    order = np.argsort(notes.time_us, kind="stable")
    columns = (notes.name[order].tolist(), notes.is_start[order].tolist(), notes.time_us[order].tolist())
    regions: list[Band] = []
    opened: tuple[int, int] | None = None
    for name, is_start, time_us in zip(*columns, strict=True):
        at = (min(max(time_us, first_us), last_us) - first_us) * NS_PER_US
        if opened is None and is_start and not snapshot.text(name).startswith(_OPTIMIZER_PREFIXES):
            opened = (name, at)
        elif opened is not None and not is_start and name == opened[0]:
            regions.append(Band("step", snapshot.text(name), opened[1], at))
            opened = None
    return regions
