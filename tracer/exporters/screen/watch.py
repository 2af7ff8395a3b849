"""A watched run's answer in sentences and small tables, on stderr and in watch.txt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tracer.analysis.snapshots.groups import Group
from tracer.analysis.steps.step_findings import StepFindings
from tracer.capture.device.device_ledger import DeviceLedger
from tracer.capture.sources.source_line import SourceLine
from tracer.exporters.files import write_atomically
from tracer.exporters.screen.paths import short_path
from tracer.exporters.screen.snapshot import place
from tracer.exporters.screen.values import values_lines
from tracer.results.watch_report import HolderName, OutlivedMemory, WatchReport
from tracer.units import format_bytes, some

_MAX_GROUPS, _MAX_KEPT = 12, 5


def write_watch_text(report: WatchReport, path: Path) -> None:
    """Write watch.txt.

    Raises:
        OutputError: The file cannot be written.
    """
    write_atomically(path, "\n".join(watch_lines(report)) + "\n")


def short_watch_lines(report: WatchReport) -> tuple[str, ...]:
    """What happened, what is wrong, and who holds what: for a terminal."""
    caveat = (report.caveat,) if report.caveat else ()
    return (*caveat, *_headline(report), *_out_of_memory(report), *finding_lines(report), *_notes(report))


def watch_lines(report: WatchReport) -> tuple[str, ...]:
    """All of it."""
    return (
        *short_watch_lines(report),
        *_found_before(report),
        *_table_of_groups(report.groups),
        *(ledger_lines(report.ledger, report.device) if report.ledger is not None else ()),
        *_table_of_steps(report),
        *_list_of_events(report),
        *(("", *lines) if (lines := values_lines(report.values_read)) else ()),
    )


def _found_before(report: WatchReport) -> Iterator[str]:
    """What earlier reports of the run said, with the step after which they did: it is not true of the end any more."""
    for earlier in report.found_before:
        yield ""
        yield f"Found after step {earlier.event.step:,}, {earlier.event.what}"
        yield from _out_of_memory(earlier)
        yield from finding_lines(earlier)


def _headline(report: WatchReport) -> Iterator[str]:
    at = f"Step {report.event.step + 1:,}" if report.error else f"After step {report.event.step:,}"
    error = f": {report.error}" if report.error else ""
    yield f"{at}, {report.event.what}{error}{_behind(report.error_line)}"
    in_use = _in_use(report)
    if in_use:
        yield in_use


def _in_use(report: WatchReport) -> str:
    if report.allocated_bytes is None:
        resident = report.columns.resident_bytes[-1] if len(report.columns) else -1
        return f"Resident memory of the process: {format_bytes(int(resident))}." if resident >= 0 else ""
    of = f" of {format_bytes(report.limit_bytes)}" if report.limit_bytes is not None else ""
    sentence = f"In use on {report.device}: {format_bytes(report.allocated_bytes)}{of}"
    if report.reserved_bytes is not None:
        sentence += f", reserved {format_bytes(report.reserved_bytes)}"
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in list(report.by_kind().items())[:6])
    return f"{sentence}. By kind: {kinds}." if kinds else f"{sentence}."


def _out_of_memory(report: WatchReport) -> Iterator[str]:
    event = report.out_of_memory
    if event is not None:
        yield f"Out of memory at {place(event.site)}, asked for {format_bytes(event.asked_bytes)}: {event.advice}"


def finding_lines(report: WatchReport) -> Iterator[str]:
    """A sentence for each finding, with the line where one is known."""
    steps, unit = report.steps, "In-use memory" if report.allocated_bytes is not None else "Resident memory"
    if steps.growth is not None:
        yield _growth_sentence(steps, unit)
    yield from _kept_lines(report)
    yield from _other_sentences(report)


def _growth_sentence(steps: StepFindings, unit: str) -> str:
    growth = steps.growth
    assert growth is not None
    trend = growth.trend
    sentence = (
        f"{unit} grows by {format_bytes(trend.bytes_per_step)} a step (steps {trend.first_step:,} to "
        f"{trend.last_step:,})"
    )
    if growth.end_step is None or growth.limit_bytes is None:
        return f"{sentence}."
    return f"{sentence}; at this rate {format_bytes(growth.limit_bytes)} are full in step {growth.end_step:,}."


def _kept_lines(report: WatchReport) -> Iterator[str]:
    growing = [group for group in report.outlived if group.bytes_per_step > 0]
    for group in growing[:_MAX_KEPT]:
        yield f"  {format_bytes(group.bytes_per_step)} a step {_kept_words(group)}"
    staying = [group for group in report.outlived if group.bytes_per_step <= 0 and group.holders]
    for group in staying[: max(0, _MAX_KEPT - len(growing))]:
        yield f"  {_kept_words(group)[0].upper()}{_kept_words(group)[1:]}"


def _kept_words(group: OutlivedMemory) -> str:
    origin = f"made in {group.frame}{_behind(group.line)}" if group.frame else ""
    holders = " and ".join(holder_words(name) for name in group.holders[:2])
    parts = [f"kept: {format_bytes(group.bytes)} in {some(group.count, 'block')} of kind {group.what}"]
    parts += [origin] if origin else []
    parts += [f"held by {holders}"] if holders else []
    return ", ".join(parts) + "."


def holder_words(name: HolderName) -> str:
    """`trainer.history[...] -> graph of the tensor, train.py:81 (local variable of main(), train.py:12)`."""
    holder = name.holder
    line = f", {_short(name.graph_line)}" if name.graph_line is not None else ""
    also = "".join(f" and {path}" for path in holder.also)
    return f"{holder.path}{line}" + (f" ({holder.variable})" if holder.variable else "") + also


def _other_sentences(report: WatchReport) -> Iterator[str]:
    steps = report.steps
    if (evaluation := steps.evaluation) is not None:
        yield (
            f"Evaluation holds more than training: {format_bytes(evaluation.bytes)} by step {evaluation.step:,}, "
            f"training {format_bytes(evaluation.usual_bytes)} at most; without torch.no_grad() a forward keeps what "
            "backward would use."
        )
    if (first := steps.first_steps) is not None:
        if first.step == 1:
            yield (
                f"The first step held {format_bytes(first.bytes)}, later ones {format_bytes(first.usual_bytes)}: what "
                "is tried out or compiled once."
            )
        else:
            yield (
                f"Later steps hold {format_bytes(first.bytes)}, the first one {format_bytes(first.usual_bytes)}: "
                "optimizer state is made in the first step and stays."
            )
    if (pieces := steps.fragmenting) is not None:
        line = next((f", most of it kept by {place(group.site)}" for group in report.groups[:1]), "")
        yield (
            f"Reserved memory grows by {format_bytes(pieces.trend.bytes_per_step)} a step to "
            f"{format_bytes(pieces.trend.last_bytes)}, while no more than {format_bytes(pieces.in_use_bytes)} are in "
            f"use{line}: it is in pieces. expandable_segments:True avoids that."
        )
    if (host := steps.host_growth) is not None:
        yield (
            f"Host memory of the process grows by {format_bytes(host.bytes_per_step)} a step to "
            f"{format_bytes(host.last_bytes)}."
        )
    if steps.num_retries:
        yield f"The cache was emptied for a request {some(steps.num_retries, 'time')}: each one waits for the device."


def ledger_lines(ledger: DeviceLedger, device: str) -> Iterator[str]:
    """Lines on the whole device; the rows sum to what nvidia-smi shows as used."""
    yield ""
    yield f"The whole device ({device}): {format_bytes(ledger.used_bytes)} of {format_bytes(ledger.total_bytes)} used"
    rows = [(f"torch, {pool}", size) for pool, size in ledger.pools.items()]
    if ledger.context_bytes is not None:
        rows.append(("this process: context and libraries", ledger.context_bytes))
    if ledger.other_bytes is not None:
        rows.append((some(ledger.num_others, "other process").replace("processs", "processes"), ledger.other_bytes))
    knows_others = ledger.other_bytes is not None
    rest = (
        "the driver" if knows_others else "context, libraries and other processes (nvidia-ml-py would tell them apart)"
    )
    rows.append((rest, ledger.rest_bytes))
    for name, size in rows:
        yield f"  {format_bytes(size):>12}  {name}"
    if ledger.pinned_bytes is not None:
        used_bytes, held_bytes = ledger.pinned_bytes
        yield f"  beside it, pinned host memory: {format_bytes(used_bytes)} in use, {format_bytes(held_bytes)} held"
    if ledger.resident_bytes is not None:
        yield f"  beside it, resident host memory: {format_bytes(ledger.resident_bytes)}"


def _table_of_groups(groups: tuple[Group, ...]) -> Iterator[str]:
    if not groups:
        return
    yield ""
    yield "In use then, by line and kind"
    # Whether the ring still has the allocation says nothing about a block.
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for group in groups:
        size, count = sums.get((group.kind.words, place(group.site)), (0, 0))
        sums[group.kind.words, place(group.site)] = size + group.bytes, count + group.count
    rows = sorted(sums.items(), key=lambda item: -item[1][0])
    for (kind, where), (size, count) in rows[:_MAX_GROUPS]:
        yield f"  {format_bytes(size):>12} {count:>7,}  {kind:<16} {where}"
    if rest := rows[_MAX_GROUPS:]:
        size, count = (sum(sizes[at] for _, sizes in rest) for at in (0, 1))
        yield f"  {format_bytes(size):>12} {count:>7,}  {len(rest)} more"


def _table_of_steps(report: WatchReport) -> Iterator[str]:
    """Some twenty rows, evenly spread."""
    columns = report.columns
    if not len(columns):
        return
    yield ""
    if report.allocated_bytes is None:
        yield "     step      resident"
    else:
        yield "     step   in use at end  after forward  before optimizer       reserved"
    chosen = sorted({round(at * (len(columns) - 1) / 19) for at in range(20)})
    for row in chosen:
        values = [columns.end_bytes[row]]
        if report.allocated_bytes is not None:
            values += [columns.forward_bytes[row], columns.backward_bytes[row], columns.reserved_bytes[row]]
        words = ("-" if value < 0 else format_bytes(int(value)) for value in values)
        yield f"{int(columns.step[row]):>9,}  {'  '.join(f'{word:>14}' for word in words)}"


def _list_of_events(report: WatchReport) -> Iterator[str]:
    if len(report.events) > 1:
        yield ""
        yield "When this run was explained:"
        for event in report.events:
            yield f"  after step {event.step:,}: {event.what}"


def _notes(report: WatchReport) -> Iterator[str]:
    for note in report.notes:
        yield f"Note: {note}"


def _behind(line: SourceLine | None) -> str:
    return f" ({_short(line)})" if line is not None else ""


def _short(line: SourceLine) -> str:
    return f"{short_path(line.file)}:{line.line}"
