"""Moments of a snapshot's recording, as text on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from rich.console import Console

from tracer.analysis.snapshots.moments import Between, Moments, StepLevel, entry_words
from tracer.exporters.screen.snapshot import print_groups
from tracer.exporters.screen.text import print_rows, say, signed
from tracer.units import format_bytes, some


def print_moments(found: Moments, console: Console, *, top: int) -> None:
    """Print what was asked about one device, and its steps where there are several."""
    for held in found.held:
        phase = f", in {held.phase}" if held.phase else ""
        at = f"after entry {held.entry:,}" if held.entry >= 0 else "at the start of the recording"
        sizes = f"{format_bytes(held.requested_bytes)} requested, {format_bytes(held.reserved_bytes)} reserved"
        _say(console, f"Device {found.device} {at}{phase}: {sizes}")
        print_groups("What was in use", held.groups, console, top)
    if found.between is not None:
        _print_between(found.between, console, top)
    if found.before_oom is not None:
        last = found.before_oom
        made = f"made from entry {last.first:,} on" if last.first >= 0 else "made before the recording or in it"
        what = f"the last {format_bytes(last.bytes)} in use at entry {last.entry:,} were {made}"
        _say(console, f"Device {found.device}: {what}")
        print_groups("Made last before it ran out of memory", last.groups, console, top)
    _print_steps(found.device, found.steps, console, top)


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


def _print_between(found: Between, console: Console, top: int) -> None:
    change = signed(found.last_bytes - found.first_bytes)
    sizes = f"{format_bytes(found.first_bytes)} -> {format_bytes(found.last_bytes)}"
    first, last = entry_words(found.first), entry_words(found.last)
    _say(console, f"Device {found.device}, from {first} to {last}: {change} ({sizes})")
    print_groups("What came", found.came, console, top)
    print_groups("What went", found.went, console, top)


def _say(console: Console, line: str) -> None:
    say(console)
    say(console, line, style="bold")
