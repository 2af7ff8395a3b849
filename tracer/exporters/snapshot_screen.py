"""The explanation of a snapshot as text on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracer.analysis.snapshots.findings import DeviceFinding, SnapshotFinding
from tracer.analysis.snapshots.groups import Group
from tracer.analysis.snapshots.oom import OutOfMemory
from tracer.analysis.snapshots.peak import Peak, Share
from tracer.analysis.snapshots.sites import BEFORE_RECORDING, NO_FRAMES, NO_PYTHON_FRAME, Site
from tracer.units import format_bytes

MAX_DEVICES = 32
"""Shown in full; no machine has more, but a file may claim thousands."""


def print_snapshot(finding: SnapshotFinding, console: Console, *, file: str, top: int = 10) -> None:
    """Print what filled each device at its peak.

    Args:
        finding: What `explain_snapshot` returned.
        console: Where to print; file names are never read as markup.
        file: The snapshot's name, as the person gave it.
        top: Rows of each table; what the others hold together is said.
    """
    _say(console, file, style="bold")
    for note in finding.notes:
        _say(console, f"Note: {note}", style="yellow")
    devices = finding.failed_first
    for device in devices[:MAX_DEVICES]:
        _print_device(device, console, top)
    if others := devices[MAX_DEVICES:]:
        peak = format_bytes(max(device.peak.requested_bytes for device in others))
        _say(console, f"\n{len(others):,} more devices with peaks of {peak} at most (one of them: --device)")


def _print_device(found: DeviceFinding, console: Console, top: int) -> None:
    peak = found.peak
    _say(console, f"\nDevice {found.device}: {found.entries:,} entries, peak {_when(peak, found)}", style="bold")
    _say(console, f"  requested  {_exact(peak.requested_bytes)}")
    _say(console, f"  allocated  {_exact(peak.allocated_bytes)}, rounded by the allocator as far as known")
    _say(console, f"  reserved   {_exact(peak.reserved_bytes)}")
    if peak.before_recording_bytes:
        _say(console, f"  of the requested bytes, {_exact(peak.before_recording_bytes)} were there before recording")
    for note in found.notes:
        _say(console, f"  Note: {note}", style="yellow")
    _print_ooms(found, console, top)
    print_groups("What filled it, by line and kind", peak.groups, console, top)
    _print_shares("By kind", peak.by_kind, console, top)
    if peak.has_annotations:
        _print_shares("By annotation", peak.by_annotation, console, top)
    if len(peak.by_stream) > 1:
        _print_shares("By stream and pool", peak.by_stream, console, top)
    _print_fragmentation(found, console)
    _print_growth(found, console, top)


def _when(peak: Peak, found: DeviceFinding) -> str:
    if peak.entry < 0:
        return "at the start of the recording" if found.entries else "as the snapshot was taken"
    time = f", at {peak.time_us:,} us" if peak.time_us >= 0 else ""
    phase = f", in {peak.phase}" if peak.phase else ""
    return f"after entry {peak.entry:,}{time}{phase}"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], console: Console) -> None:
    """Print a table of numbers."""
    table = _table(title, *columns)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_groups(title: str, groups: Sequence[Group], console: Console, top: int) -> None:
    """Print groups of blocks by line and kind; what those beyond the top hold together is said."""
    table = _table(title, "bytes", "blocks")
    for name in ("kind", "where"):
        table.add_column(name, overflow="fold")
    for group in islice(groups, top):
        table.add_row(format_bytes(group.bytes), str(group.count), _kind(group), Text(place(group.site)))
    _add_rest(table, [(group.bytes, group.count) for group in groups[top:]])
    console.print(table)


def _kind(group: Group) -> str:
    return f"{group.kind}, before" if group.is_before_recording and group.site.frame != BEFORE_RECORDING else group.kind


def _print_shares(title: str, shares: Sequence[Share], console: Console, top: int) -> None:
    table = _table(title, "bytes", "blocks")
    table.add_column("", overflow="fold")
    for share in islice(shares, top):
        table.add_row(format_bytes(share.bytes), str(share.count), Text(share.name))
    _add_rest(table, [(share.bytes, share.count) for share in shares[top:]])
    console.print(table)


def _print_fragmentation(found: DeviceFinding, console: Console) -> None:
    table = _table("Reserved memory", "", "reserved", "allocated", "free", "largest free")
    for name, state in (("at the peak", found.peak.fragmentation), ("at the end", found.end_fragmentation)):
        sizes = (state.reserved_bytes, state.allocated_bytes, state.free_bytes, state.largest_free_bytes)
        table.add_row(name, *map(format_bytes, sizes))
    console.print(table)


def _print_growth(found: DeviceFinding, console: Console, top: int) -> None:
    if not found.entries:
        return
    start, end = format_bytes(found.start_requested_bytes), format_bytes(found.end_requested_bytes)
    _say(console, f"\n  Growth over the recording: {_signed(found.growth_bytes)} ({start} -> {end})")
    if found.never_freed:
        print_groups("Allocated and never freed", found.never_freed, console, top)


def print_failed_allocation(event: OutOfMemory, console: Console, *, top: int = 10) -> None:
    """Print why the run that has just ended had no memory left, and what to look at first."""
    _say(console, f"\nOut of memory at {place(event.site)}", style="bold")
    _print_oom_sizes(event, console, top)
    if any(group.site.frame == NO_FRAMES for group in event.groups):
        _say(console, "    Blocks without a stack were made by autograd's own thread, in backward.")


def _print_ooms(found: DeviceFinding, console: Console, top: int) -> None:
    """The first failure of each line in full, before everything else; for the others a line each."""
    seen: set[Site] = set()
    again = 0
    for event in found.oom:
        if event.site in seen:
            again += 1
            continue
        seen.add(event.site)
        _print_oom(event, console, top)
    if again:
        _say(console, f"  {again} more failures at lines that had failed before (all of them: --json)", style="red")


def _print_oom(event: OutOfMemory, console: Console, top: int) -> None:
    time = f" at {event.time_us:,} us" if event.time_us >= 0 else ""
    _say(console, f"\n  Out of memory, entry {event.entry:,}{time}: {place(event.site)}", style="bold red")
    _print_oom_sizes(event, console, top)


def _print_oom_sizes(event: OutOfMemory, console: Console, top: int) -> None:
    _say(console, f"    {event.advice}", style="bold")
    for name, size in (
        ("asked for", event.asked_bytes),
        ("free on the device", event.device_free_bytes),
        ("in use", event.allocated_bytes),
        ("reserved", event.reserved_bytes),
        ("reserved but unallocated", event.unallocated_bytes),
        ("largest free block", event.largest_free_bytes),
        ("free for this request", event.usable_free_bytes),
        ("waiting for a stream", event.pending_free_bytes),
    ):
        if size or name != "waiting for a stream":
            _say(console, f"    {name:<26}{'not recorded' if size is None else _exact(size)}")
    print_groups("What was in use then", event.groups, console, top)


def place(site: Site) -> str:
    """A site for people: `function  file:line`, and a word where there is no Python frame."""
    if site.file is not None:
        return f"{site.frame}  {site.file}:{site.line}"
    return site.frame if site.frame in (BEFORE_RECORDING, NO_FRAMES) else f"{site.frame}  ({NO_PYTHON_FRAME})"


def _table(title: str, *numbers: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1), pad_edge=False, show_header=True)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table


def _add_rest(table: Table, rest: list[tuple[int, int]]) -> None:
    if rest:
        size, count = sum(size for size, _ in rest), sum(count for _, count in rest)
        padding = [""] * (len(table.columns) - 3)
        table.add_row(format_bytes(size), str(count), *padding, f"{len(rest)} more")


def _exact(size: int) -> str:
    return f"{format_bytes(size)} ({size:,} B)"


def _signed(size: int) -> str:
    return f"+{format_bytes(size)}" if size > 0 else format_bytes(size)


def _say(console: Console, line: str, *, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)
