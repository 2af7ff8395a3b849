"""Two peaks compared, as a page: a sentence on each device, and what came and went by category, module and line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tracer.exporters.page.html import write_pages
from tracer.exporters.page.model import Cell, Page, Section, Table
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.analysis.peak_diff import PeakDiff, RowChange
    from tracer.analysis.snapshots.diff import Change, DeviceDiff

_SIZES = ("change", "before", "after", "blocks")
_MOST_NAMED = 3


class _Changed(Protocol):
    """A number of bytes on two sides."""

    @property
    def before_bytes(self) -> int:
        """On the first one."""

    @property
    def after_bytes(self) -> int:
        """On the second one."""

    @property
    def bytes(self) -> int:
        """The change."""

    @property
    def before_count(self) -> int:
        """Blocks on the first one."""

    @property
    def after_count(self) -> int:
        """Blocks on the second one."""


def write_peak_diff_page(diff: PeakDiff, path: Path, *, before: str, after: str) -> None:
    """Write the page of two runs' peaks.

    Args:
        diff: Of their peak.json.
        path: Where to; a file that is there is replaced.
        before: Name of the first one, for people.
        after: Of the second one.

    Raises:
        OutputError: The file cannot be written.
    """
    write_pages([peak_diff_page(diff, before=before, after=after)], path)


def write_snapshot_diff_page(devices: Sequence[DeviceDiff], path: Path, *, before: str, after: str) -> None:
    """Write the page of two snapshots' peaks, of all devices; arguments as of `write_peak_diff_page`."""
    pages = snapshot_diff_pages(devices, before=before, after=after)
    changes = [abs(one.bytes) for one in devices]
    write_pages(pages, path, shown=changes.index(max(changes)) if changes else 0)


def peak_diff_page(diff: PeakDiff, *, before: str, after: str) -> Page:
    """The page's content."""
    first, last = diff.before.bytes, diff.after.bytes
    tables = (
        _of_rows("By category", ("category",), diff.by_category),
        _of_rows("By module", ("module",), diff.by_module),
        _of_rows("By operator", ("operator",), diff.by_operator),
        _of_rows("By line", ("category", "module", "operator", "line"), diff.by_line),
    )
    categories = [(one.name[0], one.bytes) for one in diff.by_category]
    device = diff.after.device
    answer = _answer(device, first, last, categories, (diff.before.phase or "", diff.after.phase or ""))
    return _page(device, answer, tables, before, after)


def snapshot_diff_pages(devices: Sequence[DeviceDiff], *, before: str, after: str) -> list[Page]:
    """The content, device by device; a page of its own says that there is none."""
    pages = []
    for one in devices:
        device = f"device {one.device}"
        kinds = [(change.kind, change.bytes) for change in one.by_kind]
        tables = changes_tables(one)
        answer = _answer(device, one.before_bytes, one.after_bytes, kinds, (one.before_phase, one.after_phase))
        pages.append(_page(device, answer, tables, before, after))
    return pages or [_page("no device", ("Neither snapshot has a device with memory.",), (), before, after)]


def changes_tables(diff: DeviceDiff, *, before: str = "before", after: str = "after") -> tuple[Table, ...]:
    """What came and went between two snapshots, by kind and by stack, under the names of both."""
    sizes = ("change", before, after, "blocks")
    by_kind = [(change, (change.kind,)) for change in diff.by_kind]
    by_stack = [(change, _stack_cells(change)) for change in diff.by_stack]
    return (
        _of_changes("By kind", (*sizes, "kind"), by_kind),
        _of_changes("By stack", (*sizes, "kind", "innermost frame", "called from"), by_stack),
    )


def _page(device: str, answer: tuple[str, ...], tables: tuple[Table, ...], before: str, after: str) -> Page:
    shown = tuple(table for table in tables if table.rows)
    return Page(
        title="Two peaks compared",
        device=device,
        subtitle=f"{before} and {after}",
        answer=answer,
        sections=(Section("What changed", (), shown),) if shown else (),
        run={"before": before, "after": after},
    )


def _answer(
    device: str, before: int, after: int, parts: Sequence[tuple[str, int]], phases: tuple[str, str]
) -> tuple[str, ...]:
    """By how much the peak changed, what of it most, and whether the peaks are in different phases."""
    sizes = f"from {format_bytes(before)} to {format_bytes(after)}"
    if before == after:
        first = f"The peak on {device} is the same, {format_bytes(after)}."
    else:
        verb = "grew" if after > before else "shrank"
        share = f", {abs(after - before) * 100 / before:.1f} %" if before else ""
        first = f"The peak on {device} {verb} by {format_bytes(abs(after - before))}{share}: {sizes}."
    moved = sorted((part for part in parts if part[1]), key=lambda part: -abs(part[1]))[:_MOST_NAMED]
    changed = ", ".join(f"{name} {'+' if size > 0 else ''}{format_bytes(size)}" for name, size in moved)
    where = f"Before it was in {phases[0]}, now in {phases[1]}." if all(phases) and phases[0] != phases[1] else ""
    return tuple(sentence for sentence in (first, changed and f"What changed most: {changed}.", where) if sentence)


def _of_rows(title: str, names: tuple[str, ...], changes: Sequence[RowChange]) -> Table:
    return Table(title, (*_SIZES, *names), tuple((*_sizes(one), *one.name) for one in changes if _is_change(one)))


def _of_changes(title: str, columns: tuple[str, ...], changes: Sequence[tuple[Change, tuple[str, ...]]]) -> Table:
    return Table(title, columns, tuple((*_sizes(one), *words) for one, words in changes if _is_change(one)))


def _is_change(one: _Changed) -> bool:
    return bool(one.bytes) or one.before_count != one.after_count


def _sizes(one: _Changed) -> tuple[Cell, ...]:
    return one.bytes, one.before_bytes, one.after_bytes, f"{one.before_count:,} -> {one.after_count:,}"


def _stack_cells(change: Change) -> tuple[str, ...]:
    innermost, *callers = change.stack or ("no stack recorded",)
    moved = f" (was {change.was})" if change.was else ""
    return change.kind, f"{innermost}{moved}", callers[0] if callers else ""
