"""A whole job as a page: a bar for each rank, groups of equal ones, what the worst has more, and pages of ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracer.analysis.kinds import LAYERS
from tracer.analysis.snapshots.job import JobFinding, RankPeak
from tracer.exporters.page.data import page_data
from tracer.exporters.page.html import write_prepared
from tracer.exporters.page.model import Page, PageRank
from tracer.exporters.screen.job import (
    alarm_sentences,
    answer_sentences,
    gpu_sentences,
    job_files,
    job_sections,
)
from tracer.exporters.tables import Cell, Section, Table, columns
from tracer.results.gpu_sums import GpuSum, recorded_sums

ALL_RANKS = "all ranks"


def write_job_page(
    finding: JobFinding,
    path: Path,
    *,
    single: Mapping[str, dict[str, Any]],
    run: Mapping[str, str | int | float],
    caveat: str = "",
    gpus: Sequence[GpuSum] | None = None,
) -> None:
    """Write the page of a job, in which a selector leads to single ranks.

    Args:
        gpus: What each GPU holds in all; by default as far as the recordings tell.
        single: Pages of single ranks by `RankPeak.name`, in the order in which to offer them.
    """
    page = replace(job_page(finding, single, run=run, gpus=gpus), caveat=caveat)
    write_prepared([page_data(page), *single.values()], path, selector="rank")


def ranks_to_show(finding: JobFinding, most: int) -> tuple[RankPeak, ...]:
    """Ranks that get a page of their own: the worst, a typical one, and the odd ones, group after group."""
    odd = [group.ranks for group in finding.groups if group.is_odd]
    in_turn = [ranks[turn] for turn in range(max(map(len, odd), default=0)) for ranks in odd if turn < len(ranks)]
    first = [rank for rank in (finding.worst, finding.typical) if rank is not None]
    chosen = list({rank.file: rank for rank in (*first, *in_turn) if rank.device is not None}.values())[:most]
    return tuple(sorted(chosen, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.file)))


def job_page(
    finding: JobFinding,
    single: Collection[str],
    *,
    run: Mapping[str, str | int | float],
    gpus: Sequence[GpuSum] | None = None,
) -> Page:
    """The content, without the pages of single ranks."""
    files = job_files(finding)
    gpus = recorded_sums(finding.ranks) if gpus is None else gpus
    return Page(
        title="Memory of several runs" if finding.are_runs else "Memory of a job",
        device="all runs" if finding.are_runs else ALL_RANKS,
        source="snapshot",
        subtitle=finding.num_ranks,
        answer=(*answer_sentences(finding), *gpu_sentences(gpus)),
        alarm=alarm_sentences(finding),
        ranks=_ranks(finding, single, files),
        run=run,
        sections=(
            *job_sections(finding, gpus, files),
            Section("Every run" if finding.are_runs else "Every rank", (), (_every(finding, files),)),
        ),
    )


# ----------------------------------------------------------------------------------------------------- bars and tables
def _ranks(finding: JobFinding, single: Collection[str], files: Mapping[str, str]) -> tuple[PageRank, ...]:
    """Every rank in its order, also those that are not there."""
    odd = {rank.file for group in finding.groups if group.is_odd for rank in group.ranks}
    alike = {rank.file: len(group.ranks) for group in finding.groups for rank in group.ranks}
    bars = [
        PageRank(
            name=rank.name,
            rank=rank.rank,
            state="readable",
            bytes=rank.peak_bytes,
            kinds=_layers(rank),
            is_odd=rank.file in odd,
            is_worst=rank is finding.worst,
            is_typical=rank is finding.typical,
            ran_out=bool(rank.out_of_memory),
            alike=alike[rank.file],
            file=files[rank.file],
            has_page=rank.name in single,
        )
        for rank in finding.ranks
    ]
    bars += [
        PageRank(recording.name, recording.rank, "unreadable", words=recording.problem, file=files[recording.file])
        for recording in finding.unreadable
    ]
    bars += [PageRank(f"rank {number}", number, "missing") for number in finding.missing]
    return tuple(sorted(bars, key=lambda bar: (bar.rank is None, bar.rank or 0, bar.file)))


def _layers(rank: RankPeak) -> dict[str, int]:
    """Bytes by category in the drawing's order, so that each category lies at the same place in every bar."""
    bytes_of = dict(rank.kinds)
    return {kind.name: bytes_of[kind.words] for kind in LAYERS if kind.words in bytes_of}


def _every(finding: JobFinding, files: Mapping[str, str]) -> Table:
    ordered = sorted(finding.ranks, key=lambda rank: -rank.peak_bytes)
    has_roles = any(rank.role.words for rank in ordered)

    def row(rank: RankPeak) -> tuple[Cell, ...]:
        part = (", ".join(rank.role.words),) if has_roles else ()
        return (rank.peak_bytes, rank.reserved_bytes, rank.entries, rank.name, *part, files[rank.file])

    sizes = (*columns("bytes", "peak", "reserved"), *columns("count", "entries"))
    names = columns("text", "run" if finding.are_runs else "rank", *(["part of the job"] if has_roles else []), "file")
    return Table("The largest peak first", (*sizes, *names), tuple(map(row, ordered)))
