"""A whole job on a terminal: ranks that are alike, the odd ones, and what the worst one has more.

Its page says the same sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tracer.analysis.peak_diff import PeakDiff
from tracer.analysis.snapshots.job import JobFinding, RankGroup, RankPeak
from tracer.exporters.screen.diff import print_peak_diffs
from tracer.exporters.screen.text import print_rows, say
from tracer.units import format_bytes, some

_MAX_NAMED = 12
_MOST_NAMED = 3


def print_job(finding: JobFinding, console: Console, *, top: int = 10) -> None:
    """Print what was found out about a job."""
    for line in (*alarm_sentences(finding), *answer_sentences(finding)):
        say(console, line)
    if finding.worst is not None:
        say(console, f"Recording of {finding.worst.name}: {finding.worst.file}")
    if finding.groups:
        rows, words = map(_row, finding.groups), ("mostly", "ranks", "")
        print_rows("Groups of equal ranks", ("peak", "reserved"), rows, console, words=words)
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


def alarm_sentences(finding: JobFinding) -> tuple[str, ...]:
    """A sentence on the ranks that ran out of memory, and one on why the worst of them did."""
    ran_out = [rank for rank in finding.ranks if rank.out_of_memory]
    if not ran_out or finding.worst is None:
        return ()
    who = f"Rank {rank_names(ran_out)}" if len(ran_out) == 1 and ran_out[0].rank is not None else rank_names(ran_out)
    many = who if len(ran_out) == 1 else f"{len(ran_out)} of {finding.num_ranks} ({rank_names(ran_out)})"
    which = "" if len(ran_out) == 1 else f"{finding.worst.name}, the worst of them: "
    return (f"{many} ran out of memory.", capitalized(f"{which}at {finding.worst.out_of_memory}"))


def answer_sentences(finding: JobFinding) -> tuple[str, ...]:
    """The largest peak, who is alike and who is not, what the worst has more, and what is missing."""
    worst, typical = finding.worst, finding.typical
    if worst is None or typical is None:
        return ("None of the recordings can be read.",)
    sentences = [f"The largest peak is {format_bytes(max(rank.peak_bytes for rank in finding.ranks))}."]
    if len(finding.ranks) > 1:
        of_all = f"Worst of {finding.num_ranks}"
        sentences[0] = f"{of_all}: {worst.name}, with a peak of {format_bytes(worst.peak_bytes)}."
        odd = [rank for group in finding.groups if group.is_odd for rank in group.ranks]
        alike = finding.groups[0].ranks
        same = "All" if len(alike) == len(finding.ranks) else f"{len(alike)} of them"
        sentences.append(
            f"{same} are alike, with a peak of {peak_span(alike)}.{f' Odd ones out: {rank_names(odd)}.' if odd else ''}"
        )
    if finding.difference is not None:
        sentences.append(_more(worst, typical, finding.difference))
    no = "none" if finding.unreadable else "no recording"
    lacking = [
        *([f"{some(len(finding.unreadable), 'recording')} cannot be read"] if finding.unreadable else []),
        *([f"there is {no} of rank {numbers_of(finding.missing)}"] if finding.missing else []),
    ]
    return (*sentences, *([f"{capitalized(', and '.join(lacking))}."] if lacking else []))


def _more(worst: RankPeak, typical: RankPeak, difference: PeakDiff) -> str:
    """By what the worst one differs, in bytes by kind, and where most of it was made."""
    kinds = difference.changes["kind"]
    parts = [f"{'+' if change.bytes > 0 else ''}{format_bytes(change.bytes)} {change.name[0]}" for change in kinds]
    most = max(difference.changes["stack"], key=lambda change: change.bytes, default=None)
    source = f", most of it made by {most.name[1]}" if most is not None and most.bytes > 0 and most.name[1:] else ""
    return f"Beside {typical.name}, {worst.name} has {', '.join(parts[:_MOST_NAMED])}{source}."


def peak_span(ranks: Sequence[RankPeak]) -> str:
    """The peak of ranks that are alike, or the smallest and the largest: `6.53 GiB to 6.55 GiB`."""
    low, high = (format_bytes(pick(rank.peak_bytes for rank in ranks)) for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def numbers_of(numbers: Sequence[int]) -> str:
    """Numbers of ranks in ranges: `4, 6-8`."""
    return rank_names([RankPeak("", number) for number in numbers])


def capitalized(text: str) -> str:
    """Return a text with a capital first letter; the rest stays, unlike with `str.capitalize`."""
    return text[:1].upper() + text[1:]


def _row(group: RankGroup) -> tuple[str, str, str, str, str]:
    first = group.ranks[0]
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in first.kinds[:2])
    return (
        peak_span(group.ranks),
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
