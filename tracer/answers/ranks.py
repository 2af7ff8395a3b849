"""Ranks of a job side by side: groups of equal ranks, odd ones, and the worst."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

import numpy as np

from tracer.answers.allocator.explained import worst_failure
from tracer.answers.peak import Peak, peak_of_device
from tracer.answers.snapshot_findings import ReplayedSnapshot, explain_replayed, replay_snapshot
from tracer.arrays import Bools, Interned, Ints
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.sites import Site
from tracer.snapshot.columns import Snapshot
from tracer.units import some

# `pp1`, `pp_rank_1`, `stage-1`, `pipeline_stage1`; `tp0`, `tp_rank_0`; `dp3`. ZeRO's stage is a setting, no place.
_SEPARATE: Final = r"(?<![a-z])"
_END: Final = r"[_\-]?(?:rank|stage)?[_\-]?(\d+)(?!\d)"
_PIPELINE: Final = re.compile(_SEPARATE + r"(?<!zero)(?<!zero[_\-])(?:pp|pipe(?:line)?|stage)" + _END, re.IGNORECASE)
_TENSOR: Final = re.compile(_SEPARATE + r"(?:tp|tensor)" + _END, re.IGNORECASE)
_DATA: Final = re.compile(_SEPARATE + r"dp" + _END, re.IGNORECASE)
# Megatron's folders: tensor rank in two digits, and the stage in three, where there are several.
_MEGATRON: Final = re.compile(r"(?<![a-z])mp_rank_\d{2}(?:_\d{3})?(?!\d)")
_MEGATRON_STAGE: Final = re.compile(r"(?<![a-z])mp_rank_\d{2}_(\d{3})(?!\d)")
# `rank3`, `oom_rank-3`, `GlobalRank3`; that of the job before that of a node. LoRA's rank is a size, no place.
_WORD: Final = r"(?:(?<![A-Za-z])(?:[Ll]ocal[_\-]?)?[Rr]ank|(?<=[a-z])Rank|(?<![A-Za-z])(?:LOCAL_)?RANK)"
_GLOBAL_RANK: Final = re.compile(r"(?:global|world)[_\-]?rank[_\-]?(\d+)", re.IGNORECASE)
_RANK: Final = re.compile(_WORD + r"[_\-]?(\d+)")
# torchtitan's `000003_step_10.pickle`
_SIX_DIGITS: Final = re.compile(r"^(\d{6})_step_\d+(?!\d)")
_SIZES: Final = re.compile(r"(?:lora|low|full|top)[_\-]?rank[_\-]?\d+", re.IGNORECASE)

_ROLES: Final = (_MEGATRON, _PIPELINE, _TENSOR, _DATA, _SIZES)


def rank_of(file: str) -> int | None:
    """Return the rank that a path names: `rank3/memory_snapshot.pkl`, `oom_rank-3_t17.pickle`; None for `bf16.pickle`.

    A number of a stage or of a place in it, as in `pp_rank_1`, is none, and neither is a number alone: of a step, of a
    size, of an epoch.
    """
    path = PurePath(file)
    for part in (path.name, *reversed(path.parent.parts)):
        rest = part
        for pattern in _ROLES:
            rest = pattern.sub("", rest)
        if (match := _GLOBAL_RANK.search(rest) or _RANK.search(rest) or _SIX_DIGITS.search(rest)) is not None:
            return int(match.group(1))
    return None


def stage_of(file: str) -> int | None:
    """Return the pipeline stage that a path names, None without one; the part nearest to the file's name counts."""
    path = PurePath(file)
    parts = (path.name, *reversed(path.parent.parts))
    for pattern in (_PIPELINE, _MEGATRON_STAGE):
        if (match := next(filter(None, map(pattern.search, parts)), None)) is not None:
            return int(match.group(1))
    return None


ALIKE: Final = 0.02  # Ranks whose kinds differ by less than this part of the peak are one group
_FEW: Final = 4


@dataclass(frozen=True, slots=True)
class HeldOnDevice:
    """The most memory that one process reserves of a device."""

    device: int  # Index of the device, as the process counts
    reserved_bytes: int
    file: str | None = None  # File of the line with the most bytes at the peak; None where it is not known
    line: int | None = None  # That line


@dataclass(frozen=True, slots=True)
class RankPeak:
    """Findings of one rank's recording; small enough to be sent between processes."""

    file: str
    rank: int | None  # Its number, where the name tells; None where it does not
    device: int | None = None  # Index of the device that is worst there; None where the recording has none
    entries: int = 0
    peak_bytes: int = 0
    reserved_bytes: int = 0
    kinds: tuple[tuple[str, int], ...] = ()  # Bytes at the peak by kind, largest first
    out_of_memory: str = ""  # Why it had no memory left, in a sentence, with the line; empty where it had
    problem: str = ""  # Why it cannot be read; empty where it can
    stage: int | None = None  # Stage of a pipeline; None where no name says it
    is_repeated: bool = False
    held: tuple[HeldOnDevice, ...] = ()  # The most it reserves of each device

    @property
    def name(self) -> str:
        """`rank 3`, with the file where there are more of that rank; or the file."""
        if self.rank is None:
            return self.file
        return f"rank {self.rank} ({PurePath(self.file).name})" if self.is_repeated else f"rank {self.rank}"


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks of one stage that hold the same, nearly to the byte."""

    ranks: tuple[RankPeak, ...]  # Ranks in their order; the first is what the others were compared with
    is_odd: bool  # They are few beside the other ranks of their stage, or of the job where no stage is named

    @property
    def words(self) -> tuple[str, ...]:
        """Remarks that apply to all ranks of the group, such as `odd`, `ran out of memory` and `stage 1`."""
        first = self.ranks[0]
        return (
            *(["odd"] if self.is_odd else []),
            *(["ran out of memory"] if first.out_of_memory else []),
            *([f"stage {first.stage}"] if first.stage is not None else []),
        )


@dataclass(frozen=True, slots=True)
class JobFinding:
    """Findings on the ranks of a job."""

    ranks: tuple[RankPeak, ...]  # Ranks that can be read, by number, then by name
    unreadable: tuple[RankPeak, ...]
    missing: tuple[int, ...]  # Numbers between the first and the last of which there is no recording
    groups: tuple[RankGroup, ...]  # Groups of equal ranks, the largest first; of runs each alone, by name
    worst: RankPeak | None  # The rank that ran out of memory, or else has the largest peak; None if none can be read
    # The first rank of the largest group of the worst's stage, or of all where the worst is alone in its stage; None
    # likewise.
    typical: RankPeak | None

    @property
    def are_runs(self) -> bool:
        """True if no recording is named as a rank: they are separate runs."""
        return _are_runs((*self.ranks, *self.unreadable))

    @property
    def num_ranks(self) -> str:
        """Number of ranks with recordings, in words; and the number of recordings, where some rank has several."""
        recordings = (*self.ranks, *self.unreadable)
        if self.are_runs:
            return some(len(recordings), "run")
        numbers = {rank.rank for rank in recordings if rank.rank is not None}
        number = len(numbers) + sum(rank.rank is None for rank in recordings)
        ranks = some(number, "rank")
        return ranks if number == len(recordings) else f"{ranks} in {len(recordings):,} recordings"


def rank_peak(snapshot: Snapshot, file: str, *, device: int | None = None) -> RankPeak:
    """Sum up one rank's recording: its worst device."""
    replayed = replay_snapshot(snapshot, device=device)
    found = explain_replayed(replayed)
    if not found.parts:
        return RankPeak(file, rank_of(file), stage=stage_of(file))
    worst, oom = found.worst, worst_failure(found)
    where = "" if oom is None else oom.site.frame + (f" ({oom.site.file}:{oom.site.line})" if oom.site.file else "")
    return RankPeak(
        file=file,
        rank=rank_of(file),
        device=worst.source.state.device,
        entries=worst.source.num_events,
        peak_bytes=worst.peak.peak_bytes,
        reserved_bytes=0 if worst.peak.fragmentation is None else worst.peak.fragmentation.reserved_bytes,
        kinds=tuple((share.name, share.bytes) for share in worst.peak.by_kind),
        out_of_memory="" if oom is None else f"{where}: {oom.advice}",
        stage=stage_of(file),
        held=tuple(map(_held, replayed.devices, found.peaks)),
    )


def held_on_devices(replayed: ReplayedSnapshot) -> tuple[HeldOnDevice, ...]:
    """The most that a process reserves of each device of its recording, and the line that made most of it."""
    return tuple(_held(device, peak_of_device(device)) for device in replayed.devices)


def _held(device: ReplayedDevice, peak: Peak) -> HeldOnDevice:
    rows = (row for row in peak.rows if row.site.file is not None)
    site = next((row.site for row in rows), Site(""))  # the largest is first
    return HeldOnDevice(device.state.device, int(device.replay.reserved_bytes.max()), site.file, site.line)


def explain_job(peaks: Sequence[RankPeak]) -> JobFinding:
    """Put ranks beside each other, whatever order they come in."""
    times = Counter(rank.rank for rank in peaks if rank.rank is not None)
    marked = (replace(rank, is_repeated=rank.rank is not None and times[rank.rank] > 1) for rank in peaks)
    ordered = sorted(marked, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.file))
    readable = _told_apart([rank for rank in ordered if not rank.problem])
    groups = _groups(readable)
    if _are_runs(ordered):
        groups = tuple(RankGroup((run,), is_odd=False) for run in sorted(readable, key=lambda run: run.file))
    worst = max(readable, key=lambda rank: (bool(rank.out_of_memory), rank.peak_bytes), default=None)
    return JobFinding(
        ranks=tuple(readable),
        unreadable=tuple(rank for rank in ordered if rank.problem),
        missing=_missing(ordered),
        groups=groups,
        worst=worst,
        typical=_typical(groups, worst),
    )


def _are_runs(recordings: Sequence[RankPeak]) -> bool:
    """True if no recording has a rank, nor a place in a job."""
    return all(one.rank is None and one.stage is None for one in recordings)


def _missing(ranks: Sequence[RankPeak]) -> tuple[int, ...]:
    """Numbers without a recording; a job counts from 0. Where a name has no number, nobody knows whose it is."""
    numbers = {rank.rank for rank in ranks if rank.rank is not None}
    if len(numbers) < 2 or any(rank.rank is None for rank in ranks):
        return ()
    return tuple(number for number in range(max(numbers)) if number not in numbers)


def _groups(ranks: Sequence[RankPeak]) -> tuple[RankGroup, ...]:
    gathered: list[list[RankPeak]] = []
    columns = _columns_of(ranks)
    firsts = np.empty_like(columns)  # of each group the columns of its first rank
    for rank, own in zip(ranks, columns, strict=True):
        alike = np.flatnonzero(_are_alike(firsts[: len(gathered)], own))
        if len(alike):
            gathered[alike[0]].append(rank)
        else:
            firsts[len(gathered)] = own
            gathered.append([rank])
    gathered.sort(key=lambda group: (-len(group), -group[0].peak_bytes))
    most: dict[int | None, int] = {}
    for group in gathered:
        most.setdefault(group[0].stage, len(group))
    return tuple(RankGroup(tuple(group), len(group) * _FEW <= most[group[0].stage]) for group in gathered)


def _typical(groups: Sequence[RankGroup], worst: RankPeak | None) -> RankPeak | None:
    if worst is None:
        return None
    of_stage = next(group for group in groups if group.ranks[0].stage == worst.stage)
    return (groups[0] if of_stage.ranks == (worst,) else of_stage).ranks[0]


def _told_apart(ranks: Sequence[RankPeak]) -> list[RankPeak]:
    """Remove a stage that all ranks share: a folder's name has it, which tells no ranks apart."""
    is_shared = len(ranks) > 1 and len({rank.stage for rank in ranks}) == 1
    return [replace(rank, stage=None) for rank in ranks] if is_shared else list(ranks)


def _columns_of(ranks: Sequence[RankPeak]) -> Ints:
    """[ranks, 3 + kinds] whether memory ran out, the stage by a number, the peak, and the bytes of each kind."""
    stages, kinds = Interned(), Interned()
    numbers = [[kinds[kind] for kind, _ in rank.kinds] for rank in ranks]
    columns = np.zeros((len(ranks), 3 + len(kinds)), np.int64)
    for row, rank, of_rank in zip(columns, ranks, numbers, strict=True):
        row[:3] = bool(rank.out_of_memory), stages[rank.stage], rank.peak_bytes
        row[3:][of_rank] = [size_bytes for _, size_bytes in rank.kinds]
    return columns


def _are_alike(firsts: Ints, own: Ints) -> Bools:
    """[groups] whether the rank of a row of `_columns_of` belongs to each group, by the columns of its first rank."""
    apart = np.abs(firsts[:, 3:] - own[3:]).sum(axis=1)
    are_alike: Bools = apart <= ALIKE * np.maximum(firsts[:, 2], own[2])
    are_alike &= (firsts[:, :2] == own[:2]).all(axis=1)
    return are_alike
