"""What changed between the peaks of two profiled runs, by category, module, operator and line, to the byte."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tracer.analysis.peak_row import PeakRow

OUTSIDE_MODULES = "outside modules"
NO_OPERATOR = "no operator"


@dataclass(frozen=True, slots=True)
class SavedPeak:
    """A peak as peak.json has it.

    Attributes:
        device: Name as `str(torch.device)` writes it.
        bytes: Sum of the rows.
        phase: Phase of the allocation that made the peak, or None.
        rows: Equal blocks.
    """

    device: str
    bytes: int
    phase: str | None
    rows: tuple[PeakRow, ...]


@dataclass(frozen=True, slots=True)
class RowChange:
    """What has one name at the peaks of both runs.

    Attributes:
        name: Category, module, operator, or all of them and the line, for people.
        before_bytes: At the first peak.
        after_bytes: At the second one.
        before_count: Blocks at the first peak.
        after_count: Blocks at the second one.
    """

    name: tuple[str, ...]
    before_bytes: int
    after_bytes: int
    before_count: int
    after_count: int

    @property
    def bytes(self) -> int:
        """The change."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class PeakDiff:
    """Two peaks compared; the changes of each list sum to the change of the peak.

    Attributes:
        before: The first run's.
        after: The second one's.
        by_category: Names are a category.
        by_module: Names are a module's path.
        by_operator: Names are an operator.
        by_line: Names are category, module, operator and line. Rows are matched by operator and file and not by line,
            because lines move; the name says the lines of both sides. Where compiled code allocated rows of either
            side, they are matched by line and not by operator, whose place a kernel takes.
    """

    before: SavedPeak
    after: SavedPeak
    by_category: tuple[RowChange, ...]
    by_module: tuple[RowChange, ...]
    by_operator: tuple[RowChange, ...]
    by_line: tuple[RowChange, ...]

    @property
    def before_bytes(self) -> int:
        """The first peak."""
        return self.before.bytes

    @property
    def bytes(self) -> int:
        """The change of the peak."""
        return self.after.bytes - self.before.bytes


def diff_peaks(before: SavedPeak, after: SavedPeak) -> PeakDiff:
    """Compare two peaks."""
    is_compiled = any(row.is_compiled for row in (*before.rows, *after.rows))
    line_key, line_name = (_place_key, _place_name) if is_compiled else (_line_key, _line_name)
    return PeakDiff(
        before=before,
        after=after,
        by_category=_changes(before, after, lambda row: row.category, lambda row, *_: (row.category,)),
        by_module=_changes(before, after, _module, lambda row, *_: (_module(row),)),
        by_operator=_changes(before, after, _operator, lambda row, *_: (_operator(row),)),
        by_line=_changes(before, after, line_key, line_name),
    )


@dataclass(slots=True)
class _Sum:
    row: PeakRow
    before: list[PeakRow]
    after: list[PeakRow]


Name = Callable[[PeakRow, list[PeakRow], list[PeakRow]], tuple[str, ...]]


def _changes(
    before: SavedPeak, after: SavedPeak, key: Callable[[PeakRow], Hashable], name: Name
) -> tuple[RowChange, ...]:
    sums: dict[Hashable, _Sum] = {}
    for row in before.rows:
        sums.setdefault(key(row), _Sum(row, [], [])).before.append(row)
    for row in after.rows:
        sums.setdefault(key(row), _Sum(row, [], [])).after.append(row)
    changes = [
        RowChange(
            name(one.row, one.before, one.after),
            sum(row.bytes for row in one.before),
            sum(row.bytes for row in one.after),
            sum(row.count for row in one.before),
            sum(row.count for row in one.after),
        )
        for one in sums.values()
    ]
    return tuple(sorted(changes, key=lambda change: (-abs(change.bytes), change.name)))


def _module(row: PeakRow) -> str:
    return row.module if row.module is not None else OUTSIDE_MODULES


def _operator(row: PeakRow) -> str:
    return row.op if row.op is not None else NO_OPERATOR


def _file(row: PeakRow) -> str:
    """A file without what differs from machine to machine: its last two parts."""
    return "/".join(re.split(r"[/\\]", row.file)[-2:]) if row.file else ""


def _line_key(row: PeakRow) -> Hashable:
    return row.category, row.module, row.op, _file(row)


def _line_name(row: PeakRow, before: list[PeakRow], after: list[PeakRow]) -> tuple[str, ...]:
    file, was, now = _file(row), _lines(before), _lines(after)
    lines = f"{was} -> {now}" if was and now and was != now else was or now
    where = f"{file}:{lines}" if lines else file
    return row.category, _module(row), _operator(row), where or "no Python frame"


def _place_key(row: PeakRow) -> Hashable:
    return row.category, row.module, _file(row), row.line


def _place_name(row: PeakRow, before: list[PeakRow], after: list[PeakRow]) -> tuple[str, ...]:
    was, now = _operators(before), _operators(after)
    operators = f"{was} -> {now}" if was and now and was != now else was or now
    where = f"{_file(row)}:{row.line}" if row.line is not None else _file(row)
    return row.category, _module(row), operators or NO_OPERATOR, where or "no Python frame"


def _operators(rows: list[PeakRow]) -> str:
    """The first of their operators, the largest first, and how many more there are."""
    names = list(dict.fromkeys(row.op for row in sorted(rows, key=lambda row: -row.bytes) if row.op is not None))
    return ", ".join([*names[:1], *([f"{len(names) - 1} more"] if len(names) > 1 else [])])


def _lines(rows: list[PeakRow]) -> str:
    return ", ".join(map(str, sorted({row.line for row in rows if row.line is not None})))
