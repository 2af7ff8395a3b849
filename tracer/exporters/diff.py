"""Two peaks compared: tables and sentences, as the screen and the page have them, and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tracer.answers.answer import Answer
from tracer.answers.difference import PeakChange, PeakDiff
from tracer.answers.rows import moment_words
from tracer.answers.tables import WORDS, Cell, Place, Section, Table, cell_text, columns, signed
from tracer.blocks.kinds import words_of
from tracer.exporters.files import write_atomically
from tracer.units import format_bytes, some

_OWN_PEAKS = "Growth compares the most that each row had in use at once, which may be at another moment than the peak."
_NAMES = {
    "category": columns("label", "category"),
    "kind": columns("label", "kind"),
    "line": (*columns("label", "category"), *columns("text", "module", "operator", "line")),
    "stack": (*columns("label", "kind"), *columns("text", "stack, innermost first")),
}
"""Name columns by list of changes; any other list has one column under its own name."""
_MOST_FRAMES = 3


def has_changed(diff: PeakDiff) -> bool:
    """Return True if any row has other bytes after than before."""
    return any(change.bytes for changes in diff.changes.values() for change in changes)


def answer_sentences(diff: PeakDiff) -> tuple[str, ...]:
    """Say by how much the peak changed, and whether the peaks are in different phases."""
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


def changes_tables(diff: PeakDiff) -> Iterator[Table]:
    """Yield a table of the memory that came and went for each way to gather it."""
    for gathered_by, changes in diff.changes.items():
        yield _changes_table(gathered_by, changes)


def line_changes(diff: PeakDiff) -> Table:
    """Tabulate the memory that came and went by line."""
    return _changes_table("line", diff.changes["line"])


def _changes_table(gathered_by: str, changes: Sequence[PeakChange]) -> Table:
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
            " -> ".join(dict.fromkeys(f"{count:,}" for count in (change.before_count, change.after_count))),
            *(_stack_cells(change) if gathered_by == "stack" else map(words_of, change.name)),
        )
        for change in changed
    )
    sizes = (*columns("change", "change"), *columns("bytes", "before", "after"), *growth, *columns("label", "blocks"))
    is_whole = gathered_by in ("category", "kind")
    return Table(title, (*sizes, *names), rows, is_wide=gathered_by == "line", is_whole=is_whole)


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


def answer_of_diffs(diffs: Sequence[PeakDiff], *, before: str, after: str) -> Answer:
    """Return what changed between two peaks, on each device."""
    if not diffs:
        return Answer((f"{before} -> {after}", "Neither snapshot has a device with memory."))
    changed = [diff for diff in diffs if has_changed(diff)]
    sections = [Section(diff.after.device.capitalize(), (), tuple(changes_tables(diff))) for diff in changed]
    return Answer(
        happened=(f"{before} -> {after}", *(sentence for diff in diffs for sentence in answer_sentences(diff))),
        remarks=tuple(dict.fromkeys(sentence for diff in changed for sentence in growth_sentences(diff))),
        in_use=sections[0].tables[:2] if sections else (),
        sections=tuple(sections),
    )


_MARKDOWN_ROWS = 12
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#&@])")


def write_markdown(name: str, diff: PeakDiff, sentences: Sequence[str], path: Path) -> None:
    """Write the difference of two peaks as Markdown."""
    write_atomically(path, "\n".join(_markdown_lines(name, diff, sentences)) + "\n")


def _markdown_lines(name: str, diff: PeakDiff, sentences: Sequence[str]) -> Iterator[str]:
    yield f"### GPU memory of {_plain(name)}"
    for sentence in (*answer_sentences(diff), *sentences):
        yield ""
        yield _plain(sentence)
    table = line_changes(diff)
    if not table.rows:
        return
    yield ""
    yield f"| {' | '.join(column.name for column in table.columns)} |"
    yield f"|{'|'.join('---' if column.kind in WORDS else '---:' for column in table.columns)}|"
    for row in table.first_rows(_MARKDOWN_ROWS):
        cells = zip(row, table.columns, strict=True)
        yield f"| {' | '.join(_plain(cell_text(cell, column)) for cell, column in cells)} |"


def _plain(text: str) -> str:
    """Return a text on one line, with the characters of Markdown, HTML and mentions escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
