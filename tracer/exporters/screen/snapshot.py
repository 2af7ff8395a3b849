"""The explanation of a snapshot as text on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from rich.console import Console

from tracer.analysis.kinds import BEFORE_RECORDING, meaning_of
from tracer.analysis.snapshots.causes.pinned_memory import PinnedLine
from tracer.analysis.snapshots.findings import DeviceFinding, SnapshotFinding
from tracer.analysis.snapshots.groups import SnapshotRow
from tracer.analysis.snapshots.moments import Between, Moments, StepLevel, entry_words
from tracer.analysis.snapshots.oom import OutOfMemory, distinct_failures
from tracer.analysis.snapshots.peak import Peak, Share
from tracer.analysis.snapshots.sites import NO_FRAMES, NO_PYTHON_FRAME, Site
from tracer.exporters.screen.paths import shorten_paths, source_place
from tracer.exporters.screen.text import exact, print_rows, say, signed
from tracer.units import format_bytes, some

MAX_DEVICES = 32
"""Shown in full; no machine has more, but a file may claim thousands."""
# Of the bytes in a table, a group with less than this share is shown without its callers.
_SHARE_WITH_CALLERS = 0.05
_MOST_CALLERS = 4


def print_snapshot(
    finding: SnapshotFinding,
    console: Console,
    *,
    file: str,
    top: int = 10,
    more: Callable[[int], None] = lambda device: None,
    behind_failure: Callable[[int], None] = lambda device: None,
    why: Callable[[int], str] = lambda device: "",
) -> None:
    """Print what filled each device at its peak, those that ran out of memory before the others.

    Args:
        more: Prints what else there is to say of a device, given its index.
        why: What fills a good part of a device's peak, and what to change; where none is known, empty.
    """
    say(console, file, style="bold")
    for note in finding.notes:
        say(console, f"Note: {note}", style="yellow")
    devices = finding.failed_first
    for device in devices[:MAX_DEVICES]:
        _print_device(device, console, top, behind_failure, why(device.device))
        more(device.device)
    if others := devices[MAX_DEVICES:]:
        peak = format_bytes(max(device.peak.requested_bytes for device in others))
        say(console)
        say(console, f"{some(len(others), 'more device')} with peaks of {peak} at most (one of them: --device)")
    print_pinned(finding.pinned, console, top)


def print_pinned(pinned: Sequence[PinnedLine], console: Console, top: int) -> None:
    """Print the lines that pinned host memory; nothing if there are none."""
    if pinned:
        shares = tuple(Share(place(line.site), line.bytes, line.count) for line in pinned)
        _print_shares("Pinned host memory at the end", shares, console, top)


def _print_device(
    device: DeviceFinding, console: Console, top: int, behind_failure: Callable[[int], None], why: str
) -> None:
    peak = device.peak
    say(console)
    history = f"{some(device.entries, 'entry')} of history"
    say(console, f"Device {device.device}: {history}, peak {_when(peak, device)}", style="bold")
    say(console, f"requested  {exact(peak.requested_bytes)}", indent=2)
    say(console, f"allocated  {exact(peak.allocated_bytes)}, after the allocator's rounding", indent=2)
    say(console, f"reserved   {exact(peak.reserved_bytes)}, taken from the device", indent=2)
    if peak.before_recording_bytes:
        before = exact(peak.before_recording_bytes)
        say(console, f"of the requested bytes, {before} were there before the recording", indent=2)
    for note in device.notes:
        say(console, f"Note: {note}", style="yellow", indent=2)
    if why and not device.oom:
        say(console, shorten_paths(why), style="bold", indent=2)
    shown = _print_ooms(device, console, top)
    if device.oom:
        behind_failure(device.device)
    if _rows(peak.groups) in shown:
        say(console)
        say(console, 'The peak was at that moment: see "What was in use then".')
    else:
        print_groups("What filled it, by line and kind", peak.groups, console, top)
    _print_shares("By kind", peak.by_kind, console, top)
    if peak.has_annotations:
        _print_shares("By annotation", peak.by_annotation, console, top)
    if peak.has_names:
        _print_shares("By the name that the program gave", peak.by_name, console, top)
    if len(peak.by_stream) > 1:
        _print_shares("By stream and pool", peak.by_stream, console, top)
    _print_fragmentation(device, console)
    _print_growth(device, console, top)


def _rows(groups: Sequence[SnapshotRow]) -> tuple[tuple[object, ...], ...]:
    return tuple((group.bytes, group.count, group.kind_words, group.site) for group in groups)


def _when(peak: Peak, device: DeviceFinding) -> str:
    if peak.entry < 0:
        return "at the start of the recording" if device.entries else "as the snapshot was taken"
    phase = f", in {peak.phase}" if peak.phase else ""
    return f"after entry {peak.entry:,}{since_start(peak.time_us, device.first_time_us)}{phase}"


def since_start(time_us: int, first_time_us: int) -> str:
    """The time in seconds since the first entry, in words; empty where entries have no times."""
    if time_us < 0 or first_time_us < 0:
        return ""
    return f", {(time_us - first_time_us) / 1e6:,.3f} s after the first"


def print_groups(title: str, groups: Sequence[SnapshotRow], console: Console, top: int) -> None:
    """Print groups of blocks by line and kind; what those beyond the top hold together is said."""
    total = sum(group.bytes for group in groups)
    rows = []
    for group in islice(groups, top):
        rows.append((format_bytes(group.bytes), f"{group.count:,}", group.kind_words, place(group.site)))
        if group.bytes >= _SHARE_WITH_CALLERS * total:
            rows += [("", "", "", words) for words in _callers(group)]
    rows += [(size, count, "", more) for size, count, more in _rest(groups[top:])]
    print_rows(title, ("bytes", "blocks"), rows, console, words=("kind", "where"))


def _callers(group: SnapshotRow) -> Iterator[str]:
    """Yield the callers of a group's line, from the first frame in which its stacks differ."""
    for share in group.callers[:_MOST_CALLERS]:
        where = "from elsewhere" if share.site is None else f"from {place(share.site)}"
        yield f"  {format_bytes(share.bytes)} in {some(share.count, 'block')} {where}"
    if rest := group.callers[_MOST_CALLERS:]:
        yield f"  {format_bytes(sum(share.bytes for share in rest))} from {some(len(rest), 'more line')}"


def _rest(rows: Sequence[SnapshotRow | Share]) -> Iterator[tuple[str, str, str]]:
    """Yield one row with the sum of the rows that are not shown, if there are any."""
    if rows:
        yield format_bytes(sum(row.bytes for row in rows)), f"{sum(row.count for row in rows):,}", f"{len(rows):,} more"


def _print_shares(title: str, shares: Sequence[Share], console: Console, top: int) -> None:
    rows = [(format_bytes(share.bytes), f"{share.count:,}", share.name) for share in islice(shares, top)]
    rows += _rest(shares[top:])
    if any(meaning_of(share.name) for share in shares):
        with_meanings = [(*row, meaning_of(row[2])) for row in rows]
        print_rows(title, ("bytes", "blocks"), with_meanings, console, words=("", ""))
    else:
        print_rows(title, ("bytes", "blocks"), rows, console, words=("",))


def _print_fragmentation(device: DeviceFinding, console: Console) -> None:
    rows = []
    for name, state in (("at the peak", device.peak.fragmentation), ("at the end", device.end_fragmentation)):
        sizes = (state.reserved_bytes, state.allocated_bytes, state.free_bytes, state.largest_free_bytes)
        rows.append((name, *map(format_bytes, sizes)))
    print_rows("Reserved memory", ("", "reserved", "allocated", "free", "largest free"), rows, console)


def _print_growth(device: DeviceFinding, console: Console, top: int) -> None:
    if not device.entries:
        return
    start, end = format_bytes(device.start_requested_bytes), format_bytes(device.end_requested_bytes)
    say(console)
    say(console, f"Growth over the recording: {signed(device.growth_bytes)} ({start} -> {end})")
    if device.never_freed:
        print_groups("Allocated and never freed", device.never_freed, console, top)


def print_failed_allocation(event: OutOfMemory, console: Console, *, top: int = 10, fit: str = "") -> None:
    """Print why the run that has just ended had no memory left, and what to look at first.

    Args:
        top: Rows of the table of what was in use; 0 for no table.
    """
    say(console)
    say(console, ran_out_at(event.site), style="bold")
    _print_oom_sizes(event, console, fit)
    if not top:
        return
    _print_in_use(event, console, top)
    if any(group.site.frame == NO_FRAMES for group in event.groups):
        say(console, "Blocks without a stack were made by autograd's own thread, in backward.")


def _print_ooms(device: DeviceFinding, console: Console, top: int) -> list[tuple[tuple[object, ...], ...]]:
    """A failure of each line in full, the last one first; for the others a line. What the tables showed."""
    shown: list[tuple[tuple[object, ...], ...]] = []
    events = distinct_failures(device.oom)
    events = (*events[-1:], *events[:-1])
    for event in events:
        when = since_start(event.time_us, device.first_time_us)
        say(console)
        say(console, f"Out of memory, entry {event.entry:,}{when}: {place(event.site)}", style="bold red")
        _print_oom_sizes(event, console)
        if _rows(event.groups) in shown:
            say(console, "What was in use then is what the table above shows.", indent=2)
        else:
            _print_in_use(event, console, top)
        shown.append(_rows(event.groups))
    if again := len(device.oom) - len(events):
        say(console)
        failures = some(again, "more failure")
        say(console, f"{failures} at lines that had failed before (all of them: --json)", style="red")
    return shown


def _print_in_use(event: OutOfMemory, console: Console, top: int) -> None:
    print_groups("What was in use then", event.groups, console, top)


def _print_oom_sizes(event: OutOfMemory, console: Console, fit: str = "") -> None:
    say(console, shorten_paths(event.advice), style="bold", indent=2)
    if fit:
        say(console, fit, indent=2)
    for name, size in (
        ("requested", event.asked_bytes),
        ("free on the device", event.device_free_bytes),
        ("in use", event.allocated_bytes),
        ("reserved", event.reserved_bytes),
        ("reserved but unallocated", event.unallocated_bytes),
        ("largest free block", event.largest_free_bytes),
        ("free for this request", event.usable_free_bytes),
        ("waiting for a stream", event.pending_free_bytes),
    ):
        if size or name != "waiting for a stream":
            say(console, f"{name:<26}{'not recorded' if size is None else exact(size)}", indent=4)


def ran_out_at(site: Site) -> str:
    """Return the begin of a sentence on where memory ran out."""
    if site.file is None and site.frame == NO_FRAMES:
        return "Out of memory (no stack was recorded of where)"
    return f"Out of memory at {place(site)}"


def place(site: Site) -> str:
    """A site for people: `function  file:line`, and a word where there is no Python frame."""
    if site.file is not None:
        return f"{site.frame}  {source_place(site.file, site.line)}"
    return site.frame if site.frame in (BEFORE_RECORDING, NO_FRAMES) else f"{site.frame}  ({NO_PYTHON_FRAME})"


def print_moments(moments: Moments, console: Console, *, top: int) -> None:
    """Print what was asked about one device, and its steps where there are several."""
    for moment in moments.held:
        phase = f", in {moment.phase}" if moment.phase else ""
        at = f"after entry {moment.entry:,}" if moment.entry >= 0 else "at the start of the recording"
        sizes = f"{format_bytes(moment.requested_bytes)} requested, {format_bytes(moment.reserved_bytes)} reserved"
        _say(console, f"Device {moments.device} {at}{phase}: {sizes}")
        print_groups("What was in use", moment.groups, console, top)
    if moments.between is not None:
        _print_between(moments.device, moments.between, console, top)
    if moments.before_oom is not None:
        last = moments.before_oom
        origin = (
            f"made from entry {last.first_entry:,} on"
            if last.first_entry >= 0
            else "made before the recording or in it"
        )
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


def _print_between(device: int, between: Between, console: Console, top: int) -> None:
    change = signed(between.last_bytes - between.first_bytes)
    sizes = f"{format_bytes(between.first_bytes)} -> {format_bytes(between.last_bytes)}"
    first, last = entry_words(between.first_entry), entry_words(between.last_entry)
    _say(console, f"Device {device}, from {first} to {last}: {change} ({sizes})")
    for title, groups in (("What came", between.came), ("What went", between.went)):
        if groups:
            print_groups(title, groups, console, top)
        else:
            _say(console, f"{title}: nothing")


def _say(console: Console, line: str) -> None:
    say(console)
    say(console, line, style="bold")
