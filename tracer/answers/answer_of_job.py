"""The answer of a whole job: ranks that are alike, and the odd ones."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from os.path import commonpath, relpath
from pathlib import Path

from tracer.answers.answer import Answer
from tracer.answers.failure import without_gpu
from tracer.answers.jobs import GpuSum, Holding, NullJob, RankRun, fullest, recorded_sums
from tracer.answers.paths import behind
from tracer.answers.ranks import JobFinding, RankPeak
from tracer.answers.tables import Cell, Section, Table, columns
from tracer.blocks.kinds import words_of
from tracer.units import format_bytes, format_range, some

_MAX_NAMED = 12
_MOST_NAMED = 3


def answer_of_job(finding: JobFinding) -> Answer:
    """Return what was found out about recordings of a job."""
    sums, alarm = recorded_sums(finding.ranks), alarm_sentences(finding)
    recording = () if finding.worst is None else (f"Recording of {finding.worst.name}: {finding.worst.file}",)
    sections = tuple(job_sections(finding, sums))
    return Answer(
        happened=(*alarm, *answer_sentences(finding), *gpu_sentences(sums), *recording),
        in_use=tuple(table for section in sections for table in section.tables),
        sections=sections,
        is_alarming=bool(alarm),
    )


def job_sections(finding: JobFinding, gpus: Sequence[GpuSum]) -> Iterator[Section]:
    """Yield the ranks, equal ones together, memory on other ranks' GPUs, and what cannot be read."""
    if finding.groups:
        yield Section("Runs" if finding.are_runs else "Groups of equal ranks", (), (_ranks_table(finding),))
    if any(gpu.guests for gpu in gpus):
        heads = (*columns("bytes", "bytes"), *columns("text", "GPU", "process", ""))
        rows = tuple(
            (holding.bytes, f"GPU {gpu.index} of node {gpu.node}", f"rank {holding.rank:,}", _whose(holding))
            for gpu in gpus
            for holding in gpu.holdings
        )
        table = Table("Each process at its most, with CUDA's context", heads, rows)
        yield Section("What each GPU holds in all", (), (table,))
    if finding.unreadable or finding.missing:
        sentence = f"There is no recording of rank {_numbers_of(finding.missing)}."
        lost = tuple((recording.name, recording.file, recording.problem) for recording in finding.unreadable)
        heads = columns("text", "run" if finding.are_runs else "rank", "file", "why")
        tables = (Table("Not readable", heads, lost),) if lost else ()
        yield Section("What is not there", (sentence,) if finding.missing else (), tables)


def _whose(holding: Holding) -> str:
    place = "its own GPU" if holding.is_own else f"another rank's GPU{behind(holding.line)}"
    return f"{place}, as the nearest rank that ran" if holding.is_assumed else place


def alarm_sentences(finding: JobFinding) -> tuple[str, ...]:
    """A sentence on the ranks that ran out of memory, and one on why the worst of them did."""
    ran_out = [rank for rank in finding.ranks if rank.out_of_memory]
    if not ran_out or finding.worst is None:
        return ()
    who = f"Rank {_rank_names(ran_out)}" if len(ran_out) == 1 and ran_out[0].rank is not None else _rank_names(ran_out)
    many = who if len(ran_out) == 1 else f"{len(ran_out)} of {finding.num_ranks} ({_rank_names(ran_out)})"
    which = "" if len(ran_out) == 1 else f"{finding.worst.name}, the worst of them: "
    return (f"{many} ran out of memory.", _capitalized(f"{which}at {finding.worst.out_of_memory}"))


def answer_sentences(finding: JobFinding) -> tuple[str, ...]:
    """The largest peak, who is alike and who is not, and what is missing."""
    if (worst := finding.worst) is None:
        return ("None of the recordings can be read.",)
    sentences = [f"The largest peak is {format_bytes(max(rank.peak_bytes for rank in finding.ranks))}."]
    if len(finding.ranks) > 1:
        of_all = f"Worst of {finding.num_ranks}"
        if finding.are_runs:
            of_all = f"Largest peak of {finding.num_ranks}" if not worst.out_of_memory else of_all
        sentences[0] = f"{of_all}: {worst.name}, with a peak of {format_bytes(worst.peak_bytes)}."
    if len(finding.ranks) > 1 and not finding.are_runs:
        odd = [rank for group in finding.groups if group.is_odd for rank in group.ranks]
        alike = finding.groups[0].ranks
        same = "All" if len(alike) == len(finding.ranks) else f"{len(alike)} of them"
        are_alike = f"{same} are alike, with a peak of {_peak_span(alike)}." if len(alike) > 1 else "No two are alike."
        sentences.append(f"{are_alike}{f' Odd ones out: {_rank_names(odd)}.' if odd else ''}")
    no = "none" if finding.unreadable else "no recording"
    lacking = [
        *([f"{some(len(finding.unreadable), 'recording')} cannot be read"] if finding.unreadable else []),
        *([f"there is {no} of rank {_numbers_of(finding.missing)}"] if finding.missing else []),
    ]
    return (*sentences, *([f"{_capitalized(', and '.join(lacking))}."] if lacking else []))


def _peak_span(ranks: Sequence[RankPeak]) -> str:
    """The peak of ranks that are alike, or the smallest and the largest: `6.53 GiB to 6.55 GiB`."""
    return format_range(*(pick(rank.peak_bytes for rank in ranks) for pick in (min, max)))


def _numbers_of(numbers: Sequence[int]) -> str:
    """Numbers of ranks in ranges: `4, 6-8`."""
    return _rank_names([RankPeak("", number) for number in numbers])


def _capitalized(text: str) -> str:
    """Return a text with a capital first letter; the rest stays, unlike with `str.capitalize`."""
    return text[:1].upper() + text[1:]


def _ranks_table(finding: JobFinding) -> Table:
    """Ranks that are alike, a row for each group; of runs, whose names tell no rank, a row for each."""
    folder = commonpath([Path(rank.file).absolute().parent for rank in finding.ranks])
    rows: list[tuple[Cell, ...]] = []
    for group in finding.groups:
        first = group.ranks[0]
        sizes = (_peak_span(group.ranks), max(rank.reserved_bytes for rank in group.ranks) or "")
        kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in first.kinds[:_MOST_NAMED])
        who = (len(group.ranks), _rank_names(group.ranks))
        run = (Path(relpath(first.file, folder)).as_posix(),)
        rows.append((*sizes, *(run if finding.are_runs else who), kinds, ", ".join(group.words)))
    heads = columns("bytes", "peak", "reserved", adds_up=False)
    if finding.are_runs:
        title = "No name tells a rank: each recording is a run, by name"
        return Table(title, (*heads, *columns("text", "run", "mostly", "")), tuple(rows))
    title = "Groups of ranks whose kinds differ by less than 2 %"
    heads = (*heads, *columns("count", "ranks"), *columns("text", "which", "mostly", ""))
    return Table(title, heads, tuple(rows))


def _rank_names(ranks: Sequence[RankPeak]) -> str:
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


_NUM_DIFFERENCES = 3


def answer_of_null_job(job: NullJob) -> Answer:
    """Return what is said of a job below the answer of its first rank."""
    tables: tuple[Table, ...] = ()
    if any(run.peak_bytes is not None for run in job.runs):
        heads = (*columns("count", "bytes"), *columns("bytes", "peak", "reserved"), *columns("text", "ranks"))
        tables = (Table("Ranks that ran, equal ones together", heads, tuple(map(_run_row, job.groups))),)
    return Answer(tuple(job_words(job)), in_use=tables, sections=(Section("", (), tables),))


def job_words(job: NullJob) -> list[str]:
    """The answer in sentences: how many ranks ran, the worst peak, and how far the others are from it."""
    worst = job.worst
    lines = [f"Job of {job.words}."]
    if not job.is_distributed:
        lines.append("The script opens no process group: each rank trains alone, and nothing is shared between them.")
    if (killed := next((run for run in job.runs if run.status == -signal.SIGKILL), None)) is not None:
        lines.append(f"Rank {killed.rank:,} was killed (SIGKILL), as a process is where the host's memory runs out.")
    if worst is not None and worst.out_of_memory:
        return [
            *lines,
            f"Rank {worst.rank:,} does not fit: {without_gpu(worst.failure)}{behind(worst.line)}.",
            *(_of_card(job) if worst.crowded is not None else ()),
            *guest_sentences(job.gpus),
        ]
    if worst is None or worst.peak_bytes is None:
        return [*lines, "None of them recorded a step."]
    lines.append(f"The worst is rank {worst.rank:,}: {format_bytes(worst.peak_bytes)} allocated at its peak.")
    least = min((run for run in job.runs if run.peak_bytes is not None), key=lambda run: run.peak_bytes or 0)
    if least.peak_bytes != worst.peak_bytes and least.peak_bytes is not None:
        lines.append(
            f"Rank {least.rank:,} has {format_bytes(worst.peak_bytes - least.peak_bytes)} less: {_apart(worst, least)}."
        )
    elif len(job.runs) > 1 and all(run.peak_bytes is not None for run in job.runs):
        lines.append("All that ran have the same peak, to the byte.")
    lines += [
        f"Rank {run.rank:,} ended before a step was recorded: {without_gpu(run.failure)}{behind(run.line)}."
        for run in job.runs
        if run.peak_bytes is None and run.failure
    ]
    return [*lines, *_of_card(job), *guest_sentences(job.gpus)]


def _of_card(job: NullJob) -> Iterator[str]:
    """Return sentences on the fullest GPU: memory of torch, memory beside it, and whether both fit."""
    gpu = job.fullest
    if gpu is None:
        return
    card_bytes = job.devices.card.memory_bytes
    yield (
        f"On the GPU of rank {gpu.node * job.per_node + gpu.index:,}, {_parts(gpu)}: together "
        f"{format_range(gpu.least_bytes, gpu.most_bytes)} of {format_bytes(card_bytes)}{_ends(job, gpu)}"
    )


def _parts(gpu: GpuSum) -> str:
    """Words, as `torch reserves 46.27 GiB, CUDA's context takes 700.00 MiB, and NCCL's buffers 28.00 MiB to ...`."""
    parts = []
    if (own := gpu.own) is not None:
        parts += [f"torch reserves {format_bytes(own.torch_bytes)}"]
        parts += [f"CUDA's context takes {format_bytes(own.context_bytes)}"]
        parts += [f"symmetric memory {format_bytes(own.shared_bytes)}"] if own.shared_bytes else []
    parts += [f"other ranks {format_bytes(sum(guest.bytes for guest in gpu.guests))}"] if gpu.guests else []
    parts += [f"NCCL's buffers {gpu.nccl.words}"] if gpu.nccl.words else []
    return f"{', '.join(parts[:-1])}, and {parts[-1]}" if len(parts) > 2 else " and ".join(parts)


def _ends(job: NullJob, gpu: GpuSum) -> str:
    card_bytes = job.devices.card.memory_bytes
    if gpu.most_bytes <= card_bytes:
        return ". It fits." if job.fits else "."
    if job.fits is False:
        return ". It does not fit."
    if job.fits:
        return ". It fits, for torch gives back its cache."
    left = card_bytes - gpu.held_bytes
    if left >= gpu.nccl.least_bytes:
        return f". It fits if NCCL takes no more than {format_bytes(left)}, or torch gives back its cache for it."
    return ". It fits with the least of NCCL's buffers, for torch gives back its cache; with more, that is not known."


def guest_sentences(gpus: Sequence[GpuSum]) -> tuple[str, ...]:
    """The rank that holds most of another rank's GPU, the line, and how it stays on its own; empty if none does."""
    guests = [(guest, gpu) for gpu in gpus for guest in gpu.guests if not guest.is_assumed]
    if not guests:
        return ()
    guest, gpu = max(guests, key=lambda pair: pair[0].bytes)
    number = len({other.rank for other, _ in guests} - {guest.rank})
    others = f" (like {some(number, 'other rank')})" if number else ""
    whose = f"of GPU {gpu.index}, which is another rank's{others}"
    first = "call torch.cuda.set_device(LOCAL_RANK) before anything else of CUDA's"
    if guest.torch_bytes + guest.shared_bytes <= 0:
        return (f"Rank {guest.rank:,} takes {format_bytes(guest.bytes)} {whose}, for CUDA's context alone: {first}.",)
    line = behind(guest.line)
    return (
        f"Rank {guest.rank:,} takes {format_bytes(guest.bytes)} {whose}{line}: {first}, name no GPU by its "
        'number, and load checkpoints with map_location="cpu".',
    )


def gpu_sentences(gpus: Sequence[GpuSum]) -> tuple[str, ...]:
    """Sentences on the fullest GPU with memory of several ranks, and how they stay apart; empty without one."""
    gpu = fullest(gpu for gpu in gpus if gpu.guests)
    if gpu is None:
        return ()
    most = sorted(gpu.holdings, key=lambda holding: -holding.torch_bytes)
    parts = [f"rank {holding.rank:,} {format_bytes(holding.torch_bytes)}" for holding in most[:_MOST_NAMED]]
    parts += [f"{some(len(most) - _MOST_NAMED, 'other')}"] if len(most) > _MOST_NAMED else []
    contexts = format_bytes(sum(holding.context_bytes for holding in gpu.holdings))
    return (
        f"GPU {gpu.index} holds up to {format_bytes(gpu.held_bytes)} of {some(len(most), 'rank')}: "
        f"{', '.join(parts)}, and about {contexts} of CUDA's contexts.",
        *guest_sentences(gpus),
    )


def _apart(worst: RankRun, least: RankRun) -> str:
    names = worst.categories.keys() | least.categories.keys()
    by = {name: worst.categories.get(name, 0) - least.categories.get(name, 0) for name in names}
    widest = sorted((name for name in by if by[name]), key=lambda name: (-abs(by[name]), name))[:_NUM_DIFFERENCES]
    return ", ".join(f"{words_of(name)} {'-' if by[name] > 0 else '+'}{format_bytes(abs(by[name]))}" for name in widest)


def _run_row(group: tuple[RankRun, ...]) -> tuple[Cell, ...]:
    first = group[0]
    peak = "" if first.peak_bytes is None else first.peak_bytes
    ranks = ", ".join(f"{run.rank:,}" for run in group)
    if first.failure:
        ranks += f": {without_gpu(first.failure)}"
    elif first.status:
        ranks += f": ended with status {first.status}"
    return first.peak_bytes, peak, first.reserved_bytes or "", ranks
