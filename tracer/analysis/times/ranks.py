"""Ranks of a job beside each other: the slowest, and who waits for whom in collectives.

A collective ends when the last of its ranks has come: on the others its kernel runs for as long as they wait. So the
rank whose kernel was the shortest came last, and the others waited for it by as much as theirs took longer. No clocks
are compared, which those of two machines would not stand. The n-th kernel of a name and a group on one rank is taken to
be the n-th on the others; where their numbers differ, none of them is compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis.times.step_times import StepTimes
from tracer.arrays import Ints
from tracer.trace.device_work import DeviceWork

Collectives = Mapping[tuple[str, str], Ints]
"""By the name of the kernel and the ranks of its group, where the trace says them: nanoseconds of each, in order."""


def collectives_of(work: DeviceWork) -> Collectives:
    """The kernels of collectives on one device."""
    rows = np.flatnonzero(work.is_communication)
    keys = list(zip(work.name[rows].tolist(), work.group[rows].tolist(), strict=True))
    durations_ns: dict[tuple[str, str], list[int]] = defaultdict(list)
    for (name, group), duration_ns in zip(keys, work.duration_ns[rows].tolist(), strict=True):
        durations_ns[work.names[name], work.names[group] if group >= 0 else ""].append(duration_ns)
    return {key: np.array(durations, np.int64) for key, durations in durations_ns.items()}


@dataclass(frozen=True, slots=True, eq=False)
class RankTimes:
    """Times of one rank's trace."""

    file: str
    rank: int | None  # The rank's number; None where it is not known
    peak_bytes: int | None  # Peak of the rank's memory; None where the trace has no memory events
    device: str | None  # The device that `peak_bytes` is about
    total: StepTimes | None  # Times over all steps; None where nothing ran on a device
    num_steps: int
    collectives: Collectives  # Kernels of collectives, to be compared with other ranks'

    @property
    def name(self) -> str:
        """Name of the rank on screens."""
        return f"rank {self.rank}" if self.rank is not None else self.file


@dataclass(frozen=True, slots=True)
class RankRow:
    """Waits of a rank, and waits of others for it, in collectives that could be compared."""

    times: RankTimes
    waited_ns: int  # By how much its kernels ran longer than those of whoever came last
    waited_for_ns: int  # What all others waited where this one came last
    num_last: int


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Ranks beside each other."""

    rows: tuple[RankRow, ...]  # By rank
    num_compared: int  # Collectives of which all ranks of the group have a kernel
    num_left_out: int  # Kernels of collectives that could not be compared, on all ranks together
    problems: tuple[tuple[str, str], ...]  # Files that could not be read, and why

    @property
    def slowest(self) -> RankRow | None:
        """The rank that others waited longest for; None where nobody waited."""
        rows = [row for row in self.rows if row.waited_for_ns]
        return max(rows, key=lambda row: row.waited_for_ns, default=None)


def compare_ranks(ranks: Sequence[RankTimes], problems: Sequence[tuple[str, str]] = ()) -> JobTimes:
    """Put the ranks of a job beside each other."""
    ordered = sorted(ranks, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.file))
    waited, waited_for, num_last = np.zeros((3, len(ordered)), np.int64)
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, rank in enumerate(ordered):
        for key in rank.collectives:
            members[key].append(number)
    num_compared = num_left_out = 0
    for key, numbers in members.items():
        durations = [ordered[number].collectives[key] for number in numbers]
        if len(numbers) < 2 or len({len(column) for column in durations}) > 1:
            num_left_out += sum(map(len, durations))
            continue
        table, rows = np.stack(durations), np.array(numbers)
        extra = table - table.min(axis=0)
        last = table.argmin(axis=0)
        waited[rows] += extra.sum(axis=1)
        np.add.at(waited_for, rows[last], extra.sum(axis=0))
        np.add.at(num_last, rows[last], 1)
        num_compared += table.shape[1]
    columns = (waited.tolist(), waited_for.tolist(), num_last.tolist())
    rows_of = (RankRow(*row) for row in zip(ordered, *columns, strict=True))
    return JobTimes(tuple(rows_of), num_compared, num_left_out, tuple(problems))
