"""Moments of a snapshot's recording, as text on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from rich.console import Console

from tracer.analysis.snapshots.moments import Between, Moments, StepLevel, entry_words
from tracer.exporters.screen.snapshot import print_groups
from tracer.exporters.screen.text import print_rows, say, signed
from tracer.units import format_bytes, some


def print_moments(moments: Moments, console: Console, *, top: int) -> None:
    """Print what was asked about one device, and its steps where there are several."""
    for moment in moments.held:
        phase = f", in {moment.phase}" if moment.phase else ""
        at = f"after entry {moment.entry:,}" if moment.entry >= 0 else "at the start of the recording"
        sizes = f"{format_bytes(moment.requested_bytes)} requested, {format_bytes(moment.reserved_bytes)} reserved"
        _say(console, f"Device {moments.device} {at}{phase}: {sizes}")
        print_groups("What was in use", moment.groups, console, top)
    if moments.between is not None:
        _print_between(moments.between, console, top)
    if moments.before_oom is not None:
        last = moments.before_oom
        origin = f"made from entry {last.first:,} on" if last.first >= 0 else "made before the recording or in it"
        sentence = f"the last {format_bytes(last.bytes)} in use at entry {last.entry:,} were {origin}"
        _say(console, f"Device {moments.device}: {sentence}")
        print_groups("Last allocations before it ran out of memory", last.groups, console, top)
    _print_steps(moments.device, moments.steps, console, top)


def _print_steps(device: int, steps: Sequence[StepLevel], console: Console, top: int) -> None:
    """How much was in use as each step was over; what lies between the shown ones is said."""
    rows, before = [], None
    for number, step in enumerate(steps):
        change = "" if before is None else signed(step.end_bytes - before)
        rows.append((f"{number + 1}", format_bytes(step.end_bytes), change, format_bytes(step.peak_bytes)))
        before = step.end_bytes
    if len(rows) > 1:
        print_rows(
            f"Device {device}, step by step of the optimizer",
            ("step", "at its end", "change", "peak"),
            islice(rows, top),
            console,
        )
        if len(rows) > top:
            whole = signed(steps[-1].end_bytes - steps[0].end_bytes)
            say(console, f"{some(len(rows) - top, 'more step')}; from the first to the last: {whole}", indent=2)


def _print_between(between: Between, console: Console, top: int) -> None:
    change = signed(between.last_bytes - between.first_bytes)
    sizes = f"{format_bytes(between.first_bytes)} -> {format_bytes(between.last_bytes)}"
    first, last = entry_words(between.first), entry_words(between.last)
    _say(console, f"Device {between.device}, from {first} to {last}: {change} ({sizes})")
    for title, groups in (("What came", between.came), ("What went", between.went)):
        if groups:
            print_groups(title, groups, console, top)
        else:
            _say(console, f"{title}: nothing")


def _say(console: Console, line: str) -> None:
    say(console)
    say(console, line, style="bold")
