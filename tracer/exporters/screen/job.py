"""A whole job on a terminal: ranks that are alike, the odd ones, and what the worst one has more."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tracer.analysis.snapshots.job import JobFinding, RankGroup, RankPeak
from tracer.exporters.screen.diff import print_peak_diffs
from tracer.exporters.screen.text import print_table, say, table
from tracer.units import format_bytes, some

_MAX_NAMED = 12


def print_job(finding: JobFinding, console: Console, *, top: int = 10) -> None:
    """Print what was found out about a job.

    Args:
        finding: What `explain_job` returned.
        console: Where to print; file names are never read as markup.
        top: Rows of the table of differences.
    """
    for line in _headlines(finding):
        say(console, line)
    if finding.groups:
        shown = table("peak", "reserved")
        for name in ("mostly", "ranks", ""):
            shown.add_column(name)
        for group in finding.groups:
            shown.add_row(*_row(group))
        print_table("Groups of equal ranks", shown, console)
    for recording in finding.unreadable:
        say(console, f"Not readable, {recording.name} ({recording.file}): {recording.problem}")
    if finding.difference is not None and finding.worst is not None and finding.typical is not None:
        print_peak_diffs(
            [finding.difference],
            console,
            before=f"typical: {finding.typical.name}",
            after=f"worst: {finding.worst.name}",
            top=top,
        )


def _headlines(finding: JobFinding) -> list[str]:
    lines = [f"{finding.num_ranks}, {some(len(finding.groups), 'group')} of equal ones."]
    if (worst := finding.worst) is not None:
        ran_out = f" It ran out of memory at {worst.out_of_memory}" if worst.out_of_memory else ""
        lines.append(f"Worst: {worst.name} with a peak of {format_bytes(worst.peak_bytes)} ({worst.file}).{ran_out}")
    odd = [rank for group in finding.groups if group.is_odd for rank in group.ranks]
    if odd:
        lines.append(f"Odd ones out: {rank_names(odd)}.")
    if finding.missing:
        lines.append(f"No recording of rank {', '.join(map(str, finding.missing[:_MAX_NAMED]))}.")
    return lines


def _row(group: RankGroup) -> tuple[str, str, str, str, str]:
    first = group.ranks[0]
    peaks = [rank.peak_bytes for rank in group.ranks]
    low, high = format_bytes(min(peaks)), format_bytes(max(peaks))
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in first.kinds[:2])
    return (
        low if low == high else f"{low} to {high}",
        format_bytes(max(rank.reserved_bytes for rank in group.ranks)),
        kinds,
        rank_names(group.ranks),
        ", ".join(group.words),
    )


def rank_names(ranks: Sequence[RankPeak]) -> str:
    """`0-36, 38-63`: numbers in ranges; files by name."""
    numbers = sorted(rank.rank for rank in ranks if rank.rank is not None)
    parts, at = [], 0
    while at < len(numbers):
        end = at
        while end + 1 < len(numbers) and numbers[end + 1] == numbers[end] + 1:
            end += 1
        parts.append(str(numbers[at]) if end == at else f"{numbers[at]}-{numbers[end]}")
        at = end + 1
    parts += [rank.file for rank in ranks if rank.rank is None]
    shown = ", ".join(parts[:_MAX_NAMED])
    return f"{shown} and {len(parts) - _MAX_NAMED} more" if len(parts) > _MAX_NAMED else shown
