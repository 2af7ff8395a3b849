"""Blocks of a snapshot gathered by the line to blame and by kind, so that the groups sum to the blocks."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.analysis.snapshots.kind_finder import KindFinder
from tracer.analysis.snapshots.sites import BEFORE_RECORDING, NO_FRAMES, Site, Sites
from tracer.arrays import Ints
from tracer.snapshot.replay import BEFORE, Lives


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks of one kind that one line allocated.

    Attributes:
        bytes: What they were asked for, together.
        count: How many they are.
        kind: One of `KINDS`.
        evidence: Why they are of that kind; of the most bytes, where several rules agree.
        site: The line to blame; of backward that of its operation of forward, where it is certain, and says so.
        stack: The stack of the most bytes, innermost frame first, without unwinder, allocator and interpreter.
        is_before_recording: They were there before the first entry.
    """

    bytes: int
    count: int
    kind: str
    evidence: str
    site: Site
    stack: tuple[str, ...]
    is_before_recording: bool


def group_rows(lives: Lives, rows: Ints, *, kinds: KindFinder, sites: Sites) -> tuple[Group, ...]:
    """Gather rows by kind, line, and whether they were there before the recording; largest first.

    Returns:
        Groups whose bytes and counts sum to those of the rows.
    """
    gathered: dict[tuple[str, Site, bool], list[_Part]] = {}
    for part in _parts(lives, rows, kinds):
        site = sites.site_of_backward(part.stack, part.forward)
        if part.is_before and site.frame == NO_FRAMES:
            site = Site(BEFORE_RECORDING)
        gathered.setdefault((part.kind, site, part.is_before), []).append(part)
    groups = [_group(key, parts, sites) for key, parts in gathered.items()]
    return tuple(sorted(groups, key=lambda g: (-g.bytes, g.kind, g.site.frame, g.site.file or "", g.site.line or 0)))


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that share stack, kind and evidence, and of backward the stack of their operation of forward, else -1."""

    bytes: int
    count: int
    kind: str
    evidence: str
    stack: int
    forward: int
    is_before: bool


def _parts(lives: Lives, rows: Ints, kinds: KindFinder) -> list[_Part]:
    sums: dict[tuple[int, int, bool, tuple[str, str]], list[int]] = {}
    columns = (
        lives.stack[rows].tolist(),
        kinds.backward_lines.forward_stacks(rows).tolist(),
        (lives.begin[rows] == BEFORE).tolist(),
        kinds.kinds_and_evidence(rows),
    )
    for *key, size in zip(*columns, lives.requested_bytes[rows].tolist(), strict=True):
        total = sums.setdefault(tuple(key), [0, 0])
        total[0] += size
        total[1] += 1
    return [
        _Part(size, count, kind, evidence, stack, forward, is_before)
        for (stack, forward, is_before, (kind, evidence)), (size, count) in sums.items()
    ]


def _group(key: tuple[str, Site, bool], parts: list[_Part], sites: Sites) -> Group:
    kind, site, is_before = key
    largest = max(parts, key=lambda part: part.bytes)
    return Group(
        bytes=sum(part.bytes for part in parts),
        count=sum(part.count for part in parts),
        kind=kind,
        evidence=largest.evidence,
        site=site,
        stack=sites.readable(largest.stack),
        is_before_recording=is_before,
    )
