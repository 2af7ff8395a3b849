"""The difference of two peaks as text on a terminal: of two profiled runs, and of two snapshots.

Tables have what changed; what did not is counted in their titles.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tracer.analysis.peak_diff import PeakDiff
from tracer.exporters.diff_sections import answer_sentences, changes_tables, growth_sentences, has_changed
from tracer.exporters.screen.text import print_table, say


def print_peak_diffs(diffs: Sequence[PeakDiff], console: Console, *, before: str, after: str, top: int = 10) -> None:
    """Print what changed between two peaks."""
    say(console, f"{before} -> {after}", style="bold")
    if not diffs:
        say(console, "Neither snapshot has a device with memory.")
    for diff in diffs:
        _print_peak_diff(diff, console, top)


def _print_peak_diff(diff: PeakDiff, console: Console, top: int) -> None:
    first, *others = answer_sentences(diff)
    say(console)
    say(console, first, style="bold")
    for sentence in others:
        say(console, sentence)
    if not has_changed(diff):
        return
    for table in changes_tables(diff):
        print_table(table, console, top=top)
    for sentence in growth_sentences(diff):
        say(console, sentence)
