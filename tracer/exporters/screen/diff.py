"""The difference of two peaks as text on a terminal: of two profiled runs, and of two snapshots.

Tables have what changed; what did not is counted in their titles.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tracer.analysis.diff_cause import cause_of
from tracer.analysis.peak_diff import PeakDiff
from tracer.exporters.diff_sections import changes_tables, growth_sentences
from tracer.exporters.screen.text import exact, print_table, say
from tracer.exporters.tables import signed
from tracer.units import format_bytes


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
    for gathered_by, table in zip(diff.changes, changes_tables(diff), strict=True):
        print_table(table, console, top=None if gathered_by in ("category", "kind") else top)
    for sentence in growth_sentences(diff):
        say(console, sentence)


def phase_words(phase: str | None) -> str:
    """A moment's phase with its preposition: `in backward`, `in the optimizer's step`, `at the start of ...`."""
    if not phase:
        return "in no phase that the recording shows"
    if phase.startswith("the "):
        return f"at {phase}"
    return "in the optimizer's step" if phase == "optimizer" else f"in {phase}"
