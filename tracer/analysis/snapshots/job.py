"""All ranks of a job beside each other: which are alike, which are not, and what the worst has that others have not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from tracer.analysis.snapshots.diff import DeviceDiff, PeakSide, diff_sides, peak_side
from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot
from tracer.snapshot.columns import Snapshot

ALIKE: Final = 0.02
"""Ranks whose kinds differ by less than this part of the peak are one group."""
_FEW: Final = 4
_RANK: Final = re.compile(r"rank[_\-]?(\d+)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(\d+)$")


@dataclass(frozen=True, slots=True)
class RankPeak:
    """What one rank's recording says; small enough to be sent between processes.

    Attributes:
        file: As the person named it.
        rank: Its number, where the name tells; None where it does not.
        device: Index of the device that is worst there; None where the recording has none.
        entries: Of its trace.
        peak_bytes: As asked for.
        reserved_bytes: Reserved at the peak.
        kinds: Bytes at the peak by kind, largest first.
        side: The peak by kind and stack.
        out_of_memory: Why it had no memory left, in a sentence, with the line; empty where it had.
        problem: Why it cannot be read; empty where it can.
    """

    file: str
    rank: int | None
    device: int | None = None
    entries: int = 0
    peak_bytes: int = 0
    reserved_bytes: int = 0
    kinds: tuple[tuple[str, int], ...] = ()
    side: PeakSide = field(default_factory=PeakSide)
    out_of_memory: str = ""
    problem: str = ""

    @property
    def name(self) -> str:
        """`rank 3`, or the file."""
        return f"rank {self.rank}" if self.rank is not None else self.file


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that hold the same, nearly to the byte.

    Attributes:
        ranks: In their order; the first is what the others were compared with.
        is_odd: They are few beside the largest group.
    """

    ranks: tuple[RankPeak, ...]
    is_odd: bool


@dataclass(frozen=True, slots=True)
class JobFinding:
    """All ranks of a job.

    Attributes:
        ranks: Those that can be read, by number, then by name.
        unreadable: Those that cannot.
        missing: Numbers between the first and the last of which there is no recording.
        groups: Of equal ranks, the largest first.
        worst: The rank that ran out of memory, or else has the largest peak; None if none can be read.
        typical: The first rank of the largest group; None likewise.
        difference: What the worst holds that the typical one does not; None where they are in one group.
    """

    ranks: tuple[RankPeak, ...]
    unreadable: tuple[RankPeak, ...]
    missing: tuple[int, ...]
    groups: tuple[RankGroup, ...]
    worst: RankPeak | None
    typical: RankPeak | None
    difference: DeviceDiff | None


def rank_of(file: str) -> int | None:
    """The rank that a path names: `rank3/memory_snapshot.pkl`, `snapshot_rank_3.pickle`, `memory_3.pickle`."""
    path = PurePath(file)
    for part in (path.name, *reversed(path.parent.parts)):
        if (found := _RANK.search(part)) is not None:
            return int(found.group(1))
    found = _NUMBER.search(path.stem)
    return int(found.group(1)) if found is not None else None


def rank_peak(snapshot: Snapshot, file: str, *, device: int | None = None) -> RankPeak:
    """Sum up one rank's recording: its worst device.

    Args:
        snapshot: Loaded.
        file: Its name.
        device: Index of the only device to look at; None means all.

    Raises:
        SnapshotError: The recording has no such device, or contradicts itself.
    """
    replayed = replay_snapshot(snapshot, device=device)
    finding = explain_replayed(replayed)
    if finding.worst is None:
        return RankPeak(file, rank_of(file))
    found = finding.devices[finding.worst]
    oom = found.oom[-1] if found.oom else None
    where = "" if oom is None else oom.site.frame + (f" ({oom.site.file}:{oom.site.line})" if oom.site.file else "")
    return RankPeak(
        file=file,
        rank=rank_of(file),
        device=found.device,
        entries=found.entries,
        peak_bytes=found.peak.requested_bytes,
        reserved_bytes=found.peak.reserved_bytes,
        kinds=tuple((share.name, share.bytes) for share in found.peak.by_kind),
        side=peak_side(replayed.devices[finding.worst], replayed.sites),
        out_of_memory="" if oom is None else f"{where}: {oom.advice}",
    )


def explain_job(peaks: Sequence[RankPeak]) -> JobFinding:
    """Put ranks beside each other, whatever order they come in."""
    ordered = sorted(peaks, key=lambda one: (one.rank is None, one.rank or 0, one.file))
    readable = [one for one in ordered if not one.problem]
    groups = _groups(readable)
    worst = max(readable, key=lambda one: (bool(one.out_of_memory), one.peak_bytes), default=None)
    typical = groups[0].ranks[0] if groups else None
    together = any(worst in group.ranks and typical in group.ranks for group in groups)
    return JobFinding(
        ranks=tuple(readable),
        unreadable=tuple(one for one in ordered if one.problem),
        missing=_missing(ordered),
        groups=groups,
        worst=worst,
        typical=typical,
        difference=diff_sides(worst.device or 0, typical.side, worst.side)
        if worst is not None and typical is not None and not together
        else None,
    )


def _missing(ranks: Sequence[RankPeak]) -> tuple[int, ...]:
    """Numbers without a recording; a job counts from 0."""
    numbers = {one.rank for one in ranks if one.rank is not None}
    if len(numbers) < 2 or len(numbers) < len(ranks):
        return ()
    return tuple(number for number in range(max(numbers)) if number not in numbers)


def _groups(ranks: Sequence[RankPeak]) -> tuple[RankGroup, ...]:
    gathered: list[list[RankPeak]] = []
    for one in ranks:
        group = next((group for group in gathered if _are_alike(group[0], one)), None)
        if group is None:
            gathered.append([one])
        else:
            group.append(one)
    gathered.sort(key=lambda group: (-len(group), -group[0].peak_bytes))
    most = len(gathered[0]) if gathered else 0
    return tuple(RankGroup(tuple(group), len(group) * _FEW <= most) for group in gathered)


def _are_alike(one: RankPeak, other: RankPeak) -> bool:
    if bool(one.out_of_memory) != bool(other.out_of_memory):
        return False
    first, second = dict(one.kinds), dict(other.kinds)
    apart = sum(abs(first.get(kind, 0) - second.get(kind, 0)) for kind in {*first, *second})
    return apart <= ALIKE * max(one.peak_bytes, other.peak_bytes)
