"""What was in use at any moment of a recording, what came and went between two, and what grew from step to step."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tracer.analysis.snapshots.groups import SnapshotRow, group_rows
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.errors import SnapshotError, UsageError
from tracer.snapshot.actions import Action

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

    Raises:
        UsageError: It is none of these.
        SnapshotError: The recording has no such moment.
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
    """The entries of two moments.

    Args:
        moments: The earlier and the later one, as `entry_at` takes them.

    Raises:
        SnapshotError: The first is later than the second, or one of them is no moment.
    """
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
    """What was in use right after an entry.

    Args:
        entry: Position in the trace; -1 is the start.
    """
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
    """What came and what went from after one entry to after another, whichever is the earlier.

    Args:
        first: Position in the trace.
    """
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
    """The last allocations before an entry that hold at least `size` bytes together, of those in use then.

    Args:
        entry: Position in the trace.
        size: Bytes.
    """
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
