"""Memory of one device over its recording: curves by kind and phases to draw, levels of steps, what outlives steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from tracer.arrays import Ints, grouped, in_use
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.kind_finder import KindFinder
from tracer.blocks.from_snapshot.sites import Site
from tracer.blocks.kinds import Kind
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import Annotations, DeviceState, Int32s, Snapshot
from tracer.snapshot.replay import BEFORE
from tracer.units import NS_PER_US

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
    levels: Mapping[Kind, Ints]  # Requested bytes in use by kind, see `Blocks.levels` [entries + 1]
    allocated_bytes: Ints  # Bytes in use, rounded as far as known [entries + 1]
    reserved_bytes: Ints  # Reserved from the driver [entries + 1]
    # Annotated regions, what stacks or annotations show of backward and optimizer, and forward, from the first
    # activation that was made to the backward that follows.
    stretches: tuple[Band, ...]
    left_out: tuple[BandKind, ...]  # Kinds of which there are more stretches than `MAX_STRETCHES`


def device_timeline(device: ReplayedDevice) -> DeviceTimeline:
    """The curves of one device, in a few passes over its blocks."""
    state, replay, kinds = device.state, device.replay, device.kinds
    axis, times = _axis(state)
    lives, num_entries = replay.lives, len(state.trace)
    activations = np.sort(lives.begin[(device.blocks.kind == Kind.ACTIVATION) & (lives.begin != BEFORE)])
    stretches_of: tuple[tuple[BandKind, list[Band]], ...] = (
        ("step", _regions(device.snapshot, state, axis)),
        *_phases(kinds, times, activations),
    )
    drawn = [stretch for _, stretches in stretches_of if len(stretches) <= MAX_STRETCHES for stretch in stretches]
    return DeviceTimeline(
        axis=axis,
        times=times,
        levels=device.blocks.levels(num_entries),
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
    """Find the forward before each backward, from its first activation on, and the one that the recording ends in."""
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


OUTSIDE = -1


def innermost_region(state: DeviceState, entries: Ints) -> Int32s:
    """The innermost region that was open at each entry, as numbers of texts; -1 where none was.

    An entry in the microsecond of a start counts as inside, one in that of an end as outside. Ends without a start are
    ignored; a start without an end stays open.

    Args:
        entries: Indices of entries, or -1 for none [rows].
    """
    none = np.full(len(entries), OUTSIDE, dtype=np.int32)
    notes = state.annotations
    if not len(notes) or not len(state.trace):
        return none
    order = np.argsort(notes.time_us, kind="stable")
    open_after = np.array([OUTSIDE, *_open_regions(notes, order.tolist())], dtype=np.int32)
    time_us = state.trace.time_us[np.maximum(entries, 0)]
    region = open_after[np.searchsorted(notes.time_us[order], time_us, side="right")]
    return np.where((entries >= 0) & (time_us >= 0), region, none)


def _open_regions(notes: Annotations, order: list[int]) -> list[int]:
    """The innermost open region after each annotation, in the given order."""
    opened: list[int] = []
    count: dict[int, int] = {}
    after = []
    names, starts = notes.name.tolist(), notes.is_start.tolist()
    for index in order:
        name = names[index]
        if starts[index]:
            opened.append(name)
            count[name] = count.get(name, 0) + 1
        elif count.get(name, 0):
            count[name] -= 1
            del opened[len(opened) - 1 - opened[::-1].index(name)]  # regions of several threads need not nest
        after.append(opened[-1] if opened else OUTSIDE)
    return after


@dataclass(frozen=True, slots=True)
class StepLevel:
    """Memory at the end of one step of the optimizer."""

    entry: int
    end_bytes: int  # Bytes in use at its end
    peak_bytes: int  # The most in use since the step before was over


def step_levels(device: ReplayedDevice) -> tuple[StepLevel, ...]:
    """Return the bytes in use at the end of each visible optimizer step, and the peak since the step before."""
    level, num_entries = device.replay.requested_bytes, len(device.state.trace)
    _, ends = device.kinds.phases.steps
    levels, before = [], 0
    for end in np.minimum(ends, num_entries).tolist():
        peak = int(level[before : end + 1].max())
        levels.append(StepLevel(entry=end, end_bytes=int(level[end]), peak_bytes=peak))
        before = end
    return tuple(levels)


_EXPECTED = (Kind.PARAMETER, Kind.OPTIMIZER_STATE, Kind.GRADIENT, Kind.BUFFER, Kind.WORKSPACE)
"""Kinds that stay from step to step."""
_NUM_SAMPLES = 6


@dataclass(frozen=True, slots=True, eq=False)
class StepEnds:
    """Ends of steps, as the number of allocations that the allocator had served by then.

    A snapshot has no steps: its entries are joined with these by the order of allocations, never by time; the
    last of the recording's is the last of `num_allocations_now`.
    """

    step: Ints  # Numbers of the steps, rising [steps]
    num_allocations: Ints  # Requests served when each of them had ended [steps]
    num_allocations_now: int  # Requests served when the snapshot was taken


@dataclass(frozen=True, slots=True)
class OutlivedGroup:
    """Blocks of one line and kind that are in use at the end and were made before the last whole step."""

    site: Site
    kind: Kind
    bytes: int  # Bytes of these blocks together, as requested
    count: int
    # Bytes that each step adds, over the steps that the recording has in full; 0 if it has none, or they do not grow.
    bytes_per_step: int
    addresses: tuple[int, ...]  # Addresses of some of them, from the oldest to the latest


def outlived_groups(device: ReplayedDevice, ends: StepEnds) -> tuple[OutlivedGroup, ...]:
    """Gather what is in use at the end, was made before the last whole step, and is of no kind that stays.

    Returns:
        What grows first, by how fast; then the rest, the largest first. Empty where no step has ended.
    """
    lives, num_entries = device.replay.lives, len(device.state.trace)
    if not len(ends.step):
        return ()
    rows = np.flatnonzero(lives.end == num_entries)
    made_in = steps_of_blocks(device, ends)[rows]
    last_whole = int(ends.step[-1])
    old = made_in < last_whole
    rows, made_in = rows[old], made_in[old]
    first_recorded = first_whole_step(device, ends)
    num_judged = last_whole - first_recorded
    kinds = device.blocks.kind[rows]
    kinds[kinds == Kind.BEFORE_RECORDING] = Kind.UNKNOWN  # a line's blocks are one group, whenever they were made
    groups = grouped((lives.stack[rows], kinds), lambda stack, kind: (device.sites.site(stack), Kind(kind)))
    outlived = []
    for number, (site, kind) in enumerate(groups.keys):
        if kind in _EXPECTED:
            continue
        chosen = groups.of_row == number
        of = rows[chosen]
        recent = made_in[chosen] >= first_recorded
        per_step = int(lives.requested_bytes[of[recent]].sum()) // num_judged if num_judged > 0 else 0
        # Blocks of a single recent step are no growth: some are replaced now and then.
        if len(np.unique(made_in[chosen][recent])) < 2:
            per_step = 0
        order = np.argsort(lives.begin[of], kind="stable")
        picked = np.unique(np.linspace(0, len(of) - 1, min(_NUM_SAMPLES, len(of))).astype(np.int64))
        outlived.append(
            OutlivedGroup(
                site=site,
                kind=kind,
                bytes=int(lives.requested_bytes[of].sum()),
                count=len(of),
                bytes_per_step=per_step,
                addresses=tuple(lives.addr[of[order[picked]]].tolist()),
            )
        )
    return tuple(
        sorted(outlived, key=lambda group: (-group.bytes_per_step, -group.bytes, group.site.frame, group.kind.words))
    )


def steps_of_blocks(device: ReplayedDevice, ends: StepEnds) -> Ints:
    """The step in which each block was made, from 1 [lives]; 0 for those from before the recording."""
    lives = device.replay.lives
    allocs = device.state.trace.where(Action.ALLOC)
    before = ends.num_allocations_now - len(allocs)
    number = before + np.searchsorted(allocs, lives.alloc_entry, side="left") + 1
    last = int(ends.step[-1]) if len(ends.step) else 0
    steps = np.append(ends.step, last + 1)
    step = steps[np.searchsorted(ends.num_allocations, number, side="left")]
    return np.where((lives.begin == BEFORE) | (lives.alloc_entry < 0), 0, step)


def first_whole_step(device: ReplayedDevice, ends: StepEnds) -> int:
    """The first step of which the recording has every allocation, and whose number is known; else the one behind."""
    first = ends.num_allocations_now - len(device.state.trace.where(Action.ALLOC))
    whole = np.flatnonzero(ends.num_allocations >= first)
    return int(ends.step[whole[0]]) + 1 if len(whole) else int(ends.step[-1]) + 1
