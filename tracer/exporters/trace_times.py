"""The answer about a trace, on the screen and in JSON: memory as of a run, then times; of ranks, the slowest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console

from tracer.analysis.profiles.source_lines import PlaceInCode
from tracer.analysis.times.findings import TraceTimes, cause
from tracer.analysis.times.ranks import JobTimes, RankRow
from tracer.analysis.times.step_times import KernelRow, StepTimes, WorkRow
from tracer.capture.torch_names import step_words
from tracer.exporters.json_documents.header import json_header
from tracer.exporters.json_documents.peak import peak_document
from tracer.exporters.screen.paths import short_path, source_place
from tracer.exporters.screen.run import print_results
from tracer.exporters.screen.text import print_rows, say, say_wrapped
from tracer.results.trace_report import TraceReport
from tracer.units import NS_PER_US, format_bytes, ms, some

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
    say_wrapped(console, f"Time on GPU {times.device}: {cause(times, file_name=short_path)}", style="bold")
    if times.other_devices:
        others = ", ".join(map(str, times.other_devices))
        say(console, f"It worked more than the others in this trace: {others}.")
    if not top:
        return
    shown = times.steps[:_MAX_STEPS]
    title = "Where the time went, in ms; the first five columns of time sum to the last"
    if len(times.steps) > len(shown):
        title += f" ({some(len(times.steps) - len(shown), 'more step')} in the sum)"
    total = [("all", times.total)] if len(times.steps) > 1 else []
    steps = [*((step_words(step.name), step) for step in shown), *total]
    columns = ("computes", "collectives", "copies", "waits for host", "waits, launched", "step", "overlapped")
    print_rows(title, (*columns, ""), [(*_step_cells(step), name) for name, step in steps], console)
    _print_loading(times.total, console)
    _print_streams(times, console)
    _print_work(times, console, top)
    _print_kernels(times.kernels, console, top)


def _step_cells(step: StepTimes) -> Iterable[str]:
    parts = (step.compute_ns, step.communication_ns, step.copies_ns, step.host_wait_ns, step.launched_wait_ns)
    return (_ms(value) for value in (*parts, step.wall_ns, step.overlapped_ns))


def _print_loading(total: StepTimes, console: Console) -> None:
    """How long the program waited for batches, where a DataLoader gives them."""
    if not total.loading_ns:
        return
    share = 100 * total.loading_ns / total.wall_ns if total.wall_ns else 0.0
    say_wrapped(
        console,
        f"Loading data: the host waits {_ms(total.loading_ns)} ms for batches, {share:.0f} % of the steps; for "
        f"{_ms(total.loading_wait_ns)} ms of that the GPU waits for the host.",
    )


def _print_streams(times: TraceTimes, console: Console) -> None:
    if len(times.streams) < 2:
        return
    rows = [
        (_ms(stream.compute_ns), _ms(stream.communication_ns), _ms(stream.copies_ns), f"{stream.count:,}", stream.words)
        for stream in times.streams
    ]
    print_rows("Streams, in ms", ("computes", "collectives", "copies", "kernels", ""), rows, console)


def _print_work(times: TraceTimes, console: Console, top: int) -> None:
    def cells(row: WorkRow) -> tuple[str, ...]:
        return (_ms(row.forward_ns), _ms(row.backward_ns), _ms(row.other_ns), _ms(row.host_wait_ns), f"{row.count:,}")

    lines = [(cells(row), _launcher(row.launcher)) for row in times.rows[:top]]
    if rest := times.rows[top:]:
        sums = [sum(values) for values in zip(*(_numbers(row) for row in rest), strict=True)]
        lines.append(((*map(_ms, sums[:4]), f"{sums[4]:,}"), f"{len(rest):,} more"))
    title = "Work on the GPU by who launched it, in ms, and how long the GPU waited for that"
    columns = ("forward", "backward", "other", "waited for", "kernels")
    print_rows(title, columns, [(*numbers, words) for numbers, words in lines], console, words=("launched by",))


def _numbers(row: WorkRow) -> tuple[int, ...]:
    return row.forward_ns, row.backward_ns, row.other_ns, row.host_wait_ns, row.count


def _print_kernels(kernels: tuple[KernelRow, ...], console: Console, top: int) -> None:
    rows = []
    for kernel in kernels[:top]:
        name = kernel.name if len(kernel.name) <= _MAX_NAME else f"{kernel.name[: _MAX_NAME - 3]}..."
        words = f"{name}\n  {_launcher(kernel.launcher)}"
        rows.append((_ms(kernel.total_ns), _ms(kernel.longest_ns), f"{kernel.count:,}", words))
    print_rows("The longest kernels", ("ms", "longest", "times"), rows, console, words=("kernel",))


def _launcher(launcher: PlaceInCode) -> str:
    if launcher.op is None:
        return "(no operator)"
    place = source_place(launcher.file, launcher.line) if launcher.file else ""
    return " ".join(part for part in (launcher.op, launcher.module or "", place) if part)


def _ms(duration_ns: int) -> str:
    return f"{ms(duration_ns):,.3f}"


_MAX_ROWS = 64


def print_trace_job(job: JobTimes, console: Console) -> None:
    """Print who is slowest, and a row for each rank."""
    say_wrapped(console, slowest_sentence(job), style="bold")
    for file, problem in job.problems:
        say(console, f"Not read, {file}: {problem}", style="yellow")
    columns = ("peak", "step, ms", "computes", "collectives", "waits for host", "waited", "waited for", "came last")
    rows = [
        (*_rank_numbers(row), "-" if row.times.rank is None else str(row.times.rank), row.times.file)
        for row in job.rows[:_MAX_ROWS]
    ]
    title = "Rank by rank, ms a step; waited: in collectives, for ranks that came later"
    if len(job.rows) > _MAX_ROWS:
        title += f" (the first {_MAX_ROWS} of {len(job.rows):,})"
    print_rows(title, columns, rows, console, words=("rank", "file"))


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


def _rank_numbers(row: RankRow) -> tuple[str, ...]:
    times, num_steps = row.times, max(row.times.num_steps, 1)
    total = times.total
    peak = "-" if times.peak_bytes is None else format_bytes(times.peak_bytes)
    parts = () if total is None else (total.wall_ns, total.compute_ns, total.communication_ns, total.host_wait_ns)
    cells = [f"{ms(part / num_steps):,.3f}" for part in parts] or ["-"] * 4
    waits = (row.waited_ns, row.waited_for_ns)
    return (peak, *cells, *(f"{ms(wait / num_steps):,.3f}" for wait in waits), f"{row.num_last:,}")


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
