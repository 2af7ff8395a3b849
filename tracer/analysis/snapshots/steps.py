"""Memory step by step of a recording, and the blocks that outlive steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.analysis.snapshots.sites import Site
from tracer.arrays import Ints, grouped
from tracer.snapshot.actions import Action
from tracer.snapshot.replay import BEFORE


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
    # How much more of them each step leaves, over the steps that the recording has in full; 0 where it has none, or
    # they have become no more.
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
    kinds = device.kinds.of(rows)
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
        # In one step of many is no growth: what is replaced now and then was made once, lately.
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
