"""The answer about a trace, on the screen and in JSON: memory as of a run, then times; of ranks, the slowest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console

from tracer.analysis.profiles.source_lines import PlaceInCode
from tracer.analysis.times.findings import TraceTimes, cause
from tracer.analysis.times.ranks import JobTimes, RankRow
from tracer.analysis.times.step_times import StepTimes
from tracer.capture.torch_names import step_words
from tracer.exporters.json_documents.header import json_header
from tracer.exporters.json_documents.peak import peak_document
from tracer.exporters.screen.paths import shorten_paths
from tracer.exporters.screen.run import print_results
from tracer.exporters.screen.text import print_table, say, say_wrapped
from tracer.exporters.tables import Cell, Place, Section, Table, columns
from tracer.results.trace_report import TraceReport
from tracer.units import NS_PER_US, ms, some

VERSION = 1
_MAX_STEPS = 12
_MAX_NAME = 60
_NS = re.compile(r"_ns$")


def print_trace(report: TraceReport, console: Console, *, top: int) -> None:
    """Print all of it."""
    say(console, report.file, style="bold")
    for note in (*report.notes, *report.missing):
        say(console, f"Note: {note}", style="yellow")
    if report.results is not None:
        print_results(report.results, console, top=top)
    if report.times is not None:
        print_times(report.times, console, top=top)


def print_times(times: TraceTimes, console: Console, *, top: int) -> None:
    """Print the cause, the steps, who launched what, and the kernels."""
    say_wrapped(console, f"Time on GPU {times.device}: {shorten_paths(cause(times))}", style="bold")
    if times.other_devices:
        others = ", ".join(map(str, times.other_devices))
        say(console, f"It worked more than the others in this trace: {others}.")
    if not top:
        return
    loading = _loading(times.total)
    if loading:
        say_wrapped(console, loading)
    print_table(_steps(times, _MAX_STEPS), console)
    for table in _work_tables(times, _MAX_NAME):
        print_table(table, console, top=top)


def time_section(times: TraceTimes) -> Section:
    """The same for a page."""
    loading = _loading(times.total)
    return Section(
        f"Time on GPU {times.device}", (loading,) if loading else (), (_steps(times, 50), *_work_tables(times))
    )


def _steps(times: TraceTimes, most: int) -> Table:
    title = "Where the time went, in ms; the first five columns of time sum to the last"
    if more := times.steps[most:]:
        title += f" ({some(len(more), 'more step')} in the sum)"
    steps = [(step_words(step.name), step) for step in times.steps[:most]]
    parts = ("computes", "collectives", "copies", "waits for host", "waits, launched", "step", "overlapped")
    rows = tuple((*_parts(step), name) for name, step in steps)
    footer = (*_parts(times.total), "all") if len(times.steps) > 1 else None
    return Table(title, (*columns("duration", *parts), *columns("text", "")), rows, footer)


def _parts(step: StepTimes) -> tuple[Cell, ...]:
    parts = (step.compute_ns, step.communication_ns, step.copies_ns, step.host_wait_ns, step.launched_wait_ns)
    return (*parts, step.wall_ns, step.overlapped_ns)


def _loading(total: StepTimes) -> str:
    """How long the program waited for batches, where a DataLoader gives them."""
    if not total.loading_ns:
        return ""
    share = 100 * total.loading_ns / total.wall_ns if total.wall_ns else 0.0
    return (
        f"Loading data: the host waits {_ms(total.loading_ns)} ms for batches, {share:.0f} % of the steps; for "
        f"{_ms(total.loading_wait_ns)} ms of that the GPU waits for the host."
    )


def _work_tables(times: TraceTimes, most_letters: int | None = None) -> Iterator[Table]:
    """Streams where there are several, work by who launched it, and the longest kernels.

    Args:
        most_letters: Of a kernel's name, which is one word that a terminal has no room for; None for all.
    """
    counts = columns("count", "kernels")
    if len(times.streams) > 1:
        rows = [(one.compute_ns, one.communication_ns, one.copies_ns, one.count, one.words) for one in times.streams]
        parts = columns("duration", "computes", "collectives", "copies")
        yield Table("Streams, in ms", (*parts, *counts, *columns("text", "stream")), tuple(rows))
    parts = columns("duration", "forward", "backward", "other", "waited for")
    yield Table(
        "Work on the GPU by who launched it, in ms, and how long the GPU waited for that",
        (*parts, *counts, *columns("text", "launched by", "module")),
        tuple(
            (row.forward_ns, row.backward_ns, row.other_ns, row.host_wait_ns, row.count, *_launched_by(row.launcher))
            for row in times.rows
        ),
        is_wide=True,
    )
    heads = (
        *columns("duration", "together"),
        *columns("duration", "longest", adds_up=False),
        *columns("count", "times"),
    )
    yield Table(
        "The longest kernels, in ms",
        (*heads, *columns("text", "kernel", "launched by", "module")),
        tuple(
            (one.total_ns, one.longest_ns, one.count, _cut(one.name, most_letters), *_launched_by(one.launcher))
            for one in times.kernels
        ),
        is_wide=True,
    )


def _cut(name: str, most_letters: int | None) -> str:
    return name if most_letters is None or len(name) <= most_letters else f"{name[: most_letters - 3]}..."


def _launched_by(launcher: PlaceInCode) -> tuple[Place, str]:
    return Place(launcher.op or "no operator", launcher.file, launcher.line), launcher.module or ""


def _ms(duration_ns: float) -> str:
    return f"{ms(duration_ns):,.3f}"


_MAX_ROWS = 64


def print_trace_job(job: JobTimes, console: Console) -> None:
    """Print who is slowest, and a row for each rank."""
    say_wrapped(console, slowest_sentence(job), style="bold")
    for file, problem in job.problems:
        say(console, f"Not read, {file}: {problem}", style="yellow")
    print_table(_ranks_table(job), console, top=_MAX_ROWS)


def _ranks_table(job: JobTimes) -> Table:
    parts = ("step", "computes", "collectives", "waits for host", "waited", "waited for")
    heads = (
        *columns("bytes", "peak", adds_up=False),
        *columns("duration", *parts, adds_up=False),
        *columns("count", "came last", "rank", adds_up=False),
    )
    title = "Rank by rank, ms a step; waited: in collectives, for ranks that came later"
    rows = tuple((*_rank_numbers(row), row.times.rank, row.times.file) for row in job.rows)
    return Table(title, (*heads, *columns("text", "file")), rows)


def slowest_sentence(job: JobTimes) -> str:
    """A sentence or two on the rank that the others wait for."""
    ranks = some(len(job.rows), "rank")
    left = ""
    if job.num_left_out:
        kernels = some(job.num_left_out, "kernel", "is/are")
        left = f" {kernels} of collectives that not all ranks have, and not compared."
    if (row := job.slowest) is None:
        return f"{ranks}; in {some(job.num_compared, 'collective')} no rank waited for another.{left}"
    return (
        f"{ranks}: the others wait most for {row.times.name}, {ms(row.waited_for_ns):,.3f} ms together; it came last "
        f"in {row.num_last:,} of {some(job.num_compared, 'collective')}.{left}"
    )


def _rank_numbers(row: RankRow) -> tuple[Cell, ...]:
    times, num_steps = row.times, max(row.times.num_steps, 1)
    total = times.total
    parts = () if total is None else (total.wall_ns, total.compute_ns, total.communication_ns, total.host_wait_ns)
    waits = (row.waited_ns / num_steps, row.waited_for_ns / num_steps)
    a_step: tuple[Cell, ...] = tuple(part / num_steps for part in parts) or (None,) * 4
    return (times.peak_bytes, *a_step, *waits, row.num_last)


def trace_json(report: TraceReport) -> dict[str, Any]:
    """Return the JSON of a trace; docs/files.md describes it."""
    computed = False if report.is_of_null_gpu else None
    return {
        **json_header("trace", VERSION, computed=computed),
        "file": report.file,
        "rank": report.rank,
        "notes": list(report.notes),
        "missing": list(report.missing),
        "memory": _memory(report),
        "times": None if report.times is None else times_values(report.times),
    }


def _memory(report: TraceReport) -> dict[str, Any] | None:
    if report.results is None or report.results.findings is None:
        return None
    findings = report.results.findings
    recordings = [cycle.recording for cycle in findings.cycles]
    document = peak_document(findings.peaks, recordings=recordings, origin=report.results.origin)
    return document | {"torch": None}


def times_values(times: TraceTimes) -> dict[str, Any]:
    """Times of a device as JSON values."""
    return {
        "device": times.device,
        "cause": cause(times),
        "work_us": times.work_ns / NS_PER_US,
        "num_streams": len(times.streams),
        "streams": [_in_us(asdict(stream)) for stream in times.streams],
        "other_devices": list(times.other_devices),
        "total": _step(times.total),
        "steps": [_step(step) for step in times.steps],
        "launchers": [_in_us(asdict(row) | row.launcher._asdict()) for row in times.rows],
        "kernels": [_in_us(asdict(row) | row.launcher._asdict()) for row in times.kernels],
    }


def _step(step: StepTimes) -> dict[str, Any]:
    return _in_us(asdict(step))


def _in_us(values: dict[str, Any]) -> dict[str, Any]:
    """Nanoseconds as microseconds, by the names of the keys; the launcher's own keys stand beside them."""
    return {
        _NS.sub("_us", key): value / NS_PER_US if key.endswith("_ns") else value
        for key, value in values.items()
        if key != "launcher"
    }


def trace_job_json(job: JobTimes) -> dict[str, Any]:
    """Return the JSON of several ranks beside each other."""
    slowest = job.slowest
    return {
        **json_header("trace job", VERSION),
        "slowest": None if slowest is None else slowest.times.name,
        "compared_collectives": job.num_compared,
        "left_out_collectives": job.num_left_out,
        "ranks": [_rank(row) for row in job.rows],
        "unreadable": [{"file": file, "problem": problem} for file, problem in job.problems],
    }


def _rank(row: RankRow) -> dict[str, Any]:
    times = row.times
    return {
        "file": times.file,
        "rank": times.rank,
        "device": times.device,
        "peak_bytes": times.peak_bytes,
        "steps": times.num_steps,
        "total": None if times.total is None else _step(times.total),
        "waited_us": row.waited_ns / NS_PER_US,
        "waited_for_us": row.waited_for_ns / NS_PER_US,
        "came_last": row.num_last,
    }
