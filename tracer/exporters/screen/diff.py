"""The difference of two peaks as text on a terminal: of two profiled runs, and of two snapshots.

Tables have what changed; what did not is counted in their titles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from rich.console import Console
from rich.text import Text

from tracer.analysis.peak_diff import PeakDiff, RowChange
from tracer.analysis.snapshots.diff import Change, DeviceDiff
from tracer.exporters.screen.text import exact, print_table, say, say_wrapped, signed, table
from tracer.units import format_bytes, some

_STACK_LINES = 3


def print_peak_diff(diff: PeakDiff, console: Console, *, before: str, after: str, top: int = 10) -> None:
    """Print what changed between the peaks of two runs.

    Args:
        diff: What `diff_peaks` returned.
        console: Where to print; names are never read as markup.
        before: Name of the first run.
        after: Name of the second one.
        top: Rows of each table but the first; what the others hold together is said.
    """
    say(console, f"{before} -> {after}", style="bold")
    old, new = diff.before, diff.after
    device = old.device if old.device == new.device else f"{old.device} -> {new.device}"
    lists = (diff.by_category, diff.by_module, diff.by_operator, diff.by_line)
    if not any(change.bytes for changes in lists for change in changes):
        _say_no_change(console, device, old.bytes, "every category, module, operator and line")
        return
    _say_sizes(console, device, old.bytes, new.bytes)
    _say_phases(console, old.phase or "", new.phase or "")
    titles = ("By category", "By module", "By operator", "By line")
    for title, changes in zip(titles, lists, strict=True):
        names = ("category", "module, operator, line") if title == "By line" else (title[3:],)
        _print_row_changes(title, names, changes, console, len(changes) if title == "By category" else top)


def print_against_eager(diff: PeakDiff, sentences: Sequence[str], console: Console, *, top: int = 8) -> None:
    """Print what compiling changes at the peak.

    Args:
        diff: From the run without compilation to the compiled one.
        sentences: How the peaks differ, in words.
        console: Where to print.
        top: Rows of the table of lines.
    """
    say(console)
    say(console, "Compiled, and the same without compilation", style="bold")
    for words in sentences:
        say_wrapped(console, words)
    sides = ("eager", "compiled")
    _print_row_changes("By category", ("category",), diff.by_category, console, len(diff.by_category), sides)
    places = [replace(one, name=_place(*one.name)) for one in diff.by_line]
    _print_row_changes("What differs, by line", ("category", "line, module"), places, console, top, sides)


def _place(category: str, module: str, operators: str, where: str) -> tuple[str, ...]:
    """Without the operators: a compiled one is a kernel, which nobody wrote."""
    return category, where, module


def print_snapshot_diff(
    diffs: Sequence[DeviceDiff], console: Console, *, before: str, after: str, top: int = 10
) -> None:
    """Print what changed between the peaks of two snapshots.

    Args:
        diffs: What `diff_snapshots` returned.
        console: Where to print.
        before: Name of the first snapshot.
        after: Name of the second one.
        top: Rows of the table by stack.
    """
    say(console, f"{before} -> {after}", style="bold")
    if not diffs:
        say(console, "Neither snapshot has a device with memory.")
    for diff in diffs:
        device = f"Device {diff.device}"
        if not any(change.bytes for change in diff.by_stack):
            _say_no_change(console, device, diff.before_bytes, "every kind and stack")
            continue
        _say_sizes(console, device, diff.before_bytes, diff.after_bytes)
        _say_phases(console, diff.before_phase, diff.after_phase)
        _print_changes("By kind", diff.by_kind, console, top=len(diff.by_kind))
        _print_changes("By kind and stack", diff.by_stack, console, top=top)


def _say_no_change(console: Console, device: str, size_bytes: int, of_what: str) -> None:
    say(console)
    say(console, f"No change. {device}: peak {exact(size_bytes)} in both, with the same bytes of {of_what}.")


def _say_sizes(console: Console, device: str, before_bytes: int, after_bytes: int) -> None:
    change = after_bytes - before_bytes
    percent = f", {100 * change / before_bytes:+.1f} %" if before_bytes and change else ""
    sizes = f"{format_bytes(before_bytes)} -> {format_bytes(after_bytes)}"
    say(console)
    say(console, f"{device}: peak {sizes}, {signed(change)} ({change:+,} B{percent})", style="bold")


def _say_phases(console: Console, before: str, after: str) -> None:
    if before != after:
        was, is_now = phase_words(before), phase_words(after)
        say(console, f"The peak was {was} and is {is_now} now: other memory is alive then.")


def phase_words(phase: str) -> str:
    """A moment's phase with its preposition: `in backward`, `in the optimizer's step`, `at the start of ...`."""
    if not phase:
        return "in an unknown phase"
    if phase.startswith("the "):
        return f"at {phase}"
    return "in the optimizer's step" if phase == "optimizer" else f"in {phase}"


def _print_row_changes(
    title: str,
    names: tuple[str, ...],
    changes: Sequence[RowChange],
    console: Console,
    top: int,
    sides: tuple[str, str] = ("before", "after"),
) -> None:
    made = table("change", *sides)
    for name in names:
        made.add_column(name, overflow="fold", no_wrap=name == "category")
    changed = [change for change in changes if change.bytes]
    for change in islice(changed, top):
        first, *others = change.name
        # One column for module, operator and line: a narrow terminal has no room for three.
        made.add_row(*_sizes([change]), Text(first), *([Text(", ".join(others))] if others else []))
    if rest := changed[top:]:
        made.add_row(*_sizes(rest), f"{len(rest):,} more")
    print_table(_counted(title, len(changed), len(changes)), made, console)


def _print_changes(title: str, changes: Sequence[Change], console: Console, *, top: int) -> None:
    made = table("change", "before", "after")
    made.add_column("kind")
    changed = [change for change in changes if change.bytes]
    if any(change.stack for change in changed):
        made.add_column("stack, innermost first", overflow="fold")
    for change in islice(changed, top):
        made.add_row(*_sizes([change]), change.kind, Text(_short_stack(change.stack) + _moved(change)))
    if rest := changed[top:]:
        made.add_row(*_sizes(rest), f"{len(rest):,} more", "")
    print_table(_counted(title, len(changed), len(changes)), made, console)


def _counted(title: str, num_changed: int, num_all: int) -> str:
    same = num_all - num_changed
    return f"{title} ({some(same, 'row')} without a change left out)" if same else title


def _sizes(changes: Sequence[Change | RowChange]) -> tuple[str, str, str]:
    before, after = sum(c.before_bytes for c in changes), sum(c.after_bytes for c in changes)
    return signed(after - before), format_bytes(before), format_bytes(after)


def _moved(change: Change) -> str:
    """Which frame differs between two stacks that are the same code."""
    if not change.was and not change.became:
        return ""
    return f"\n(a frame differs: {change.was or 'none'} -> {change.became or 'none'})"


def _short_stack(stack: tuple[str, ...]) -> str:
    shown = " < ".join(stack[:_STACK_LINES])
    return f"{shown} < ..." if len(stack) > _STACK_LINES else shown
