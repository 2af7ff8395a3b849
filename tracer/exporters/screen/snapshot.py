"""The explanation of a snapshot, and of the caching allocator's model of it, as text on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from rich.console import Console

from tracer.answers.allocator.allocator_finding import AS_RECORDED, AllocatorFinding, SettingsOutcome, WhatIf
from tracer.answers.allocator.modelled import Modelled
from tracer.answers.history_sections import (
    device_sections,
    failure_sections,
    first_changes_sections,
    groups_table,
    host_sections,
    since_start,
)
from tracer.answers.paths import shorten_paths
from tracer.answers.peak import Peak
from tracer.answers.snapshot_findings import DeviceFinding, SnapshotFinding
from tracer.answers.tables import Cell, Table, columns, signed
from tracer.answers.why.first_changes import FirstChanges
from tracer.blocks.from_snapshot.timeline import StepLevel
from tracer.exporters.screen.text import exact, print_section, print_table, say
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
        peak = format_bytes(max(device.peak.peak_bytes for device in others))
        say(console)
        say(console, f"{some(len(others), 'more device')} with peaks of {peak} at most (one of them: --device)")
    for section in host_sections(finding.pinned_bytes):
        print_section(section, console, top=top)


def _print_device(device: DeviceFinding, console: Console, top: int, first: FirstChanges | None) -> None:
    peak = device.peak
    say(console)
    history = f"{some(device.entries, 'entry')} of history"
    say(console, f"Device {device.device}: {history}, peak {_when(peak, device)}", style="bold")
    say(console, f"requested  {exact(peak.peak_bytes)}", indent=2)
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
    failures = failure_sections(device.oom, first_time_us=device.first_time_us, at_peak=peak.rows)
    for section in (*failures, *first_changes_sections(first)):
        print_section(section, console, top=top)
    print_table(groups_table("What filled it, by line and kind", peak.rows), console, top=top)
    for section in device_sections(device):
        print_section(section, console, top=top)


def _when(peak: Peak, device: DeviceFinding) -> str:
    if peak.position < 0:
        return "at the start of the recording" if device.entries else "as the snapshot was taken"
    phase = f", in {peak.phase}" if peak.phase else ""
    return f"after entry {peak.position:,}{since_start(peak.time_us, device.first_time_us)}{phase}"


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


def print_allocator(findings: Sequence[AllocatorFinding], console: Console) -> None:
    """Print, for each device, how far the model agrees, why so much is reserved, and what was asked about settings."""
    for finding in findings:
        if not finding.agreement and not finding.at_end.rows:
            continue
        say(console)
        say(console, f"Allocator of device {finding.device}", style="bold")
        for sentence in finding.agreement:
            say(console, sentence, indent=2)
        _print_reserved(finding, console)
        if finding.what_if is not None and finding.modelled is not None:
            _print_what_if(finding.what_if, finding.modelled, console)


def _print_reserved(finding: AllocatorFinding, console: Console) -> None:
    """Both moments side by side, each with rows that sum to what was reserved."""
    moments = [moment for moment in (finding.at_peak, finding.at_end) if moment is not None]
    parts = [{(row.pool, row.stream, row.reason): row.bytes for row in moment.rows} for moment in moments]
    if not any(parts):
        return

    def cells(sizes: Iterable[int]) -> tuple[Cell, ...]:
        shares = (
            (size, size / moment.bytes if moment.bytes else "") for size, moment in zip(sizes, moments, strict=True)
        )
        return tuple(cell for pair in shares for cell in pair)

    names = ("most reserved", "at the end")[-len(moments) :]
    heads = tuple(column for name in names for column in (*columns("bytes", name), *columns("share", "")))
    rows = tuple(
        (*cells(part.get(key, 0) for part in parts), pool if stream == 0 else f"{pool}, stream {stream:#x}", reason)
        for key in dict.fromkeys(key for part in parts for key in part)
        for pool, stream, reason in [key]
    )
    footer = (*cells(sum(part.values()) for part in parts), "", "reserved")
    words = (*columns("label", "pool"), *columns("text", "why"))
    print_table(Table("Why so much is reserved", (*heads, *words), rows, footer), console)


def _print_what_if(what_if: WhatIf, modelled: Modelled, console: Console) -> None:
    on_gpu, is_limited = what_if.gpu_memory is not None, what_if.capacity is not None
    heads = (
        *(*columns("bytes", "peak", "saved"), *columns("count", "calls")),
        *(columns("count", "retries") if is_limited else ()),
        *(columns("text", "failed requests") if what_if.num_failed else ()),
        *(columns("text", f"on {format_bytes(what_if.gpu_memory or 0)}") if on_gpu else ()),
        *(columns("bytes", "at least" if what_if.ends_by_failure else "smallest") if on_gpu else ()),
        *columns("text", "settings"),
    )
    rows: list[tuple[Cell, ...]] = []
    for row in what_if.rows:
        outcome = row.outcome
        limited = [outcome.num_retries] if is_limited else []
        has_failed = outcome.failure is not None
        num_served = what_if.num_failed - len(outcome.unserved)
        words = "fails earlier" if has_failed else f"{num_served:,} of {what_if.num_failed:,} served"
        served = [words] if what_if.num_failed else []
        fits = [_fits(row, what_if), "" if row.smallest_gpu_bytes is None else row.smallest_gpu_bytes] if on_gpu else []
        name = "as recorded" if row.settings == AS_RECORDED else row.settings
        saved = "" if row.settings == AS_RECORDED or has_failed else row.saved_bytes
        sizes = (outcome.reserved_peak_bytes, saved, outcome.num_driver_calls)
        rows.append((*sizes, *limited, *served, *fits, name))
    print_table(Table("Reserved peak of the same requests under other settings", heads, tuple(rows)), console)
    say(console)
    for sentence in _explanations(what_if, modelled):
        say(console, sentence, indent=2)


def _fits(row: SettingsOutcome, what_if: WhatIf) -> str:
    if row.on_gpu is None:
        return ""
    if row.on_gpu.failure is not None:
        return "out of memory"
    retries = row.on_gpu.num_retries
    runs = "gets past the failure" if what_if.ends_by_failure else "runs"
    return f"{runs}, {some(retries, 'retry')}" if retries else runs


def _explanations(what_if: WhatIf, modelled: Modelled) -> list[str]:
    sentences = _what_was_had(what_if)
    for row in what_if.rows:
        name = "As recorded" if row.settings == AS_RECORDED else row.settings
        failure = row.on_gpu.failure if row.on_gpu is not None else row.outcome.failure
        if failure is not None:
            at_entry = f"at entry {failure.entry:,} of {modelled.history.num_entries:,}"
            where = "before the recording begins" if failure.entry < 0 else at_entry
            in_use = (
                f"{format_bytes(failure.allocated_bytes)} in use of {format_bytes(failure.reserved_bytes)} reserved"
            )
            sentences.append(f"{name}: a request for {format_bytes(failure.size)} fails {where}, with {in_use}.")
    if len(what_if.rows) > 1:
        sentences.append(_advice(what_if))
    sentences.append(what_it_is_not(what_if))
    if what_if.gpu_memory is not None:
        sentences.append(_how_searched(what_if))
    return sentences


def _how_searched(what_if: WhatIf) -> str:
    if what_if.ends_by_failure:
        return (
            "The recording ends by the request that failed, so it is no whole run: on a larger GPU the program would "
            "go on and ask for more. The sizes under 'at least' serve what was recorded, with that request; how much "
            "the whole program needs is not known from it."
        )
    below = [
        "as recorded" if row.settings == AS_RECORDED else row.settings
        for row in what_if.rows
        if row.fits and what_if.gpu_memory is not None and what_if.gpu_memory < (row.smallest_gpu_bytes or 0)
    ]
    lucky = (
        f" It runs on {format_bytes(what_if.gpu_memory or 0)} {' and '.join(below)}, but not on every size in between."
        if below
        else ""
    )
    return (
        f"The smallest GPU was found by bisection in steps of {format_bytes(what_if.step_bytes)}: all larger ones work "
        f"too. A smaller one may work if the cache happens to be emptied at a better moment.{lucky}"
    )


def _what_was_had(what_if: WhatIf) -> list[str]:
    """Sentences on the limit of each replay, and on a replay of the recorded settings that misses the recorded peak."""
    sentences = []
    if what_if.capacity is not None:
        sentences.append(
            "The recording used all that the device had for it: "
            f"each replay is limited to {format_bytes(what_if.capacity)} too."
        )
    off = what_if.rows[0].outcome.reserved_peak_bytes - what_if.recorded_peak_bytes
    if abs(off) * 100 >= what_if.recorded_peak_bytes and what_if.rows[0].outcome.failure is None:
        sentences.append(
            f"The recording itself had {format_bytes(what_if.recorded_peak_bytes)} reserved, "
            f"{format_bytes(abs(off))} {'less' if off > 0 else 'more'} than these requests from a clean allocator: "
            "what was cached before the recording is not in the table."
        )
    return sentences


def _advice(what_if: WhatIf) -> str:
    best, recorded = what_if.best, what_if.rows[0].outcome
    served = len(recorded.unserved) - len(best.outcome.unserved)
    if served > 0 and best.outcome.failure is None:
        return (
            f"With PYTORCH_CUDA_ALLOC_CONF={best.settings}, {served} of {some(what_if.num_failed, 'failed request')} "
            "would have been served."
        )
    if best.saved_bytes * 100 < recorded.reserved_peak_bytes:
        return "None of these settings saves 1 % of the peak."
    percent = 100 * best.saved_bytes / recorded.reserved_peak_bytes
    return (
        f"PYTORCH_CUDA_ALLOC_CONF={best.settings} reserves the least: {format_bytes(best.saved_bytes)} less "
        f"({percent:.1f} %), with {best.outcome.num_driver_calls:,} driver calls instead of "
        f"{recorded.num_driver_calls:,}."
    )


def what_it_is_not(what_if: WhatIf) -> str:
    """Return a sentence on the limits of these answers."""
    before = "" if what_if.starts_clean else ", without what was cached before the recording"
    gpu = "" if what_if.gpu_memory is None else "; the CUDA context and libraries need GPU memory in addition"
    return (
        f"These figures are for a clean allocator and exactly these requests{before}; a program that reacts to its "
        f"memory would make others{gpu}."
    )
