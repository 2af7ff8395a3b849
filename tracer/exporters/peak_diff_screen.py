"""The difference of two profiled runs' peaks as text on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
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


def _print_changes(
    title: str, names: tuple[str, ...], changes: Sequence[RowChange], console: Console, *, top: int
) -> None:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1), pad_edge=False)
    for number in ("change", "before", "after"):
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
