"""Traces of several ranks beside each other, on a console."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from tracer.analysis.times.ranks import JobTimes, RankRow
from tracer.exporters.screen.text import print_table, say, say_wrapped, table
from tracer.units import format_bytes, ms, some

_MAX_ROWS = 64


def print_trace_job(job: JobTimes, console: Console) -> None:
    """Print who is slowest, and a row for each rank.

    Args:
        job: What `compare_ranks` returned.
    """
    say_wrapped(console, slowest_sentence(job), style="bold")
    for file, problem in job.problems:
        say(console, f"Not read, {file}: {problem}", style="yellow")
    shown = table("peak", "step, ms", "computes", "collectives", "waits for host", "waited", "waited for", "came last")
    for name in ("rank", "file"):
        shown.add_column(name)
    for row in job.rows[:_MAX_ROWS]:
        rank = row.times.rank
        shown.add_row(*_numbers(row), "-" if rank is None else str(rank), Text(row.times.file))
    title = "Rank by rank, ms a step; waited: in collectives, for ranks that came later"
    if len(job.rows) > _MAX_ROWS:
        title += f" (the first {_MAX_ROWS} of {len(job.rows):,})"
    print_table(title, shown, console)


def slowest_sentence(job: JobTimes) -> str:
    """A sentence or two on the rank that the others wait for."""
    ranks = some(len(job.rows), "rank")
    left = ""
    if job.num_left_out:
        kernels = some(job.num_left_out, "kernel", "is/are")
        left = f" {kernels} of collectives that not all ranks have, and not compared."
    if (row := job.slowest) is None:
        return f"{ranks}; in {some(job.num_compared, 'collective')} nobody waited for another.{left}"
    return (
        f"{ranks}: the others wait most for {row.times.name}, {ms(row.waited_for_ns):,.3f} ms together; it came last "
        f"in {row.num_last:,} of {some(job.num_compared, 'collective')}.{left}"
    )


def _numbers(row: RankRow) -> tuple[str, ...]:
    times, num_steps = row.times, max(row.times.num_steps, 1)
    total = times.total
    peak = "-" if times.peak_bytes is None else format_bytes(times.peak_bytes)
    parts = () if total is None else (total.wall_ns, total.compute_ns, total.communication_ns, total.host_wait_ns)
    cells = [f"{ms(part / num_steps):,.3f}" for part in parts] or ["-"] * 4
    waits = (row.waited_ns, row.waited_for_ns)
    return (peak, *cells, *(f"{ms(wait / num_steps):,.3f}" for wait in waits), f"{row.num_last:,}")
