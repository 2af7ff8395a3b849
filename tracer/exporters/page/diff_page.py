"""Two peaks compared, as a page: a sentence on each device, and what came and went by category, module and line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.analysis.kinds import words_of
from tracer.exporters.page.html import write_pages
from tracer.exporters.page.model import Cell, Page, Section, Table
from tracer.exporters.screen.diff import growth_sentences
from tracer.units import format_bytes, format_growth

if TYPE_CHECKING:
    from tracer.analysis.peak_diff import PeakChange, PeakDiff

_MOST_NAMED = 3
# Columns of the names in a list of changes; of any other that of its own name.
_COLUMNS = {"line": ("category", "module", "operator", "line"), "stack": ("kind", "innermost frame", "called from")}


def write_diff_page(diffs: Sequence[PeakDiff], path: Path, *, before: str, after: str) -> None:
    """Write the page of two peaks, of all devices; it opens with the one that changed most."""
    shown = max(range(len(diffs)), key=lambda number: abs(diffs[number].bytes), default=0)
    write_pages(diff_pages(diffs, before=before, after=after), path, shown=shown)


def diff_pages(diffs: Sequence[PeakDiff], *, before: str, after: str) -> list[Page]:
    """The content, device by device; a page of its own says that there is none."""
    pages = [
        _page(diff.after.device, _answer(diff), growth_sentences(diff), changes_tables(diff), before, after)
        for diff in diffs
    ]
    return pages or [_page("no device", ("Neither snapshot has a device with memory.",), (), (), before, after)]


def changes_tables(diff: PeakDiff, *, before: str = "before", after: str = "after") -> tuple[Table, ...]:
    """Memory that came and went, by everything that it is gathered by, under the names of both sides."""
    return tuple(
        Table(
            f"By {gathered_by}",
            ("change", before, after, "growth", "blocks", *_COLUMNS.get(gathered_by, (gathered_by,))),
            tuple(
                (*_sizes(change), *(_stack_cells(change) if gathered_by == "stack" else change.name))
                for change in changes
                if change.bytes or change.before_count != change.after_count
            ),
        )
        for gathered_by, changes in diff.changes.items()
    )


def _page(
    device: str,
    answer: tuple[str, ...],
    sentences: tuple[str, ...],
    tables: tuple[Table, ...],
    before: str,
    after: str,
) -> Page:
    shown = tuple(table for table in tables if table.rows)
    return Page(
        title="Two peaks compared",
        device=device,
        subtitle=f"{before} and {after}",
        answer=answer,
        sections=(Section("What changed", sentences, shown),) if shown else (),
        run={"before": before, "after": after},
    )


def _answer(diff: PeakDiff) -> tuple[str, ...]:
    """By how much the peak changed, what of it most, and whether the peaks are in different phases."""
    device, before, after = diff.after.device, diff.before.bytes, diff.after.bytes
    sizes = f"from {format_bytes(before)} to {format_bytes(after)}"
    if before == after:
        first = f"The peak on {device} is the same, {format_bytes(after)}."
    else:
        verb = "grew" if after > before else "shrank"
        share = f", {abs(after - before) * 100 / before:.1f} %" if before else ""
        first = f"The peak on {device} {verb} by {format_bytes(abs(after - before))}{share}: {sizes}."
    by_category = next(iter(diff.changes.values()))
    changes = [change for change in by_category if change.bytes][:_MOST_NAMED]
    most = ", ".join(
        f"{words_of(change.name[0])} {'+' if change.bytes > 0 else ''}{format_bytes(change.bytes)}"
        for change in changes
    )
    was, now = diff.before.phase, diff.after.phase
    where = f"Before it was in {was}, now in {now}." if was and now and was != now else ""
    return tuple(sentence for sentence in (first, most and f"What changed most: {most}.", where) if sentence)


def _sizes(change: PeakChange) -> tuple[Cell, ...]:
    blocks = f"{change.before_count:,} -> {change.after_count:,}"
    return change.bytes, change.before_bytes, change.after_bytes, format_growth(change.growth), blocks


def _stack_cells(change: PeakChange) -> tuple[str, ...]:
    kind, innermost, *callers = change.name
    moved = f" (was {change.was})" if change.was else ""
    return kind, f"{innermost}{moved}", callers[0] if callers else ""
