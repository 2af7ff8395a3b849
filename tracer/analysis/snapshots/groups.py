"""Blocks of a snapshot gathered by the line to blame and by kind, so that the groups sum to the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from tracer.analysis.kinds import BEFORE_RECORDING, Evidence, Kind
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.analysis.snapshots.sites import NO_FRAMES, Site, Sites
from tracer.arrays import Ints, grouped, largest_first
from tracer.snapshot.replay import BEFORE

IN_RECORDING: Final = "in the recording"


@dataclass(frozen=True, slots=True)
class SnapshotRow(PeakRow):
    """A row of a snapshot: blocks of one kind that one line allocated, and the bytes that they were asked for."""

    # The stack of the most bytes, innermost frame first, without unwinder, allocator and interpreter.
    stack: tuple[str, ...] = ()
    # The same blocks by the first frame above the line that tells their stacks apart; empty where none does, and where
    # that was not asked for.
    callers: tuple[CallerShare, ...] = ()
    in_documents: ClassVar = (
        "bytes", "count", "kind", "evidence", "is_before_recording", "site", "stack", "callers"
    )  # fmt: skip

    @property
    def kind(self) -> Kind:
        """What they are."""
        return Kind[self.category]

    @property
    def is_before_recording(self) -> bool:
        """Whether they were there before the first entry; of a state without history nothing says so."""
        return self.phase == BEFORE_RECORDING

    @property
    def site(self) -> Site:
        """The line to blame; of backward that of its operation of forward, where it is certain, and says so."""
        frame = BEFORE_RECORDING if self.is_before_recording and self.op == NO_FRAMES else self.op
        return Site(frame or "", self.file, self.line)

    @property
    def kind_words(self) -> str:
        """The kind for a table, as `parameter, before recording` where neither kind nor line say that."""
        says_before = self.kind is Kind.BEFORE_RECORDING or self.site.frame == BEFORE_RECORDING
        is_unsaid = self.is_before_recording and not says_before
        return f"{self.kind.words}, {BEFORE_RECORDING}" if is_unsaid else self.kind.words


def group_rows(device: ReplayedDevice, rows: Ints) -> tuple[SnapshotRow, ...]:
    """Gather rows by kind, line, and whether they were there before the recording; largest first."""
    members, keys, _ = _gathered(device, rows)
    groups = [
        replace(_group(key, parts, device), callers=callers_of([_called(part) for part in parts], device.sites))
        for key, parts in zip(keys, members, strict=True)
    ]
    return tuple(sorted(groups, key=lambda g: (-g.bytes, g.kind, g.site.frame, g.site.file or "", g.site.line or 0)))


def group_lives(device: ReplayedDevice, rows: Ints) -> tuple[tuple[SnapshotRow, ...], Ints]:
    """The same without callers, and the number of the group of each row."""
    members, keys, group_of_row = _gathered(device, rows)
    return largest_first([_group(key, mine, device) for key, mine in zip(keys, members, strict=True)], group_of_row)


def _gathered(
    device: ReplayedDevice, rows: Ints
) -> tuple[list[list[_StackPart]], Sequence[tuple[Kind, Site, bool]], Ints]:
    """The parts of each group, what its blocks have in common, and the number of the group of each row."""
    lives, kinds = device.replay.lives, device.kinds
    columns = (
        lives.stack[rows],
        kinds.backward_lines.forward_stacks(rows),
        lives.begin[rows] == BEFORE,
        *kinds.kinds_and_evidence(rows),
    )
    by_stack = grouped(columns, lambda *values: values)
    sums = zip(by_stack.keys, by_stack.sums(lives.requested_bytes[rows]), by_stack.counts(), strict=True)
    parts = [_StackPart(size, count, *values) for values, size, count in sums]
    groups = grouped([np.arange(len(parts))], lambda part: _key(parts[part], device.sites))
    members: list[list[_StackPart]] = [[] for _ in groups.keys]
    for part, group in zip(parts, groups.of_row.tolist(), strict=True):
        members[group].append(part)
    return members, groups.keys, groups.of_row[by_stack.of_row]


def _key(part: _StackPart, sites: Sites) -> tuple[Kind, Site, bool]:
    site = sites.site_of_backward(part.stack, part.forward)
    return Kind(part.kind), site, part.is_before


@dataclass(frozen=True, slots=True)
class _StackPart:
    """Rows that share stack, kind and evidence, and of backward the stack of their operation of forward, else -1."""

    bytes: int
    count: int
    stack: int
    forward: int
    is_before: bool
    kind: int
    evidence: int


def _called(part: _StackPart) -> tuple[int, int, int]:
    """The stack to look at, of backward that of its operation of forward; bytes and number of blocks."""
    return part.stack if part.forward < 0 else part.forward, part.bytes, part.count


def _group(key: tuple[Kind, Site, bool], parts: list[_StackPart], device: ReplayedDevice) -> SnapshotRow:
    kind, site, is_before = key
    largest = max(parts, key=lambda part: part.bytes)
    return SnapshotRow(
        bytes=sum(part.bytes for part in parts),
        count=sum(part.count for part in parts),
        category=kind.name,
        torch_category=None,
        evidence=Evidence(largest.evidence).text,
        phase=(BEFORE_RECORDING if is_before else IN_RECORDING) if len(device.state.trace) else "not known",
        module=None,
        op=site.frame,
        file=site.file,
        line=site.line,
        stack=device.sites.readable(largest.stack),
    )


@dataclass(frozen=True, slots=True)
class CallerShare:
    """The blocks of a group that have one caller."""

    site: Site | None  # The caller's line; of blocks that have none, where others have one, None
    bytes: int  # What they were asked for, together
    count: int


def callers_of(stacks: Sequence[tuple[int, int, int]], sites: Sites) -> tuple[CallerShare, ...]:
    """Divide blocks of one line by the first frame above it in which their stacks differ; largest first.

    Returns:
        Shares that sum to the blocks; none where nothing differs.
    """
    if len(stacks) < 2:
        return ()
    of_stack = [sites.callers(stack) for stack, _, _ in stacks]
    depth = _first_difference(of_stack)
    if depth is None:
        return ()
    sums: dict[Site | None, tuple[int, int]] = {}
    for callers, (_, size, count) in zip(of_stack, stacks, strict=True):
        site = callers[depth] if depth < len(callers) else None
        total, number = sums.get(site, (0, 0))
        sums[site] = total + size, number + count
    shares = (CallerShare(site, size, count) for site, (size, count) in sums.items())
    return tuple(sorted(shares, key=lambda share: (-share.bytes, str(share.site))))


def _first_difference(of_stack: Sequence[tuple[Site, ...]]) -> int | None:
    shortest, longest = min(map(len, of_stack)), max(map(len, of_stack))
    differing = (depth for depth in range(shortest) if len({callers[depth] for callers in of_stack}) > 1)
    return next(differing, shortest if shortest < longest else None)
