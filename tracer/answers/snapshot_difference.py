"""Changes between the peaks of two snapshots, by kind and by stack, to the byte, and the growth of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

import numpy as np

from tracer.answers.difference import PeakChange, PeakDiff, SavedPeak, largest_first
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.arrays import Grouped, grouped
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.sites import NO_FRAMES, Sites
from tracer.blocks.from_snapshot.sizes import most_at_once
from tracer.blocks.kinds import BEFORE_RECORDING, Kind
from tracer.blocks.table import BEFORE, Blocks
from tracer.snapshot.columns import Snapshot

_SUMMED: Final = ("before_bytes", "after_bytes", "before_count", "after_count")


def diff_snapshots(before: Snapshot, after: Snapshot) -> tuple[PeakDiff, ...]:
    """Compare the peaks of two snapshots, device by device; a side that lacks a device counts as zero."""
    sides = [{one.state.device: _side(one) for one in replay_snapshot(side).devices} for side in (before, after)]
    return tuple(
        _diff_sides(device, *(side.get(device, _PeakSide()) for side in sides))
        for device in sorted({*sides[0], *sides[1]})
    )


@dataclass(frozen=True, slots=True)
class _PeakSide:
    """A device's peak, as one of the two sides that are compared."""

    # Bytes and number of its blocks, by kind and stack without lines.
    by_key: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    phase: str = ""
    # The most that each kind and stack had in use at once, also those that the peak has nothing of; a kind as a whole
    # has no stack. Empty for a device that is not there.
    own_peaks: Mapping[Key, int] = field(default_factory=dict)

    @property
    def not_at_peak(self) -> list[Key]:
        """Kinds and stacks that were in use at other moments alone."""
        return [key for key in self.own_peaks if key[1] and key not in self.by_key]


def _side(device: ReplayedDevice) -> _PeakSide:
    peak_entry, blocks = device.replay.peak_entry, device.blocks
    at_peak = blocks.take(blocks.alive_at(peak_entry))
    keys = _keys(at_peak, device.sites)
    sums = zip(keys.sums(at_peak.size_bytes), keys.counts(), strict=True)
    start = "the start of the recording" if len(device.state.trace) else "the moment of the snapshot"
    phase = device.kinds.phase_at(peak_entry) or ("" if peak_entry >= 0 else start)
    return _PeakSide(dict(zip(keys.keys, sums, strict=True)), phase, _own_peaks(blocks, device.sites))


def _keys(blocks: Blocks, sites: Sites) -> Grouped[Key]:
    return grouped(
        (blocks.kind, blocks.stack, blocks.phase == BEFORE),
        lambda kind, stack, is_before: (Kind(kind).words, _names(sites, stack, is_before)),
    )


def _own_peaks(blocks: Blocks, sites: Sites) -> dict[Key, int]:
    keys = _keys(blocks, sites)
    peaks, of_kinds = (
        dict(
            zip(
                *map(np.ndarray.tolist, most_at_once(of, blocks.made_at, blocks.freed_at, blocks.size_bytes)),
                strict=True,
            )
        )
        for of in (keys.of_row, blocks.kind)
    )
    of_stacks = {key: peaks[number] for number, key in enumerate(keys.keys)}
    return of_stacks | {(kind.words, ()): of_kinds.get(kind, 0) for kind in Kind}


def _names(sites: Sites, stack: int, is_before: bool) -> tuple[str, ...]:
    names = sites.without_lines(stack)
    if not names:
        names = () if sites.site(stack).frame == NO_FRAMES else (sites.site(stack).frame,)
    return (*names, BEFORE_RECORDING) if is_before else names or (NO_FRAMES,)


def _diff_sides(device: int, before_side: _PeakSide, after_side: _PeakSide) -> PeakDiff:
    """Compare two peaks of the device of this index."""
    before, after = before_side.by_key, after_side.by_key
    pairs = match_stacks(before, after)
    come = after.keys() - pairs.values()
    # A stack that one peak lacks may have been in use at another moment of that side.
    pairs |= match_functions([key for key in before if key not in pairs], after_side.not_at_peak)
    olds = match_functions([key for key in after if key in come], before_side.not_at_peak)
    by_stack = [_change(key, pairs.get(key), before_side, after_side) for key in before]
    by_stack += [_change(olds.get(key), key, before_side, after_side) for key in after if key in come]
    of_kind: dict[str, list[PeakChange]] = {}
    for change in by_stack:
        of_kind.setdefault(change.name[0], []).append(change)
    has_own = bool(before_side.own_peaks and after_side.own_peaks)
    kinds = []
    for kind, group in of_kind.items():
        sizes = (sum(map(attrgetter(name), group)) for name in _SUMMED)
        own_peaks = (before_side.own_peaks[kind, ()], after_side.own_peaks[kind, ()]) if has_own else None
        kinds.append(replace(PeakChange((kind,), *sizes), own_peaks=own_peaks))
    old_peak, new_peak = (
        SavedPeak(f"device {device}", sum(size for size, _ in side.by_key.values()), side.phase or None)
        for side in (before_side, after_side)
    )
    return PeakDiff(old_peak, new_peak, {"kind": largest_first(kinds), "stack": largest_first(by_stack)})


def _change(old: Key | None, new: Key | None, before: _PeakSide, after: _PeakSide) -> PeakChange:
    """Return the change of one stack, with the frames of the second side if it has the stack."""
    (before_bytes, before_count) = before.by_key.get(old, (0, 0)) if old is not None else (0, 0)
    (after_bytes, after_count) = after.by_key.get(new, (0, 0)) if new is not None else (0, 0)
    key = old if new is None else new
    assert key is not None
    was, became = differing(old[1], new[1]) if old is not None and new is not None else ("", "")
    own_peaks = None
    if before.own_peaks and after.own_peaks:
        was_most = before.own_peaks[old] if old is not None else 0
        own_peaks = was_most, after.own_peaks[new] if new is not None else 0
    sizes = before_bytes, after_bytes, before_count, after_count
    return PeakChange((key[0], *key[1]), *sizes, was, became, own_peaks)


Stack = tuple[str, ...]
Key = tuple[str, Stack]


def match_stacks(before: Iterable[Key], after: Iterable[Key]) -> dict[Key, Key]:
    """For each kind and stack of the first side, the same code's stack on the second side.

    Equal ones first. Then those with the same functions in other files. Then those whose inner frames are the same, at
    least half of the shorter one, the longest such part first: an outer frame more or less is no change.

    Returns:
        Pairs; what has no counterpart is not in it. No two have the same counterpart.
    """
    lefts, rights = dict.fromkeys(before), dict.fromkeys(after)
    matches = match_functions(lefts, rights)
    taken = set(matches.values())
    rest = [key for key in lefts if key not in matches], [key for key in rights if key not in taken]
    return matches | _by_inner_frames(*rest)


def match_functions(before: Iterable[Key], after: Iterable[Key]) -> dict[Key, Key]:
    """Match stacks that are equal, or that have the same functions in other files; the first pass of `match_stacks`."""
    lefts, rights = dict.fromkeys(before), dict.fromkeys(after)
    matches = {key: key for key in lefts if key in rights}
    rest = [key for key in lefts if key not in matches], [key for key in rights if key not in matches]
    return matches | _by_functions(*rest)


def differing(before: Stack, after: Stack) -> tuple[str, str]:
    """The innermost frame that differs, on both sides; empty where a side has no more."""
    same = _common(before, after)
    return ("".join(before[same : same + 1]), "".join(after[same : same + 1]))


def _functions(stack: Stack) -> Stack:
    return tuple(frame.split(" (")[0] for frame in stack)


def _by_functions(before: Sequence[Key], after: Sequence[Key]) -> dict[Key, Key]:
    """Pairs of the same kind and functions; where there are several, in their order."""
    of_functions: dict[Hashable, list[Key]] = {}
    for kind, stack in after:
        of_functions.setdefault((kind, _functions(stack)), []).append((kind, stack))
    matches = {}
    for kind, stack in before:
        if candidates := of_functions.get((kind, _functions(stack))):
            matches[kind, stack] = candidates.pop(0)
    return matches


def _by_inner_frames(before: Sequence[Key], after: Sequence[Key]) -> dict[Key, Key]:
    """Pairs with the longest common inner part; each of both sides at most once."""
    of_innermost: dict[Hashable, list[Key]] = {}
    for kind, stack in after:
        of_innermost.setdefault((kind, _functions(stack[:1])), []).append((kind, stack))
    pairs = []
    for kind, stack in before:
        for candidate in of_innermost.get((kind, _functions(stack[:1])), []):
            same = _common(_functions(stack), _functions(candidate[1]))
            if same and 2 * same >= min(len(stack), len(candidate[1])):
                pairs.append((-same, (kind, stack), candidate))
    matched: dict[Key, Key] = {}
    taken: set[Key] = set()
    for _, key, candidate in sorted(pairs, key=lambda pair: pair[0]):
        if key not in matched and candidate not in taken:
            matched[key] = candidate
            taken.add(candidate)
    return matched


def _common(stack: Stack, other: Stack) -> int:
    same = 0
    for frame, counterpart in zip(stack, other, strict=False):
        if frame != counterpart:
            break
        same += 1
    return same
