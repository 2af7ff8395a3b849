"""What was in use at any moment of a recording, what came and went between two, and what outlived steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.groups import SnapshotRow, group_rows
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.analysis.snapshots.sites import Site
from tracer.arrays import Ints, grouped
from tracer.errors import SnapshotError, UsageError
from tracer.snapshot.actions import Action
from tracer.snapshot.replay import BEFORE

START = -1
_US_PER_S = 1_000_000
# Times are shown in milliseconds: what a person copies may lie as much behind the last entry.
_ROUNDING_US = 1000


@dataclass(frozen=True, slots=True)
class Held:
    """Memory in use right after an entry."""

    entry: int  # The entry; -1 for the start of the recording
    time_us: int  # Its time, or -1
    phase: str  # `backward` or `optimizer` where the recording shows it, else empty
    requested_bytes: int  # Bytes in use, as asked for
    reserved_bytes: int
    groups: tuple[SnapshotRow, ...]  # By line and kind; they sum to the requested bytes


@dataclass(frozen=True, slots=True)
class Between:
    """Changes between two entries; blocks that came and went within are in neither."""

    first_entry: int
    last_entry: int
    first_bytes: int
    last_bytes: int
    came: tuple[SnapshotRow, ...]  # Made in between and in use at its end
    # Blocks in use at its begin and freed in between. Bytes that came less bytes that went are the change.
    went: tuple[SnapshotRow, ...]


@dataclass(frozen=True, slots=True)
class LastBefore:
    """The last allocations before a moment that together hold some bytes, of those in use then."""

    entry: int
    first_entry: int
    bytes: int  # What they hold; less than asked about if everything in use is less
    groups: tuple[SnapshotRow, ...]  # By line and kind; they sum to the bytes


@dataclass(frozen=True, slots=True)
class StepLevel:
    """Memory at the end of one step of the optimizer."""

    entry: int
    end_bytes: int  # Bytes in use at its end
    peak_bytes: int  # The most in use since the step before was over


@dataclass(frozen=True, slots=True)
class Moments:
    """Answers about one device beside its peak."""

    device: int  # Its index
    held: tuple[Held, ...] = ()
    between: Between | None = None
    before_oom: LastBefore | None = None  # The last allocations before it ran out of memory
    steps: tuple[StepLevel, ...] = ()  # The optimizer's steps that the recording shows


def entry_at(device: ReplayedDevice, moment: str) -> int:
    """The entry that a person means.

    Args:
        moment: `start`, `peak`, `oom` (the first), `end`, the number of an entry, a time such as `1757253257us`, or
            `2.5s` since the first entry.
    """
    trace, num_entries = device.state.trace, len(device.state.trace)
    named = {"start": START, "peak": device.replay.peak_entry, "end": num_entries - 1}
    if moment in named:
        return named[moment]
    if moment == "oom":
        failures = trace.where(Action.OOM)
        if not len(failures):
            raise SnapshotError(f"Device {device.state.device} did not run out of memory.", hint=_WORDS)
        return int(failures[0])
    match = re.fullmatch(r"(\d{1,19}(?:\.\d{1,6})?)(us|s)?", moment)
    if not match or ("." in match.group(1) and match.group(2) != "s"):
        raise UsageError(f"{moment!r} is no moment of a recording.", hint=_WORDS)
    if match.group(2):
        return _entry_at_time(device, float(match.group(1)), match.group(2))
    entry = int(moment)
    if entry >= num_entries:
        last = f"the last one is {num_entries - 1:,}" if num_entries else "it has none"
        raise SnapshotError(f"Device {device.state.device} has no entry {entry:,}: {last}.", hint=_WORDS)
    return entry


_WORDS = (
    "Write start, peak, oom, end, the number of an entry, a time as in 1757253257us, or 2.5s since the first entry."
)


def _entry_at_time(device: ReplayedDevice, value: float, unit: str) -> int:
    times = device.state.trace.time_us
    if not len(times) or times[0] < 0:
        raise SnapshotError(f"The entries of device {device.state.device} have no times.", hint=_WORDS)
    wanted = int(value) if unit == "us" else int(times[0]) + round(value * _US_PER_S)
    if wanted > times[-1] + _ROUNDING_US:
        length = (int(times[-1]) - int(times[0])) / _US_PER_S
        raise SnapshotError(
            f"Device {device.state.device} has no entry so late: the last one is {length:,.3f} s after the first.",
            hint=_WORDS,
        )
    return int(np.searchsorted(times, wanted, side="right")) - 1


def entries_between(device: ReplayedDevice, moments: tuple[str, str]) -> tuple[int, int]:
    """The entries of two moments."""
    first, last = (entry_at(device, moment) for moment in moments)
    if first > last:
        raise SnapshotError(
            f"On device {device.state.device} {moments[0]} is later than {moments[1]}.",
            hint=f"Write --between {moments[1]} {moments[0]}.",
        )
    return first, last


def entry_words(entry: int) -> str:
    """A moment in words: right after an entry, or the start of the recording."""
    return f"after entry {entry:,}" if entry >= 0 else "the start of the recording"


def held_at(device: ReplayedDevice, entry: int) -> Held:
    """What was in use right after an entry."""
    trace, replay = device.state.trace, device.replay
    return Held(
        entry=entry,
        time_us=int(trace.time_us[entry]) if entry >= 0 else -1,
        phase=device.kinds.phase_at(entry),
        requested_bytes=int(replay.requested_bytes[entry + 1]),
        reserved_bytes=int(replay.reserved_bytes[entry + 1]),
        groups=group_rows(device, replay.lives.alive_after(entry)),
    )


def between(device: ReplayedDevice, first: int, last: int) -> Between:
    """What came and what went from after one entry to after another, whichever is the earlier."""
    first, last = sorted((first, last))
    lives, level = device.replay.lives, device.replay.requested_bytes
    was = (lives.begin <= first) & (lives.end > first)
    stays = (lives.begin <= last) & (lives.end > last)
    return Between(
        first_entry=first,
        last_entry=last,
        first_bytes=int(level[first + 1]),
        last_bytes=int(level[last + 1]),
        came=group_rows(device, np.flatnonzero(stays & ~was)),
        went=group_rows(device, np.flatnonzero(was & ~stays)),
    )


def last_before(device: ReplayedDevice, entry: int, size: int) -> LastBefore:
    """The last allocations before an entry that hold at least `size` bytes together, of those in use then."""
    lives = device.replay.lives
    rows = lives.alive_after(entry)
    rows = rows[np.argsort(-lives.begin[rows], kind="stable")]
    sums = np.cumsum(lives.requested_bytes[rows])
    chosen = rows[: int(np.searchsorted(sums, size)) + 1]
    return LastBefore(
        entry=entry,
        first_entry=int(lives.begin[chosen].min(initial=entry)),
        bytes=int(lives.requested_bytes[chosen].sum()),
        groups=group_rows(device, chosen),
    )


def step_levels(device: ReplayedDevice) -> tuple[StepLevel, ...]:
    """What was in use as each visible step of the optimizer was over, and the most since the one before."""
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
