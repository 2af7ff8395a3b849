"""The difference of two peaks as text on a terminal: of two profiled runs, and of two snapshots.

Tables have what changed; what did not is counted in their titles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from rich.console import Console
from rich.text import Text

from tracer.analysis.diff_cause import cause_of
from tracer.analysis.kinds import words_of
from tracer.analysis.peak_diff import PeakChange, PeakDiff
from tracer.exporters.screen.text import exact, print_table, say, say_wrapped, signed, table
from tracer.units import format_bytes, some

_STACK_LINES = 3
_OWN_PEAKS = "Growth compares the most that each row had in use at once, which may be at another moment than the peak."
# Title, and columns of the names, where they are not that of the list alone.
_TABLES = {
    "line": ("By line", ("category", "module, operator, line")),
    "stack": ("By kind and stack", ("kind", "stack, innermost first")),
}


def print_peak_diffs(diffs: Sequence[PeakDiff], console: Console, *, before: str, after: str, top: int = 10) -> None:
    """Print what changed between two peaks."""
    say(console, f"{before} -> {after}", style="bold")
    if not diffs:
        say(console, "Neither snapshot has a device with memory.")
    for diff in diffs:
        _print_peak_diff(diff, console, top)


def _print_peak_diff(diff: PeakDiff, console: Console, top: int) -> None:
    old, new = diff.before, diff.after
    device = old.device if old.device == new.device else f"{old.device} -> {new.device}"
    device = device.replace("device", "Device")
    say(console)
    if not any(change.bytes for changes in diff.changes.values() for change in changes):
        *names, last = diff.changes
        same = f"with the same bytes of every {', '.join(names)} and {last}"
        say(console, f"No change. {device}: peak {exact(old.bytes)} in both, {same}.")
        return
    percent = f", {100 * diff.bytes / old.bytes:+.1f} %" if old.bytes and diff.bytes else ""
    sizes = f"{format_bytes(old.bytes)} -> {format_bytes(new.bytes)}"
    say(console, f"{device}: peak {sizes}, {signed(diff.bytes)} ({diff.bytes:+,} B{percent})", style="bold")
    if old.phase != new.phase:
        was, is_now = phase_words(old.phase), phase_words(new.phase)
        say(console, f"The peak was {was} and is now {is_now}, where other memory is in use.")
    if cause := cause_of(diff):
        say(console, cause)
    for gathered_by, changes in diff.changes.items():
        title, columns = _TABLES.get(gathered_by, (f"By {gathered_by}", (gathered_by,)))
        _print_changes(title, columns, changes, console, len(changes) if gathered_by in ("category", "kind") else top)
    for sentence in growth_sentences(diff):
        say(console, sentence)


def growth_sentences(diff: PeakDiff) -> tuple[str, ...]:
    """What growth is of, where that is not what a row's sizes say."""
    changes = (change for changes in diff.changes.values() for change in changes)
    return (_OWN_PEAKS,) if any(change.own_peaks and change.growth is not None for change in changes) else ()


def print_against_eager(diff: PeakDiff, sentences: Sequence[str], console: Console, *, top: int = 8) -> None:
    """Print what compiling changes at the peak."""
    say(console)
    say(console, "Compiled, and the same without compilation", style="bold")
    for words in sentences:
        say_wrapped(console, words)
    sides = ("eager", "compiled")
    _print_changes(
        "By category", ("category",), diff.changes["category"], console, len(diff.changes["category"]), sides
    )
    places = [replace(change, name=_place(*change.name)) for change in diff.changes["line"]]
    _print_changes("What differs, by line", ("category", "line, module"), places, console, top, sides)


def _place(category: str, module: str, operators: str, where: str) -> tuple[str, ...]:
    """Without the operators: a compiled one is a kernel, which nobody wrote."""
    return category, where, module


def phase_words(phase: str | None) -> str:
    """A moment's phase with its preposition: `in backward`, `in the optimizer's step`, `at the start of ...`."""
    if not phase:
        return "in no phase that the recording shows"
    if phase.startswith("the "):
        return f"at {phase}"
    return "in the optimizer's step" if phase == "optimizer" else f"in {phase}"


def _print_changes(
    title: str,
    columns: tuple[str, ...],
    changes: Sequence[PeakChange],
    console: Console,
    top: int,
    sides: tuple[str, str] = ("before", "after"),
) -> None:
    changed = [change for change in changes if change.bytes]
    has_growth = any(change.growth_words for change in changed[:top])
    grid = table("change", *sides, *(["growth"] if has_growth else []))
    for column in columns:
        grid.add_column(column, overflow="fold", no_wrap=column == "category")
    for change in islice(changed, top):
        first, *others = map(words_of, change.name)
        # One column for module, operator and line: a narrow terminal has no room for three.
        words = _short_stack(others) + _moved(change) if columns[0] == "kind" else ", ".join(others)
        growth = [change.growth_words] if has_growth else []
        grid.add_row(*_sizes([change]), *growth, Text(first), *([Text(words)] if others else []))
    if rest := changed[top:]:
        grid.add_row(*_sizes(rest), *([""] if has_growth else []), f"{len(rest):,} more")
    print_table(_counted(title, len(changed), len(changes)), grid, console)


def _counted(title: str, num_changed: int, num_all: int) -> str:
    same = num_all - num_changed
    return f"{title} ({some(same, 'row')} without a change left out)" if same else title


def _sizes(changes: Sequence[PeakChange]) -> tuple[str, str, str]:
    before, after = sum(c.before_bytes for c in changes), sum(c.after_bytes for c in changes)
    return signed(after - before), format_bytes(before), format_bytes(after)


def _moved(change: PeakChange) -> str:
    if not change.was and not change.became:
        return ""
    return f"\n(a frame differs: {change.was or 'none'} -> {change.became or 'none'})"


def _short_stack(stack: Sequence[str]) -> str:
    shown = " < ".join(stack[:_STACK_LINES])
    return f"{shown} < ..." if len(stack) > _STACK_LINES else shown
