"""A watched run's answer: sentences and small tables, on stderr and in watch.txt, and watch.json for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from tracer.answers.failure import without_gpu
from tracer.answers.history_sections import place, ran_out_at
from tracer.answers.paths import behind
from tracer.answers.rows import Row
from tracer.answers.tables import Table, columns
from tracer.answers.values_read import values_lines
from tracer.answers.watch_report import END_OF_RUN, Event, OutlivedMemory, WatchReport
from tracer.answers.watch_sentences import LET_GO, growth_lines, is_leak, kept_lines
from tracer.arrays import totals_by
from tracer.exporters.json_documents.header import json_header, record_values
from tracer.exporters.json_documents.snapshot import oom_values
from tracer.exporters.screen.text import table_lines
from tracer.units import format_bytes, some

_MAX_GROUPS = 12


def short_watch_lines(report: WatchReport) -> tuple[str, ...]:
    """Return the event, the problem and the holders of memory, for a terminal."""
    caveat = (report.caveat,) if report.caveat else ()
    last = report.found_before[-1:] if report.steps.growth is not None and not report.outlived else ()
    earlier = (line for before in last for line in (f"Found after step {before.event.step:,}:", *kept_lines(before)))
    return (
        *caveat,
        *_headline(report),
        *_findings(report, tuple(earlier)),
        *(f"Note: {note}" for note in report.notes),
    )


def _findings(report: WatchReport, earlier: tuple[str, ...] = ()) -> Iterator[str]:
    """Why memory ran out comes first where that is known; what is kept, before what any setting would change."""
    is_known = report.out_of_memory is not None and bool(report.out_of_memory.decisive)
    yield from _out_of_memory(report) if is_known else ()
    yield from growth_lines(report)
    yield from earlier
    yield from _out_of_memory(report) if not is_known else ()
    yield from _other_sentences(report)


def watch_lines(report: WatchReport) -> tuple[str, ...]:
    """Return the lines of watch.txt."""
    lines = [*short_watch_lines(report)]
    # Findings of earlier reports stand by themselves: they need not hold at the end.
    for earlier in report.found_before:
        lines += ["", f"Found after step {earlier.event.step:,}, {earlier.event.what}", *_findings(earlier)]
    lines += (*_table_of_groups(report.groups), *_table_of_steps(report))
    if len(report.events) > 1:
        events = (f"  after step {event.step:,}: {event.what}" for event in report.events)
        lines += ["", "When this run was explained:", *events]
    if values := values_lines(report.values_read):
        lines += ["", *values]
    return tuple(lines)


def _headline(report: WatchReport) -> Iterator[str]:
    at = f"Step {report.event.step + 1:,}" if report.error else f"After step {report.event.step:,}"
    error = f": {without_gpu(report.error)}" if report.error else ""
    yield f"{at}, {report.event.what}{error}{behind(report.error_line)}"
    if in_use := _in_use(report):
        yield in_use


def _in_use(report: WatchReport) -> str:
    """A sentence on the memory in use, or on the peak of a run that ended by itself, whose last step leaves little."""
    most_bytes = report.most_bytes if report.event.what == END_OF_RUN else 0
    if report.allocated_bytes is None:
        if most_bytes:
            return f"Most resident memory of the process at the end of a step: {format_bytes(most_bytes)}."
        resident = report.columns.resident_bytes[-1] if len(report.columns) else -1
        return f"Resident memory of the process: {format_bytes(int(resident))}." if resident >= 0 else ""
    allocated = format_bytes(report.allocated_bytes)
    of = f" of {format_bytes(report.limit_bytes)}" if report.limit_bytes is not None else ""
    reserved = f", reserved {format_bytes(report.reserved_bytes)}" if report.reserved_bytes is not None else ""
    if most_bytes:
        peak = f"Peak on {report.device}: {format_bytes(most_bytes)}{of} allocated"
        return f"{peak}; {allocated} at the end{reserved}."
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in list(report.by_kind().items())[:6])
    return f"In use on {report.device}: {allocated}{of}{reserved}." + (f" By kind: {kinds}." if kinds else "")


def _out_of_memory(report: WatchReport) -> Iterator[str]:
    event = report.out_of_memory
    if event is None:
        return
    advice = LET_GO if is_leak(report) else event.advice
    yield f"{ran_out_at(event.site)}, asked for {format_bytes(event.asked_bytes)}: {advice}"


def finding_lines(report: WatchReport) -> Iterator[str]:
    """A sentence for each finding, with the line where one is known."""
    yield from growth_lines(report)
    yield from _other_sentences(report)


def _other_sentences(report: WatchReport) -> Iterator[str]:
    steps = report.steps
    if (pieces := steps.fragmenting) is not None:
        line = next((f", most of it kept by {place(group.site)}" for group in report.groups[:1]), "")
        yield (
            f"Reserved memory grows by {format_bytes(pieces.trend.bytes_per_step)} a step to "
            f"{format_bytes(pieces.trend.last_bytes)}, while no more than {format_bytes(pieces.in_use_bytes)} are in "
            f"use{line}: the rest is free, in pieces between blocks in use. expandable_segments:True avoids that."
        )
    if steps.num_retries:
        yield f"The cache was emptied for a request {some(steps.num_retries, 'time')}: each one waits for the device."


def _table_of_groups(groups: tuple[Row, ...]) -> list[str]:
    if not groups:
        return []
    # Whether the ring still has the allocation says nothing about a block.
    sizes = totals_by(groups, lambda group: (group.kind.words, place(group.site)))
    rows = tuple((size, count, *names) for names, (size, count) in sizes.items())
    heads = (*columns("bytes", "bytes"), *columns("count", "blocks"), *columns("label", "kind"))
    table = Table("In use then, by line and kind", (*heads, *columns("text", "made by")), rows)
    return table_lines(table, top=_MAX_GROUPS)


def _table_of_steps(report: WatchReport) -> list[str]:
    """Some twenty rows, evenly spread."""
    columns_of = report.columns
    if not len(columns_of):
        return []
    names = {"end_bytes": "in use at end" if report.allocated_bytes is not None else "resident"}
    if report.allocated_bytes is not None:
        names |= {"peak_bytes": "peak so far", "reserved_bytes": "reserved"}
    chosen = sorted({round(at * (len(columns_of) - 1) / 19) for at in range(20)})
    values = [[None if size < 0 else size for size in getattr(columns_of, name)[chosen].tolist()] for name in names]
    rows = tuple(zip(columns_of.step[chosen].tolist(), *values, strict=True))
    return table_lines(Table("", (*columns("count", "step"), *columns("bytes", *names.values())), rows))


VERSION = 1
_OOM_KEYS = ("asked_bytes", "device_free_bytes", "cause", "decisive", "advice", "frame", "file", "line")


def watch_values(report: WatchReport) -> dict[str, Any]:
    """Return the document of a report; docs/files.md describes its keys."""
    return {
        **json_header("watch", VERSION, torch=torch.__version__, computed=not report.caveat),
        "device": report.device,
        "event": _event(report.event, report),
        "events": [_event(event, report) for event in report.events],
        "error": report.error or None,
        "error_file": report.error_line.file if report.error_line is not None else None,
        "error_line": report.error_line.line if report.error_line is not None else None,
        "limit_bytes": report.limit_bytes,
        "allocated_bytes": report.allocated_bytes,
        "reserved_bytes": report.reserved_bytes,
        **_finding_values(report),
        "found_before": [
            {"event": _event(earlier.event, report), **_finding_values(earlier)} for earlier in report.found_before
        ],
        "by_kind": report.by_kind(),
        "in_use": [record_values(group, without=("is_before_recording", "stack")) for group in report.groups],
        "notes": list(report.notes),
        "values_read": None if report.values_read is None else asdict(report.values_read),
        "settings": {name: str(value) for name, value in report.settings.items()},
        "steps": {
            name: getattr(report.columns, name).tolist()
            for name in report.columns.__slots__
            if name != "time_ns" or not report.caveat
        },
    }


def _finding_values(report: WatchReport) -> dict[str, Any]:
    failed = None if report.out_of_memory is None else oom_values(report.out_of_memory)
    return {
        "findings": asdict(report.steps),
        "out_of_memory": None if failed is None else {name: failed[name] for name in _OOM_KEYS},
        "kept": [_outlived(group) for group in report.outlived],
    }


def _event(event: Event, report: WatchReport) -> dict[str, Any]:
    return asdict(event) | ({"time_ns": None} if report.caveat else {})


def _outlived(group: OutlivedMemory) -> dict[str, Any]:
    return {
        "what": group.what,
        "frame": group.frame or None,
        "file": group.line.file if group.line is not None else None,
        "line": group.line.line if group.line is not None else None,
        "bytes": group.bytes,
        "count": group.count,
        "bytes_per_step": group.bytes_per_step,
        "holders": [
            {
                "path": name.holder.path,
                "variable": name.holder.variable,
                "also": list(name.holder.also),
                "num_looked_at": len(name.holder.addresses),
                "graph_file": name.graph_line.file if name.graph_line is not None else None,
                "graph_line": name.graph_line.line if name.graph_line is not None else None,
            }
            for name in group.holders
        ],
    }
