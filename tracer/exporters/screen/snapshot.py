"""The explanation of a snapshot as text on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from rich.console import Console

from tracer.analysis.snapshots.findings import DeviceFinding, SnapshotFinding
from tracer.analysis.snapshots.first_changes import FirstChanges
from tracer.analysis.snapshots.peak import Peak
from tracer.analysis.snapshots.timeline import StepLevel
from tracer.exporters.history_sections import (
    device_sections,
    failure_sections,
    first_changes_sections,
    groups_table,
    host_sections,
    since_start,
)
from tracer.exporters.screen.paths import shorten_paths
from tracer.exporters.screen.text import exact, print_section, print_table, say
from tracer.exporters.tables import Table, columns, signed
from tracer.units import format_bytes, some

MAX_DEVICES = 32
"""Shown in full; no machine has more, but a file may claim thousands."""


def print_snapshot(
    finding: SnapshotFinding,
    console: Console,
    *,
    file: str,
    top: int = 10,
    first: Mapping[int, FirstChanges | None] | None = None,
    more: Callable[[int], None] = lambda device: None,
) -> None:
    """Print what filled each device at its peak, those that ran out of memory before the others.

    Args:
        first: What to try first on each device, by its index.
        more: Prints what else there is to say of a device, given its index.
    """
    say(console, file, style="bold")
    for note in finding.notes:
        say(console, f"Note: {note}", style="yellow")
    devices = finding.failed_first
    for device in devices[:MAX_DEVICES]:
        _print_device(device, console, top, (first or {}).get(device.device))
        more(device.device)
    if others := devices[MAX_DEVICES:]:
        peak = format_bytes(max(device.peak.requested_bytes for device in others))
        say(console)
        say(console, f"{some(len(others), 'more device')} with peaks of {peak} at most (one of them: --device)")
    for section in host_sections(finding.pinned_bytes):
        print_section(section, console, top=top)


def _print_device(device: DeviceFinding, console: Console, top: int, first: FirstChanges | None) -> None:
    peak = device.peak
    say(console)
    history = f"{some(device.entries, 'entry')} of history"
    say(console, f"Device {device.device}: {history}, peak {_when(peak, device)}", style="bold")
    say(console, f"requested  {exact(peak.requested_bytes)}", indent=2)
    if (memory := peak.fragmentation) is not None:
        say(console, f"allocated  {exact(memory.allocated_bytes)}, after the allocator's rounding", indent=2)
        say(console, f"reserved   {exact(memory.reserved_bytes)}, taken from the device", indent=2)
    if peak.before_recording_bytes:
        before = exact(peak.before_recording_bytes)
        say(console, f"of the requested bytes, {before} were there before the recording", indent=2)
    for note in device.notes:
        say(console, f"Note: {note}", style="yellow", indent=2)
    if first is not None and first.much_is_saved and not device.oom:
        say(console, shorten_paths(first.much_is_saved), style="bold", indent=2)
    failures = failure_sections(device.oom, first_time_us=device.first_time_us, at_peak=peak.groups)
    for section in (*failures, *first_changes_sections(first)):
        print_section(section, console, top=top)
    print_table(groups_table("What filled it, by line and kind", peak.groups), console, top=top)
    for section in device_sections(device):
        print_section(section, console, top=top)


def _when(peak: Peak, device: DeviceFinding) -> str:
    if peak.entry < 0:
        return "at the start of the recording" if device.entries else "as the snapshot was taken"
    phase = f", in {peak.phase}" if peak.phase else ""
    return f"after entry {peak.entry:,}{since_start(peak.time_us, device.first_time_us)}{phase}"


def print_steps(device: int, steps: Sequence[StepLevel], console: Console, top: int) -> None:
    """How much was in use as each step was over; what lies between the shown ones is said."""
    if len(steps) < 2:
        return
    changes: list[int | str] = ["", *(step.end_bytes - before.end_bytes for before, step in pairwise(steps))]
    rows = [
        (n, step.end_bytes, change, step.peak_bytes)
        for n, (step, change) in enumerate(zip(steps, changes, strict=True), 1)
    ]
    heads = (*columns("count", "step"), *columns("bytes", "at its end"), *columns("change", "change"))
    title = f"Device {device}, step by step of the optimizer"
    print_table(Table(title, (*heads, *columns("bytes", "peak")), tuple(rows[:top])), console)
    if len(rows) > top:
        whole = signed(steps[-1].end_bytes - steps[0].end_bytes)
        say(console, f"{some(len(rows) - top, 'more step')}; from the first to the last: {whole}", indent=2)


def _say(console: Console, line: str) -> None:
    say(console)
    say(console, line, style="bold")
