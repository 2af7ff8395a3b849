"""A whole job as a page: a bar for each rank, groups of equal ones, what the worst has more, and pages of ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracer.analysis.peak_diff import PeakDiff
from tracer.analysis.snapshots.categories import CATEGORY_OF_KIND
from tracer.analysis.snapshots.job import JobFinding, RankGroup, RankPeak
from tracer.exporters.page.data import page_data
from tracer.exporters.page.diff_page import changes_tables
from tracer.exporters.page.html import write_prepared
from tracer.exporters.page.model import Cell, KindBytes, Page, PageRank, Section, Table
from tracer.exporters.screen.job import rank_names
from tracer.units import format_bytes, some

ALL_RANKS = "all ranks"
_MOST_NAMED = 3


def write_job_page(
    finding: JobFinding, path: Path, *, single: Mapping[str, dict[str, Any]], run: Mapping[str, str | int | float]
) -> None:
    """Write the page of a job, in which a selector leads to single ranks.

    Args:
        finding: What `explain_job` returned; at least one rank can be read.
        path: Where to; a file that is there is replaced.
        single: Pages of single ranks by `RankPeak.name`, in the order in which to offer them.
        run: What to say of the recordings, by name.

    Raises:
        OutputError: The file cannot be written.
    """
    page = job_page(finding, single, run=run)
    write_prepared([page_data(page), *single.values()], path, selector="rank")


def worth_a_page(finding: JobFinding, most: int) -> tuple[RankPeak, ...]:
    """The ranks that a reader wants to look into: the worst, a typical one, and the odd ones, group after group."""
    odd = [group.ranks for group in finding.groups if group.is_odd]
    in_turn = [ranks[turn] for turn in range(max(map(len, odd), default=0)) for ranks in odd if turn < len(ranks)]
    first = [one for one in (finding.worst, finding.typical) if one is not None]
    chosen = list({one.file: one for one in (*first, *in_turn) if one.device is not None}.values())[:most]
    return tuple(sorted(chosen, key=lambda one: (one.rank is None, one.rank or 0, one.file)))


def job_page(finding: JobFinding, single: Collection[str], *, run: Mapping[str, str | int | float]) -> Page:
    """The content, without the pages of single ranks."""
    total = len(finding.ranks) + len(finding.unreadable)
    return Page(
        title="Memory of a job",
        device=ALL_RANKS,
        source="snapshot",
        subtitle=some(total, "rank"),
        answer=_answer(finding),
        alarm=_alarm(finding),
        ranks=_ranks(finding, single),
        run=run,
        sections=(
            Section("Groups of equal ranks", (), (_groups(finding.groups),)),
            *(() if finding.difference is None else (_difference(finding, finding.difference),)),
            *_not_there(finding),
            Section("Every rank", (), (_every(finding),)),
        ),
    )


# --------------------------------------------------------------------------------------------------------------- words
def _alarm(finding: JobFinding) -> tuple[str, ...]:
    """Which ranks ran out of memory, and why the worst of them did."""
    ran_out = [one for one in finding.ranks if one.out_of_memory]
    if not ran_out or finding.worst is None:
        return ()
    who = f"Rank {rank_names(ran_out)}" if len(ran_out) == 1 and ran_out[0].rank is not None else rank_names(ran_out)
    many = who if len(ran_out) == 1 else f"{len(ran_out)} of {some(len(finding.ranks), 'rank')} ({rank_names(ran_out)})"
    which = "" if len(ran_out) == 1 else f"{finding.worst.name}, the worst of them: "
    return (f"{many} ran out of memory.", _sentence(f"{which}at {finding.worst.out_of_memory}"))


def _answer(finding: JobFinding) -> tuple[str, ...]:
    """The largest peak, who is alike and who is not, what the worst has more, and what is missing."""
    worst, typical = finding.worst, finding.typical
    if worst is None or typical is None:
        return ("None of the recordings can be read.",)
    sentences = [f"The largest peak is {format_bytes(max(one.peak_bytes for one in finding.ranks))}."]
    if len(finding.ranks) > 1:
        of_all = f"Worst of {some(len(finding.ranks), 'rank')}"
        sentences[0] = f"{of_all}: {worst.name}, with a peak of {format_bytes(worst.peak_bytes)}."
        odd = [one for group in finding.groups if group.is_odd for one in group.ranks]
        alike = finding.groups[0].ranks
        same = "All" if len(alike) == len(finding.ranks) else f"{len(alike)} of them"
        sentences.append(
            f"{same} are alike, with a peak of {_span(alike)}.{f' Odd ones out: {rank_names(odd)}.' if odd else ''}"
        )
    if finding.difference is not None:
        sentences.append(_more(worst, typical, finding.difference))
    lacking = [
        *([f"{some(len(finding.unreadable), 'recording')} cannot be read"] if finding.unreadable else []),
        *([f"there is none of rank {_numbers(finding.missing)}"] if finding.missing else []),
    ]
    return (*sentences, *([f"{_sentence(', and '.join(lacking))}."] if lacking else []))


def _more(worst: RankPeak, typical: RankPeak, difference: PeakDiff) -> str:
    """By what the worst one differs, in bytes by kind, and where most of it was made."""
    kinds = difference.changes["kind"]
    parts = [f"{'+' if one.bytes > 0 else ''}{format_bytes(one.bytes)} {one.name[0]}" for one in kinds]
    most = max(difference.changes["stack"], key=lambda one: one.bytes, default=None)
    made = f", most of it made by {most.name[1]}" if most is not None and most.bytes > 0 and most.name[1:] else ""
    return f"Beside {typical.name}, {worst.name} has {', '.join(parts[:_MOST_NAMED])}{made}."


def _span(ranks: Sequence[RankPeak]) -> str:
    low, high = (format_bytes(pick(one.peak_bytes for one in ranks)) for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _numbers(numbers: Sequence[int]) -> str:
    return rank_names([RankPeak("", number) for number in numbers])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


# ----------------------------------------------------------------------------------------------------- bars and tables
def _ranks(finding: JobFinding, single: Collection[str]) -> tuple[PageRank, ...]:
    """Every rank in its order, also those that are not there."""
    odd = {one.file for group in finding.groups if group.is_odd for one in group.ranks}
    alike = {one.file: len(group.ranks) for group in finding.groups for one in group.ranks}
    bars = [
        PageRank(
            name=one.name,
            rank=one.rank,
            state="readable",
            bytes=one.peak_bytes,
            kinds=_layers(one),
            is_odd=one.file in odd,
            ran_out=bool(one.out_of_memory),
            alike=alike[one.file],
            file=one.file,
            has_page=one.name in single,
        )
        for one in finding.ranks
    ]
    bars += [PageRank(one.name, one.rank, "unreadable", words=one.problem, file=one.file) for one in finding.unreadable]
    bars += [PageRank(f"rank {number}", number, "missing") for number in finding.missing]
    return tuple(sorted(bars, key=lambda one: (one.rank is None, one.rank or 0, one.file)))


def _layers(rank: RankPeak) -> tuple[KindBytes, ...]:
    """In the order of the drawing's layers, so that the same lies at the same place in every bar."""
    found = dict(rank.kinds)
    return tuple(KindBytes(name, found[kind]) for kind, name in CATEGORY_OF_KIND.items() if kind in found)


def _groups(groups: Sequence[RankGroup]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        first = group.ranks[0]
        kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in first.kinds[:_MOST_NAMED])
        reserved = max(one.reserved_bytes for one in group.ranks)
        count = f"{len(group.ranks):,}"
        rows.append((_span(group.ranks), reserved, count, rank_names(group.ranks), kinds, ", ".join(group.words)))
    return Table(
        "Ranks whose kinds differ by less than 2 %", ("peak", "reserved", "ranks", "which", "mostly", ""), tuple(rows)
    )


def _difference(finding: JobFinding, difference: PeakDiff) -> Section:
    assert finding.worst is not None and finding.typical is not None
    worst, typical = finding.worst.name, finding.typical.name
    return Section(f"{_sentence(worst)} beside {typical}", (), changes_tables(difference, before=typical, after=worst))


def _not_there(finding: JobFinding) -> tuple[Section, ...]:
    if not finding.unreadable and not finding.missing:
        return ()
    sentence = f"There is no recording of rank {_numbers(finding.missing)}." if finding.missing else ""
    rows = tuple((one.name, one.file, one.problem) for one in finding.unreadable)
    tables = (Table("Not readable", ("rank", "file", "why"), rows),) if rows else ()
    return (Section("What is not there", (sentence,) if sentence else (), tables),)


def _every(finding: JobFinding) -> Table:
    ordered = sorted(finding.ranks, key=lambda one: -one.peak_bytes)
    has_roles = any(one.role.words for one in ordered)

    def row(one: RankPeak) -> tuple[Cell, ...]:
        part = (", ".join(one.role.words),) if has_roles else ()
        return (one.peak_bytes, one.reserved_bytes, one.name, *part, f"{one.entries:,}", one.file)

    columns = ("peak", "reserved", "rank", *(("part of the job",) if has_roles else ()), "entries", "file")
    return Table("The largest peak first", columns, tuple(map(row, ordered)))
