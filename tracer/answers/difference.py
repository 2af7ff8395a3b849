"""Changes between two peaks, to the byte: of profiled runs by category, module, operator and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from tracer.answers.rows import Row
from tracer.errors import UsageError
from tracer.units import GIB, KIB, MIB, format_bytes, format_growth

OUTSIDE_MODULES = "outside modules"
NO_OPERATOR = "no operator"
# One small tensor more or less makes any factor of less than this.
_LEAST_BYTES = 1 << 16
_MOST_GROWTH = 100  # A side with less than a hundredth of the other has next to nothing


@dataclass(frozen=True, slots=True)
class SavedPeak:
    """A peak as peak.json has it."""

    device: str  # Name as `str(torch.device)` writes it; of a snapshot `device 0`
    bytes: int
    phase: str | None  # Phase of the allocation that made the peak, or None
    rows: tuple[Row, ...] = ()  # Equal blocks; of a snapshot none, whose blocks are compared by stack


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
        """How many times as many bytes, of `own_peaks` where they are known; None where either is next to nothing."""
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


@dataclass(frozen=True, slots=True)
class Threshold:
    """How much a peak may grow, in bytes or in percent of what it was."""

    bytes: int | None = None
    percent: float | None = None

    def is_exceeded_by(self, diff: PeakDiff) -> bool:
        """Whether the peak grew by more; exactly as much is not more."""
        if self.percent is not None:
            return diff.bytes * 100 > self.percent * diff.before_bytes
        assert self.bytes is not None
        return diff.bytes > self.bytes

    def sentence(self, device: str, diff: PeakDiff) -> str:
        """The reason why the limit is exceeded: `cpu: peak grew 50.7 %, the limit is 5 %`."""
        if self.percent is None:
            assert self.bytes is not None
            grown, limit = format_bytes(diff.bytes), format_bytes(self.bytes)
            if grown == limit:
                grown, limit = f"{diff.bytes:,} B", f"{self.bytes:,} B"
        elif not diff.before_bytes:
            grown, limit = f"from 0 B to {format_bytes(diff.bytes)}", f"{self.percent:g} %"
        else:
            percent, limit = 100 * diff.bytes / diff.before_bytes, f"{self.percent:g} %"
            digits = next((n for n in (1, 3, 6) if f"{percent:.{n}f}" != f"{self.percent:.{n}f}"), 9)
            grown = f"{percent:.{digits}f} %"
        return f"{device}: peak grew {grown}, the limit is {limit}."


def parse_threshold(text: str) -> Threshold:
    """Read `5%`, `100MiB`, `2 GiB`, `4096B` and the like."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|B|[KMGkmg]i?B?)?\s*", text)
    if not match:
        raise UsageError(f"{text!r} is not a threshold.", hint="Write a percentage or a size, as in 5% or 100MiB.")
    number, unit = float(match.group(1)), match.group(2)
    if unit is None:
        bare = text.strip()
        raise UsageError(
            f"A threshold of {bare} could be percent or bytes.", hint=f"Write {bare}%, {bare}MiB or {bare}B."
        )
    if unit == "%":
        return Threshold(percent=number)
    factor = {"b": 1, "k": KIB, "m": MIB, "g": GIB}[unit[0].lower()]
    return Threshold(bytes=round(number * factor))
