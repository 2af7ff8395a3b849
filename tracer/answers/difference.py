"""Changes between two peaks, to the byte: of runs by category, module, operator and line, of snapshots by stack."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.answers.rows import Row
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.arrays import Grouped, grouped
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.sites import NO_FRAMES
from tracer.blocks.from_snapshot.sizes import most_at_once
from tracer.blocks.kinds import BEFORE_RECORDING, Kind
from tracer.blocks.table import BEFORE, Blocks
from tracer.snapshot.columns import Snapshot
from tracer.units import format_growth

if TYPE_CHECKING:
    from tracer.answers.findings import RunFindings

OUTSIDE_MODULES = "outside modules"
NO_OPERATOR = "no operator"
# One small tensor more or less makes any factor of less than this.
_LEAST_BYTES = 1 << 16
_SUMMED: Final = ("before_bytes", "after_bytes", "before_count", "after_count")
_MOST_GROWTH = 100  # A side with less than a hundredth of the other has next to nothing


@dataclass(frozen=True, slots=True)
class SavedPeak:
    """A peak as peak.json has it."""

    device: str  # Name as `str(torch.device)` writes it; of a snapshot `device 0`
    bytes: int
    phase: str | None  # Phase of the allocation that made the peak, or None
    rows: tuple[Row, ...] = ()  # Equal blocks; of a snapshot none, whose blocks are compared by stack


def saved_peak(findings: RunFindings) -> SavedPeak:
    """The largest peak of a run, as it is compared with another run's."""
    peak = findings.worst.peak
    return SavedPeak(peak.device, peak.peak_bytes, peak.phase, peak.rows)


@dataclass(frozen=True, slots=True)
class PeakChange:
    """Memory of one name at both peaks."""

    # Category, module, operator, or all of them and the line, for people. Of snapshots a kind, or a kind and the
    # functions and files of a stack without line numbers, innermost first.
    name: tuple[str, ...]
    before_bytes: int
    after_bytes: int
    before_count: int
    after_count: int
    was: str = ""  # The innermost frame that the first stack has instead of `became`, where the stacks are not the same
    became: str = ""  # The frame of the second stack
    # For snapshots, the most bytes in use at once in either recording, at any moment.
    own_peaks: tuple[int, int] | None = None

    @property
    def bytes(self) -> int:
        """Bytes after minus bytes before."""
        return self.after_bytes - self.before_bytes

    @property
    def growth(self) -> float | None:
        """Factor between the bytes of both, of `own_peaks` where known; None where either is next to nothing."""
        before, after = self.own_peaks or (self.before_bytes, self.after_bytes)
        if min(before, after) < _LEAST_BYTES or max(before, after) > _MOST_GROWTH * min(before, after):
            return None
        return after / before

    @property
    def growth_words(self) -> str:
        """`x2`, `over x100`, `new` from 0 bytes, `gone` to 0, or nothing where both sides are small."""
        before, after = self.own_peaks or (self.before_bytes, self.after_bytes)
        if self.growth is not None or max(before, after) < _LEAST_BYTES:
            return format_growth(self.growth)
        if not min(before, after):
            return "new" if after else "gone"
        if max(before, after) <= _MOST_GROWTH * min(before, after):
            return ""
        return f"over x{_MOST_GROWTH}" if after > before else f"under x{1 / _MOST_GROWTH:g}"


@dataclass(frozen=True, slots=True)
class PeakDiff:
    """Two peaks compared; the changes of each list sum to the change of the peak."""

    before: SavedPeak
    after: SavedPeak
    # By what they are gathered by, largest first: `category`, `module`, `operator` and `line` of runs, `kind` and
    # `stack` of snapshots.
    changes: Mapping[str, tuple[PeakChange, ...]]

    @property
    def before_bytes(self) -> int:
        """The first peak."""
        return self.before.bytes

    @property
    def bytes(self) -> int:
        """The change of the peak."""
        return self.after.bytes - self.before.bytes


def diff_peaks(before: SavedPeak, after: SavedPeak) -> PeakDiff:
    """Compare the peaks of two runs.

    In the list by line rows are matched by operator and file and not by line, because lines move; the name says the
    lines of both sides. Where compiled code allocated rows of either side, they are matched by line and not by
    operator, whose place a kernel takes.
    """
    is_compiled = any(row.is_compiled for row in (*before.rows, *after.rows))
    line_name = _place_name if is_compiled else _line_name

    def line_key(row: Row) -> Hashable:
        return row.category, row.module, row.line if is_compiled else row.made_by, row.file or ""

    named_before, named_after = _with_common_files(before, after)
    changes = {
        "category": _changes(before, after, lambda row: row.category, lambda row, *_: (row.category,)),
        "module": _changes(before, after, _module, lambda row, *_: (_module(row),)),
        "operator": _changes(before, after, _operator, lambda row, *_: (_operator(row),)),
        "line": _changes(named_before, named_after, line_key, line_name),
    }
    return PeakDiff(before, after, changes)


def largest_first(changes: Iterable[PeakChange]) -> tuple[PeakChange, ...]:
    """Changes in the order of their size, and of their names where that is the same."""
    return tuple(sorted(changes, key=lambda change: (-abs(change.bytes), change.name)))


Name = Callable[[Row, list[Row], list[Row]], tuple[str, ...]]


def _changes(before: SavedPeak, after: SavedPeak, key: Callable[[Row], Hashable], name: Name) -> tuple[PeakChange, ...]:
    sides: dict[Hashable, tuple[list[Row], list[Row]]] = {}
    for side, peak in enumerate((before, after)):
        for row in peak.rows:
            sides.setdefault(key(row), ([], []))[side].append(row)
    return largest_first(
        PeakChange(
            name((was or now)[0], was, now),
            sum(row.bytes for row in was),
            sum(row.bytes for row in now),
            sum(row.count for row in was),
            sum(row.count for row in now),
        )
        for was, now in sides.values()
    )


def _module(row: Row) -> str:
    return row.module if row.module is not None else OUTSIDE_MODULES


def _operator(row: Row) -> str:
    return row.made_by or NO_OPERATOR


def _with_common_files(before: SavedPeak, after: SavedPeak) -> tuple[SavedPeak, SavedPeak]:
    """Return both peaks with one name on both sides for each file.

    `/ci/main/train.py` and `/ci/head/train.py` are one file in two checkouts, where neither side has another one left
    of that name.
    """
    was, now = ({_short_file(row.file) for row in side.rows if row.file} for side in (before, after))
    gone, new = dict[str, list[str]](), dict[str, list[str]]()
    for left, by_last_part in ((was - now, gone), (now - was, new)):
        for file in left:
            by_last_part.setdefault(file.rpartition("/")[2], []).append(file)
    same = {files[0]: new[last][0] for last, files in gone.items() if len(files) == len(new.get(last, ())) == 1}

    def named(row: Row) -> Row:
        if not row.file:
            return row
        file = _short_file(row.file)
        return replace(row, file=same.get(file, file))

    return replace(before, rows=tuple(map(named, before.rows))), replace(after, rows=tuple(map(named, after.rows)))


_ABSOLUTE = re.compile(r"[/\\~]|[A-Za-z]:[/\\]")


def _short_file(file: str) -> str:
    """A file without what differs from machine to machine: the last two parts of an absolute path."""
    parts = re.split(r"[/\\]", file)
    return "/".join(parts[-2:] if _ABSOLUTE.match(file) else parts)


def _line_name(row: Row, before: list[Row], after: list[Row]) -> tuple[str, ...]:
    file, was, now = row.file or "", _lines(before), _lines(after)
    lines = f"{was} -> {now}" if was and now and was != now else was or now
    where = f"{file}:{lines}" if lines else file
    return row.category, _module(row), _operator(row), where or "no Python frame"


def _place_name(row: Row, before: list[Row], after: list[Row]) -> tuple[str, ...]:
    was, now = _operators(before), _operators(after)
    operators = f"{was} -> {now}" if was and now and was != now else was or now
    where = f"{row.file or ''}:{row.line}" if row.line is not None else row.file
    return row.category, _module(row), operators or NO_OPERATOR, where or "no Python frame"


def _operators(rows: list[Row]) -> str:
    """The first of their operators, the largest first, and how many more there are."""
    ordered = sorted(rows, key=lambda row: -row.bytes)
    names = list(dict.fromkeys(row.made_by for row in ordered if row.made_by is not None))
    return ", ".join([*names[:1], *([f"{len(names) - 1} more"] if len(names) > 1 else [])])


def _lines(rows: list[Row]) -> str:
    return ", ".join(map(str, sorted({row.line for row in rows if row.line is not None})))


# ---- Two snapshots: by kind and by stack -----------------------------------------------------------------------------


def diff_snapshots(before: Snapshot, after: Snapshot) -> tuple[PeakDiff, ...]:
    """Compare the peaks of two snapshots, device by device; a side that lacks a device counts as zero."""
    sides = [{one.state.device: _side(one) for one in replay_snapshot(side).devices} for side in (before, after)]
    return tuple(
        _diff_sides(f"device {device}", *(side.get(device, _Side()) for side in sides))
        for device in sorted({*sides[0], *sides[1]})
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """A device's peak, as one of the two sides that are compared."""

    # Bytes and number of its blocks, by kind and stack without lines.
    at_peak: Mapping[Key | None, tuple[int, int]] = field(default_factory=dict)
    phase: str = ""
    # The most that each kind and stack had in use at once, also those that the peak has nothing of; a kind as a whole
    # has no stack. Empty for a device that is not there.
    own_peaks: Mapping[Key | None, int] = field(default_factory=dict)

    @property
    def keys(self) -> list[Key]:
        """Kinds and stacks of the peak."""
        return [key for key in self.at_peak if key is not None]

    @property
    def not_at_peak(self) -> list[Key]:
        """Kinds and stacks that were in use at other moments alone."""
        return [key for key in self.own_peaks if key is not None and key[1] and key not in self.at_peak]


def _side(device: ReplayedDevice) -> _Side:
    entry, blocks, start = device.replay.peak_entry, device.blocks, "the moment of the snapshot"
    at_peak = blocks.take(blocks.alive_at(entry))
    keys, peak_keys = _keys(blocks), _keys(at_peak)
    sums = zip(peak_keys.sums(at_peak.size_bytes), peak_keys.counts(), strict=True)
    own_peaks: dict[Key | None, int] = dict.fromkeys(((kind.words, ()) for kind in Kind), 0)
    for of, names in ((keys.of_row, keys.keys.__getitem__), (blocks.kind, lambda kind: (Kind(kind).words, ()))):
        most = most_at_once(of, blocks.made_at, blocks.freed_at, blocks.size_bytes)
        own_peaks |= {names(number): size for number, size in zip(*map(np.ndarray.tolist, most), strict=True)}
    start = "the start of the recording" if len(device.state.trace) else start
    phase = device.kinds.phase_at(entry) or ("" if entry >= 0 else start)
    return _Side(dict(zip(peak_keys.keys, sums, strict=True)), phase, own_peaks)


def _keys(blocks: Blocks) -> Grouped[Key]:
    """Kind and stack of each block, without lines."""
    sites = blocks.sites
    assert sites is not None

    def key(kind: int, stack: int, is_before: int) -> Key:
        names = sites.without_lines(stack)
        if not names:
            names = () if sites.site(stack).frame == NO_FRAMES else (sites.site(stack).frame,)
        return Kind(kind).words, (*names, BEFORE_RECORDING) if is_before else names or (NO_FRAMES,)

    return grouped((blocks.kind, blocks.stack, blocks.phase == BEFORE), key)


def _diff_sides(device: str, before: _Side, after: _Side) -> PeakDiff:
    pairs = match_stacks(before.keys, after.keys)
    come = set(after.keys) - set(pairs.values())
    # A stack that one peak lacks may have been in use at another moment of that side.
    pairs |= match_functions([key for key in before.keys if key not in pairs], after.not_at_peak)
    olds = match_functions([key for key in after.keys if key in come], before.not_at_peak)

    def change(old: Key | None, new: Key | None) -> PeakChange:
        """The change of one stack, with the frames of the second side if it has the stack."""
        (kind, stack) = new or old or ("", ())
        sizes = zip(before.at_peak.get(old, (0, 0)), after.at_peak.get(new, (0, 0)), strict=True)
        (was_bytes, now_bytes), counts = sizes
        was, became = differing(old[1], new[1]) if old is not None and new is not None else ("", "")
        return PeakChange((kind, *stack), was_bytes, now_bytes, *counts, was, became, own_peaks(old, new))

    def own_peaks(old: Key | None, new: Key | None) -> tuple[int, int] | None:
        has_both = before.own_peaks and after.own_peaks
        return (before.own_peaks.get(old, 0), after.own_peaks.get(new, 0)) if has_both else None

    by_stack = [change(key, pairs.get(key)) for key in before.keys]
    by_stack += [change(olds.get(key), key) for key in after.keys if key in come]
    of_kind: dict[str, list[PeakChange]] = {}
    for each in by_stack:
        of_kind.setdefault(each.name[0], []).append(each)
    kinds = []
    for kind, group in of_kind.items():
        was_bytes, now_bytes, was_count, now_count = (sum(map(attrgetter(name), group)) for name in _SUMMED)
        sizes = was_bytes, now_bytes, was_count, now_count
        kinds.append(PeakChange((kind,), *sizes, own_peaks=own_peaks((kind, ()), (kind, ()))))
    old_peak, new_peak = (
        SavedPeak(device, sum(size for size, _ in side.at_peak.values()), side.phase or None)
        for side in (before, after)
    )
    return PeakDiff(old_peak, new_peak, {"kind": largest_first(kinds), "stack": largest_first(by_stack)})


Stack = tuple[str, ...]
Key = tuple[str, Stack]


def match_stacks(before: Iterable[Key], after: Iterable[Key]) -> dict[Key, Key]:
    """Map each kind and stack of the first side to the same code's stack on the second side.

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
