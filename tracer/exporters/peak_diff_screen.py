"""The difference of two profiled runs' peaks as text on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracer.analysis.peak_diff import PeakDiff, RowChange
from tracer.units import format_bytes


def print_peak_diff(diff: PeakDiff, console: Console, *, before: str, after: str, top: int = 10) -> None:
    """Print what changed between the peaks of two runs.

    Args:
        diff: What `diff_peaks` returned.
        console: Where to print; names are never read as markup.
        before: Name of the first run.
        after: Name of the second one.
        top: Rows of each table but the first; what the others hold together is said.
    """
    _say(console, f"{before} -> {after}", style="bold")
    old, new = diff.before, diff.after
    device = old.device if old.device == new.device else f"{old.device} -> {new.device}"
    sizes = f"{format_bytes(old.bytes)} -> {format_bytes(new.bytes)}"
    _say(console, f"\n{device}: peak {sizes}, {_signed(diff.bytes)} ({diff.bytes:+,} B)", style="bold")
    if old.phase != new.phase:
        was, is_now = (peak.phase or "an unknown phase" for peak in (old, new))
        _say(console, f"The peak was in {was} and is in {is_now} now: other memory is alive then.")
    _print_changes("By category", ("category",), diff.by_category, console, top=len(diff.by_category))
    _print_changes("By module", ("module",), diff.by_module, console, top=top)
    _print_changes("By operator", ("operator",), diff.by_operator, console, top=top)
    _print_changes("By line", ("category", "module, operator, line"), diff.by_line, console, top=top)


def print_against_eager(diff: PeakDiff, sentences: Sequence[str], console: Console, *, top: int = 8) -> None:
    """Print what compiling changes at the peak.

    Args:
        diff: From the run without compilation to the compiled one.
        sentences: How the peaks differ, in words.
        console: Where to print.
        top: Rows of the table of lines.
    """
    _say(console, "\nCompiled, and the same without compilation", style="bold")
    for sentence in sentences:
        console.print(Text(sentence))
    names = {"before": "eager", "after": "compiled"}
    _print_changes("By category", ("category",), diff.by_category, console, top=len(diff.by_category), **names)
    places = [replace(one, name=_place(*one.name)) for one in diff.by_line if one.bytes]
    _print_changes("What differs, by line", ("category", "line, module"), places, console, top=top, **names)


def _place(category: str, module: str, operators: str, where: str) -> tuple[str, ...]:
    """Without the operators: a compiled one is a kernel, which nobody wrote."""
    return category, where, module


def _print_changes(
    title: str,
    names: tuple[str, ...],
    changes: Sequence[RowChange],
    console: Console,
    *,
    top: int,
    before: str = "before",
    after: str = "after",
) -> None:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1), pad_edge=False)
    for number in ("change", before, after):
        table.add_column(number, justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name == "category")
    for change in islice(changes, top):
        first, *others = change.name
        # One column for module, operator and line: a narrow terminal has no room for three.
        table.add_row(*_sizes([change]), Text(first), *([Text(", ".join(others))] if others else []))
    if rest := changes[top:]:
        table.add_row(*_sizes(rest), f"{len(rest)} more")
    console.print(table)


def _sizes(changes: Sequence[RowChange]) -> tuple[str, str, str]:
    before, after = sum(c.before_bytes for c in changes), sum(c.after_bytes for c in changes)
    return _signed(after - before), format_bytes(before), format_bytes(after)


def _signed(size: int) -> str:
    return f"+{format_bytes(size)}" if size > 0 else format_bytes(size)


def _say(console: Console, line: str, *, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)
