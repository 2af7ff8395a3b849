"""Two peaks compared, as tables and sentences of the screen, the page and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracer.analysis.kinds import words_of
from tracer.analysis.peak_diff import PeakChange, PeakDiff
from tracer.analysis.peak_row import moment_words
from tracer.exporters.tables import Cell, Place, Table, columns, signed
from tracer.units import format_bytes, some

_OWN_PEAKS = "Growth compares the most that each row had in use at once, which may be at another moment than the peak."
_NAMES = {
    "category": columns("label", "category"),
    "kind": columns("label", "kind"),
    "line": (*columns("label", "category"), *columns("text", "module", "operator", "line")),
    "stack": (*columns("label", "kind"), *columns("text", "stack, innermost first")),
}
"""Columns of the names in a list of changes; of any other that of its own name."""
_MOST_FRAMES = 3


def has_changed(diff: PeakDiff) -> bool:
    """Whether any of its rows has."""
    return any(change.bytes for changes in diff.changes.values() for change in changes)


def answer_sentences(diff: PeakDiff) -> tuple[str, ...]:
    """By how much the peak changed, and whether the peaks are in different phases."""
    old, new = diff.before, diff.after
    device = old.device if old.device == new.device else f"{old.device} -> {new.device}"
    device = device.replace("device", "Device")
    if not has_changed(diff):
        *names, last = diff.changes
        same = f"with the same bytes of every {', '.join(names)} and {last}"
        return (f"No change. {device}: peak {format_bytes(old.bytes)} ({old.bytes:,} B) in both, {same}.",)
    percent = f", {100 * diff.bytes / old.bytes:+.1f} %" if old.bytes and diff.bytes else ""
    sizes = f"{format_bytes(old.bytes)} -> {format_bytes(new.bytes)}"
    was, now = (moment_words(side.phase) or "in no phase that the recording shows" for side in (old, new))
    moved = f"The peak was {was} and is now {now}, where other memory is in use." if was != now else ""
    first = f"{device}: peak {sizes}, {signed(diff.bytes)} ({diff.bytes:+,} B{percent})."
    return tuple(filter(None, (first, moved)))


def changes_tables(diff: PeakDiff, *, before: str = "before", after: str = "after") -> Iterator[Table]:
    """Yield a table of the memory that came and went for each way to gather it, under the names of both sides."""
    for gathered_by, changes in diff.changes.items():
        yield _changes_table(gathered_by, changes, before, after)


def line_changes(diff: PeakDiff) -> Table:
    """Tabulate the memory that came and went by line."""
    return _changes_table("line", diff.changes["line"], "before", "after")


def _changes_table(gathered_by: str, changes: Sequence[PeakChange], before: str, after: str) -> Table:
    changed = [change for change in changes if change.bytes]
    title = f"By {'kind and stack' if gathered_by == 'stack' else gathered_by}"
    if same := len(changes) - len(changed):
        title += f" ({some(same, 'row')} without a change left out)"
    names = _NAMES.get(gathered_by, columns("text", gathered_by))
    growth = columns("label", "growth") if any(change.growth_words for change in changed) else ()
    rows = tuple(
        (
            *(change.bytes, change.before_bytes, change.after_bytes),
            *(change.growth_words for _ in growth),
            _counts(change),
            *(_stack_cells(change) if gathered_by == "stack" else map(words_of, change.name)),
        )
        for change in changed
    )
    sizes = (*columns("change", "change"), *columns("bytes", before, after), *growth, *columns("label", "blocks"))
    is_whole = gathered_by in ("category", "kind")
    return Table(title, (*sizes, *names), rows, is_wide=gathered_by == "line", is_whole=is_whole)


def _counts(change: PeakChange) -> str:
    before, after = f"{change.before_count:,}", f"{change.after_count:,}"
    return before if before == after else f"{before} -> {after}"


def _stack_cells(change: PeakChange) -> tuple[Cell, Cell]:
    """The kind, and the innermost frames; below them the frame in which the two stacks differ."""
    kind, *frames = change.name
    shown = [*frames[:_MOST_FRAMES], *(["..."] if len(frames) > _MOST_FRAMES else [])]
    differs = f"(a frame differs: {change.was or 'none'} -> {change.became or 'none'})"
    return words_of(kind), Place(" < ".join(shown), below=(differs,) if change.was or change.became else ())


def growth_sentences(diff: PeakDiff) -> tuple[str, ...]:
    """Say which peaks growth compares, where they are not a row's sizes."""
    changes = (change for changes in diff.changes.values() for change in changes)
    return (_OWN_PEAKS,) if any(change.own_peaks and change.growth is not None for change in changes) else ()
