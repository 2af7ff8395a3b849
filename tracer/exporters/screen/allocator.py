"""Findings of the caching allocator's model, as text on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from tracer.analysis.snapshots.allocator_finding import AllocatorFinding
from tracer.analysis.snapshots.first_changes import FirstChanges
from tracer.analysis.snapshots.modelled import Modelled
from tracer.analysis.snapshots.reserved import Reserved, SegmentHolder
from tracer.analysis.snapshots.what_if import AS_RECORDED, SettingsOutcome, WhatIf, where_it_fails
from tracer.exporters.screen.paths import shorten_paths
from tracer.exporters.screen.snapshot import place
from tracer.exporters.screen.text import print_rows, print_table, say, table
from tracer.units import format_bytes, some


def print_allocator(findings: Sequence[AllocatorFinding], console: Console, *, top: int = 10) -> None:
    """Print, for each device, how far the model agrees, why so much is reserved, and what was asked about settings."""
    for finding in findings:
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
    columns = [{(row.pool, row.stream, row.reason): row.bytes for row in moment.rows} for moment in moments]
    if not any(columns):
        return
    names = ("most reserved", "at the end")[-len(moments) :]
    grid = table(*(part for name in names for part in (name, "")))
    grid.add_column("pool")
    grid.add_column("why", overflow="fold")
    for key in dict.fromkeys(key for column in columns for key in column):
        pool, stream, reason = key
        cells = [_with_share(column.get(key, 0), moment) for column, moment in zip(columns, moments, strict=True)]
        name = pool if stream == 0 else f"{pool}, stream {stream:#x}"
        grid.add_row(*(part for cell in cells for part in cell), name, reason)
    sums = [_with_share(sum(column.values()), moment) for column, moment in zip(columns, moments, strict=True)]
    grid.add_row(*(part for cell in sums for part in cell), "", "reserved", style="bold")
    print_table("Why so much is reserved", grid, console)


def _with_share(size: int, moment: Reserved) -> tuple[str, str]:
    return format_bytes(size), f"{100 * size / moment.bytes:.1f} %" if moment.bytes else ""


def _print_holders(holders: Sequence[SegmentHolder], console: Console, top: int) -> None:
    if not holders:
        return
    rows = []
    for holder in holders[:top]:
        where = "; ".join(map(place, holder.sites)) or "more than three lines in each segment"
        rows.append(_holders_row([holder], where))
    if rest := holders[top:]:
        rows.append(_holders_row(rest, f"{len(rest)} more"))
    columns = ("would be free", "held", "segments", "blocks")
    print_rows("What keeps free memory in its segments", columns, rows, console, words=("by blocks of",))


def _holders_row(holders: Sequence[SegmentHolder], words: str) -> tuple[str, ...]:
    sizes = (sum(h.free_bytes for h in holders), sum(h.held_bytes for h in holders))
    counts = (sum(h.num_segments for h in holders), sum(h.num_blocks for h in holders))
    return (*map(format_bytes, sizes), *(f"{number:,}" for number in counts), words)


def print_first_changes(first: FirstChanges, console: Console) -> None:
    """Print what to try first, or that nothing helps."""
    if not first.changes:
        say(console)
        say(console, first.nothing_helps, indent=2)
        return
    rows = []
    for change in first.changes:
        allocated = (change.allocated_before_bytes, change.allocated_bytes)
        sizes = (*allocated, change.reserved_before_bytes, change.reserved_bytes)
        served = [f"{change.num_served} of {first.num_failed}"] if first.num_failed else []
        where = f" ({place(change.site)})" if change.site is not None else ""
        rows.append((*map(format_bytes, sizes), *served, change.words + where))
    served_column = ["requests that then fit"] if first.num_failed else []
    columns = ("allocated", "with it", "reserved", "with it", *served_column)
    title = "What to try first: peaks of a replay as recorded, and with the change"
    print_rows(title, columns, rows, console, words=("change",))
    is_said = bool(first.much_is_saved) and not first.num_failed  # with the peak
    for sentence in first.sentences[is_said:]:
        say(console, shorten_paths(sentence), indent=2)


def _print_what_if(what_if: WhatIf, modelled: Modelled, console: Console) -> None:
    on_gpu = what_if.gpu_memory is not None
    grid = table("peak", "saved", "calls", *(["retries"] if what_if.capacity is not None else []))
    if what_if.num_failed:
        grid.add_column("failed requests", overflow="fold")
    if what_if.gpu_memory is not None:
        grid.add_column(f"on {format_bytes(what_if.gpu_memory)}", overflow="fold")
        grid.add_column("smallest", justify="right", no_wrap=True)
    grid.add_column("settings", overflow="fold", min_width=20)
    for row in what_if.rows:
        outcome = row.outcome
        sizes = [format_bytes(outcome.reserved_peak_bytes), _saved(row)]
        limited = [f"{outcome.num_retries:,}"] if what_if.capacity is not None else []
        limited += [_served(row, what_if.num_failed)] if what_if.num_failed else []
        fits = [_fits(row), "" if row.smallest_gpu_bytes is None else format_bytes(row.smallest_gpu_bytes)]
        name = "as recorded" if row.settings == AS_RECORDED else row.settings
        grid.add_row(*sizes, f"{outcome.num_driver_calls:,}", *limited, *(fits if on_gpu else []), Text(name))
    print_table("Reserved peak of the same requests under other settings", grid, console)
    say(console)
    for sentence in _explanations(what_if, modelled):
        say(console, sentence, indent=2)


def _saved(row: SettingsOutcome) -> str:
    if row.settings == AS_RECORDED or row.outcome.failure is not None:
        return ""
    return format_bytes(row.saved_bytes)


def _served(row: SettingsOutcome, num_failed: int) -> str:
    if row.outcome.failure is not None:
        return "fails earlier"
    return f"{num_failed - len(row.outcome.unserved):,} of {num_failed:,} served"


def _fits(row: SettingsOutcome) -> str:
    if row.on_gpu is None:
        return ""
    if row.on_gpu.failure is not None:
        return "out of memory"
    retries = row.on_gpu.num_retries
    return f"runs, {some(retries, 'retry')}" if retries else "runs"


def _explanations(what_if: WhatIf, modelled: Modelled) -> list[str]:
    sentences = _what_was_had(what_if)
    for row in what_if.rows:
        name = "As recorded" if row.settings == AS_RECORDED else row.settings
        failure = row.on_gpu.failure if row.on_gpu is not None else row.outcome.failure
        if failure is not None:
            where = where_it_fails(failure, modelled.history.num_entries)
            in_use = (
                f"{format_bytes(failure.allocated_bytes)} in use of {format_bytes(failure.reserved_bytes)} reserved"
            )
            sentences.append(f"{name}: a request for {format_bytes(failure.size)} fails {where}, with {in_use}.")
        sentences += [f"{name}: {remark}" for remark in row.remarks]
    if what_if.not_worth:
        others = some(len(what_if.not_worth), "other setting", "saves/save")
        sentences.append(f"{others} less than 1 %: {'; '.join(what_if.not_worth)}.")
    if len(what_if.rows) > 1:
        sentences.append(_advice(what_if))
    sentences.append(what_it_is_not(what_if))
    if what_if.gpu_memory is not None:
        sentences.append(_how_searched(what_if))
    return sentences


def _how_searched(what_if: WhatIf) -> str:
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
