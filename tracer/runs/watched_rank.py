"""A watched rank's figures for the summary of all ranks."""

from __future__ import annotations

from itertools import islice

from tracer.exporters.screen.watch import finding_lines
from tracer.results.watch_report import WatchReport
from tracer.runs.ranks import Rank, RankPeak


def peak_of_watched(rank: Rank, report: WatchReport, *, has_ended: bool) -> RankPeak:
    """What a watched rank has to say: its peak so far, what is in use now by kind, and what was found.

    Args:
        rank: This process's.
        report: The last one that it has written.
        has_ended: Whether its loop has ended.
    """
    columns = report.columns
    peaks = columns.peak_bytes if report.allocated_bytes is not None else columns.most_bytes
    peak_bytes = int(peaks.max(initial=-1))
    finding = " ".join(line.strip() for line in islice(finding_lines(report), 2))
    return RankPeak(
        index=rank.index,
        run=rank.run,
        device=report.device,
        peak_bytes=peak_bytes if peak_bytes >= 0 else None,
        categories=report.by_kind(),
        num_steps=report.event.step,
        failure=report.error,
        has_ended=has_ended,
        finding=finding,
    )
