"""What changed between the peaks of two snapshots, by kind and by stack, to the byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tracer.analysis.snapshots.findings import ReplayedDevice, replay_snapshot
from tracer.analysis.snapshots.sites import BEFORE_RECORDING, NO_FRAMES, Sites
from tracer.analysis.snapshots.stack_matching import Key, differing, match_stacks
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.replay import BEFORE


@dataclass(frozen=True, slots=True)
class Change:
    """One kind, or one kind of one stack, at the peaks of both sides.

    Attributes:
        kind: One of `KINDS`.
        stack: Functions and files without line numbers, innermost first; empty in changes by kind.
        before_bytes: At the peak of the first snapshot.
        after_bytes: At the peak of the second one.
        before_count: Blocks on the first side.
        after_count: Blocks on the second side.
        was: The innermost frame that the first side has instead of `became`, where the stacks are not the same.
        became: The frame of the second side.
    """

    kind: str
    stack: tuple[str, ...]
    before_bytes: int
    after_bytes: int
    before_count: int
    after_count: int
    was: str = ""
    became: str = ""

    @property
    def bytes(self) -> int:
        """The change."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class DeviceDiff:
    """The peaks of one device on both sides; a side that lacks the device counts as zero.

    Attributes:
        device: Its index.
        before_bytes: Requested bytes at the first snapshot's peak.
        after_bytes: Requested bytes at the second one's.
        by_kind: Changes by kind, largest first; they sum to the change of the peak.
        by_stack: Changes by kind and stack, likewise.
        before_phase: In which the first peak was: `backward`, `optimizer`, the start, or empty if not known.
        after_phase: The same of the second one.
    """

    device: int
    before_bytes: int
    after_bytes: int
    by_kind: tuple[Change, ...]
    by_stack: tuple[Change, ...]
    before_phase: str = ""
    after_phase: str = ""

    @property
    def bytes(self) -> int:
        """The change of the peak."""
        return self.after_bytes - self.before_bytes


def diff_snapshots(before: Snapshot, after: Snapshot) -> tuple[DeviceDiff, ...]:
    """Compare the peaks of two snapshots, device by device.

    Raises:
        SnapshotError: The end state of one of them contradicts itself.
    """
    replayed = [replay_snapshot(one) for one in (before, after)]
    sides = [{one.state.device: peak_side(one, whole.sites) for one in whole.devices} for whole in replayed]
    return tuple(
        diff_sides(device, sides[0].get(device, PeakSide()), sides[1].get(device, PeakSide()))
        for device in sorted({*sides[0], *sides[1]})
    )


@dataclass(frozen=True, slots=True)
class PeakSide:
    """One device's peak: bytes and number of its blocks by kind and stack without lines, and its phase."""

    by_key: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    phase: str = ""


def peak_side(device: ReplayedDevice, sites: Sites) -> PeakSide:
    """What one device of a replayed snapshot held at its peak, to be compared with another one's."""
    peak_entry, lives = device.replay.peak_entry, device.replay.lives
    rows = lives.alive_after(peak_entry)
    kinds = device.kinds.kinds_and_evidence(rows)
    before = (lives.begin[rows] == BEFORE).tolist()
    stacks: dict[tuple[int, bool], tuple[str, ...]] = {}
    found: dict[Key, tuple[int, int]] = {}
    columns = (lives.stack[rows].tolist(), before, [kind for kind, _ in kinds], lives.requested_bytes[rows].tolist())
    for stack, is_before, kind, size in zip(*columns, strict=True):
        if (stack, is_before) not in stacks:
            stacks[stack, is_before] = _names(sites, stack, is_before)
        names = stacks[stack, is_before]
        total, count = found.get((kind, names), (0, 0))
        found[kind, names] = (total + size, count + 1)
    return PeakSide(found, device.kinds.phase_at(peak_entry) or _start(device.state, peak_entry))


def _start(state: DeviceState, entry: int) -> str:
    if entry >= 0:
        return ""
    return "the start of the recording" if len(state.trace) else "the moment of the snapshot"


def _names(sites: Sites, stack: int, is_before: bool) -> tuple[str, ...]:
    names = sites.without_lines(stack)
    if not names:
        names = () if sites.site(stack).frame == NO_FRAMES else (sites.site(stack).frame,)
    return (*names, BEFORE_RECORDING) if is_before else names or (NO_FRAMES,)


def diff_sides(device: int, before_side: PeakSide, after_side: PeakSide) -> DeviceDiff:
    """Compare two peaks."""
    before, after = before_side.by_key, after_side.by_key
    pairs = match_stacks(before, after)
    by_stack = [_change(key, pairs.get(key), before, after) for key in before]
    new = after.keys() - pairs.values()
    by_stack += [_change(None, key, before, after) for key in after if key in new]
    return DeviceDiff(
        device=device,
        before_bytes=sum(size for size, _ in before.values()),
        after_bytes=sum(size for size, _ in after.values()),
        by_kind=_sorted(_by_kind(by_stack)),
        by_stack=_sorted(by_stack),
        before_phase=before_side.phase,
        after_phase=after_side.phase,
    )


def _change(
    old: Key | None, new: Key | None, before: Mapping[Key, tuple[int, int]], after: Mapping[Key, tuple[int, int]]
) -> Change:
    """What became of one stack; it has the frames of the second side where it is there."""
    (before_bytes, before_count) = before[old] if old is not None else (0, 0)
    (after_bytes, after_count) = after[new] if new is not None else (0, 0)
    key = old if new is None else new
    assert key is not None
    was, became = differing(old[1], new[1]) if old is not None and new is not None else ("", "")
    return Change(*key, before_bytes, after_bytes, before_count, after_count, was, became)


def _by_kind(changes: list[Change]) -> list[Change]:
    sums: dict[str, list[int]] = {}
    for c in changes:
        numbers = (c.before_bytes, c.after_bytes, c.before_count, c.after_count)
        sums[c.kind] = list(np.add(sums.get(c.kind, [0] * 4), numbers).tolist())
    return [Change(kind, (), n[0], n[1], n[2], n[3]) for kind, n in sums.items()]


def _sorted(changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda c: (-abs(c.bytes), c.kind, c.stack)))
