"""Findings of the caching allocator's model, as text on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from tracer.analysis.snapshots.allocator_finding import AS_RECORDED, AllocatorFinding, SettingsOutcome, WhatIf
from tracer.analysis.snapshots.modelled import Modelled
from tracer.analysis.snapshots.reserved import SegmentHolder
from tracer.exporters.history_sections import place
from tracer.exporters.screen.text import print_table, say
from tracer.exporters.tables import Cell, Table, columns
from tracer.units import format_bytes, some


def print_allocator(findings: Sequence[AllocatorFinding], console: Console, *, top: int = 10) -> None:
    """Print, for each device, how far the model agrees, why so much is reserved, and what was asked about settings."""
    for finding in findings:
        if not finding.agreement and not finding.at_end.rows:
            continue
        say(console)
        say(console, f"Allocator of device {finding.device}", style="bold")
        for sentence in finding.agreement:
            say(console, sentence, indent=2)
        _print_reserved(finding, console)
        moment = finding.at_peak or finding.at_end
        _print_holders(moment.holders, console, top)
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


def _print_holders(holders: Sequence[SegmentHolder], console: Console, top: int) -> None:
    if not holders:
        return
    heads = (*columns("bytes", "would be free", "held"), *columns("count", "segments", "blocks"))
    rows = tuple(
        (
            *(holder.free_bytes, holder.held_bytes, holder.num_segments, holder.num_blocks),
            "; ".join(map(place, holder.sites)) or "more than three lines in each segment",
        )
        for holder in holders
    )
    title = "What keeps free memory in its segments"
    print_table(Table(title, (*heads, *columns("text", "by blocks of")), rows), console, top=top)


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
        served = [_served(row, what_if.num_failed)] if what_if.num_failed else []
        fits = [_fits(row, what_if), "" if row.smallest_gpu_bytes is None else row.smallest_gpu_bytes] if on_gpu else []
        name = "as recorded" if row.settings == AS_RECORDED else row.settings
        sizes = (outcome.reserved_peak_bytes, _saved(row), outcome.num_driver_calls)
        rows.append((*sizes, *limited, *served, *fits, name))
    print_table(Table("Reserved peak of the same requests under other settings", heads, tuple(rows)), console)
    say(console)
    for sentence in _explanations(what_if, modelled):
        say(console, sentence, indent=2)


def _saved(row: SettingsOutcome) -> Cell:
    return "" if row.settings == AS_RECORDED or row.outcome.failure is not None else row.saved_bytes


def _served(row: SettingsOutcome, num_failed: int) -> str:
    if row.outcome.failure is not None:
        return "fails earlier"
    return f"{num_failed - len(row.outcome.unserved):,} of {num_failed:,} served"


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
    """What every replay had, and how far the recorded settings give another peak than the recorded one."""
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
