"""What changed between the peaks of two snapshots, by kind and by stack, to the byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from tracer.analysis.peak_diff import Change, PeakDiff, SavedPeak, largest_first
from tracer.analysis.snapshots.findings import ReplayedDevice, replay_snapshot
from tracer.analysis.snapshots.sites import BEFORE_RECORDING, NO_FRAMES, Sites
from tracer.analysis.snapshots.stack_matching import Key, differing, match_stacks
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.replay import BEFORE

_SUMMED: Final = ("before_bytes", "after_bytes", "before_count", "after_count")


def diff_snapshots(before: Snapshot, after: Snapshot) -> tuple[PeakDiff, ...]:
    """Compare the peaks of two snapshots, device by device; a side that lacks a device counts as zero.

    Args:
        before: The first snapshot.
        after: The one to compare with it.

    Raises:
        SnapshotError: The end state of one of them contradicts itself.
    """
    replayed = [replay_snapshot(snapshot) for snapshot in (before, after)]
    sides = [{device.state.device: peak_side(device, side.sites) for device in side.devices} for side in replayed]
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


def diff_sides(device: int, before_side: PeakSide, after_side: PeakSide) -> PeakDiff:
    """Compare two peaks of the device of this index.

    Args:
        device: Index of the device.
        before_side: What it held in the first snapshot.
        after_side: In the second one.
    """
    before, after = before_side.by_key, after_side.by_key
    pairs = match_stacks(before, after)
    by_stack = [_change(key, pairs.get(key), before, after) for key in before]
    new = after.keys() - pairs.values()
    by_stack += [_change(None, key, before, after) for key in after if key in new]
    changes = {"kind": largest_first(_by_kind(by_stack)), "stack": largest_first(by_stack)}
    return PeakDiff(_peak(device, before_side), _peak(device, after_side), changes)


def _peak(device: int, side: PeakSide) -> SavedPeak:
    return SavedPeak(f"device {device}", sum(size for size, _ in side.by_key.values()), side.phase or None)


def _change(
    old: Key | None, new: Key | None, before: Mapping[Key, tuple[int, int]], after: Mapping[Key, tuple[int, int]]
) -> Change:
    """What became of one stack; it has the frames of the second side where it is there."""
    (before_bytes, before_count) = before[old] if old is not None else (0, 0)
    (after_bytes, after_count) = after[new] if new is not None else (0, 0)
    key = old if new is None else new
    assert key is not None
    was, became = differing(old[1], new[1]) if old is not None and new is not None else ("", "")
    return Change((key[0], *key[1]), before_bytes, after_bytes, before_count, after_count, was, became)


def _by_kind(changes: Iterable[Change]) -> Iterator[Change]:
    of_kind: dict[str, list[Change]] = {}
    for change in changes:
        of_kind.setdefault(change.name[0], []).append(change)
    for kind, group in of_kind.items():
        sums = (sum(map(attrgetter(name), group)) for name in _SUMMED)
        yield Change((kind,), *sums)
