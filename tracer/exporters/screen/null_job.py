"""What a job on the null GPU says once its ranks have run: the worst, the equal ones, and what sets them apart."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from tracer.analysis.kinds import words_of
from tracer.exporters.screen.paths import source_place
from tracer.exporters.screen.text import print_rows, say
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.results.failure import without_gpu
from tracer.results.null_job import NullJob, RankRun
from tracer.units import format_bytes, some

_NUM_DIFFERENCES = 3


def print_null_job(job: NullJob, console: Console) -> None:
    """Print the job, below the answer of its first rank."""
    say(console)
    for line in job_words(job):
        say(console, line)
    if any(run.peak_bytes is not None for run in job.runs):
        title, rows = "Ranks that ran, equal ones together", map(_row, job.groups)
        print_rows(title, ("bytes", "peak", "reserved"), rows, console, words=("ranks",))


def job_words(job: NullJob) -> list[str]:
    """The answer in sentences: how many ranks ran, the worst peak, and how far the others are from it."""
    worst = job.worst
    lines = [f"Job of {job.words}."]
    if worst is not None and worst.out_of_memory:
        return [
            *lines,
            f"Rank {worst.rank:,} does not fit: {without_gpu(worst.failure)}{_at(worst)}.",
            *_astray(job),
            *_beside(worst),
        ]
    if worst is None or worst.peak_bytes is None:
        return [*lines, "None of them recorded a step."]
    lines.append(f"The worst is rank {worst.rank:,}: {format_bytes(worst.peak_bytes)} allocated at its peak.")
    least = min((run for run in job.runs if run.peak_bytes is not None), key=lambda run: run.peak_bytes or 0)
    if least.peak_bytes != worst.peak_bytes and least.peak_bytes is not None:
        lines.append(
            f"Rank {least.rank:,} has {format_bytes(worst.peak_bytes - least.peak_bytes)} less: {_apart(worst, least)}."
        )
    elif len(job.runs) > 1:
        lines.append("All that ran have the same peak, to the byte.")
    return [*lines, *of_card(job), *_astray(job)]


def of_card(job: NullJob) -> Iterator[str]:
    """What is taken of the fullest GPU, by torch and beside it, and whether that fits."""
    fullest = job.fullest
    if fullest is None:
        return
    least_bytes, most_bytes = job.of_card_bytes(fullest)
    card_bytes = job.devices.card.memory_bytes
    reserved = format_bytes(job.own_bytes(fullest) - CONTEXT_BYTES - fullest.shared_bytes)
    yield (
        f"On the GPU of rank {fullest.rank:,}, {_parts(job, fullest, reserved)}: together "
        f"{_range(least_bytes, most_bytes)} of {format_bytes(card_bytes)}{_ends(job, fullest)}"
    )


def _parts(job: NullJob, run: RankRun, reserved: str) -> str:
    """As in `torch reserves 46.27 GiB, CUDA's context takes 500.00 MiB, and NCCL's buffers 28.00 MiB to ...`."""
    parts = [f"torch reserves {reserved}", f"CUDA's context takes {format_bytes(CONTEXT_BYTES)}"]
    parts += [f"symmetric memory {format_bytes(run.shared_bytes)}"] if run.shared_bytes else []
    parts += [f"other ranks {format_bytes(others)}"] if (others := job.others_bytes(run)) else []
    parts += [f"NCCL's buffers {run.nccl.words}"] if run.nccl.words else []
    return f"{', '.join(parts[:-1])}, and {parts[-1]}" if len(parts) > 2 else " and ".join(parts)


def _range(least_bytes: int, most_bytes: int) -> str:
    least, most = format_bytes(least_bytes), format_bytes(most_bytes)
    return least if least == most else f"{least} to {most}"


def _ends(job: NullJob, fullest: RankRun) -> str:
    least_bytes, most_bytes = job.of_card_bytes(fullest)
    card_bytes = job.devices.card.memory_bytes
    if most_bytes <= card_bytes:
        return ". It fits." if job.fits else "."
    if job.fits is False:
        return ". It does not fit."
    if job.fits:
        return ". It fits, for torch gives back its cache."
    left = card_bytes - least_bytes + fullest.nccl.least_bytes
    if left >= fullest.nccl.least_bytes:
        return f". It fits if NCCL takes no more than {format_bytes(left)}, or torch gives back its cache for it."
    return ". It fits with the least of NCCL's buffers, for torch gives back its cache; with more, that is not known."


def _at(run: RankRun) -> str:
    return f" ({source_place(run.line.file, run.line.line)})" if run.line is not None else ""


def _beside(run: RankRun) -> Iterator[str]:
    """What others take of the GPU on which a rank ran out of memory, where that is why it did."""
    if run.crowded is not None:
        index, size = run.crowded
        yield (
            f"Others take {format_bytes(size)} of GPU {index} of its node: ranks whose memory is there, with CUDA's "
            "context of each, and NCCL's buffers."
        )


def _astray(job: NullJob) -> Iterator[str]:
    """Ranks that take memory of another rank's GPU, and how they stay on their own."""
    for run, index, size in job.astray[:1]:
        number = len(job.astray) - 1
        others = f" (like {some(number, 'other')} that ran)" if number else ""
        part = "memory" if run.crowded is not None else format_bytes(size)  # of a failure that is not all
        yield (
            f"Rank {run.rank:,} takes {part} of GPU {index}, which is another rank's{others}: call "
            "torch.cuda.set_device(LOCAL_RANK) before anything else of CUDA's, and load checkpoints with "
            'map_location="cpu".'
        )


def _apart(worst: RankRun, least: RankRun) -> str:
    names = worst.categories.keys() | least.categories.keys()
    by = {name: worst.categories.get(name, 0) - least.categories.get(name, 0) for name in names}
    widest = sorted((name for name in by if by[name]), key=lambda name: (-abs(by[name]), name))[:_NUM_DIFFERENCES]
    return ", ".join(f"{words_of(name)} {'-' if by[name] > 0 else '+'}{format_bytes(abs(by[name]))}" for name in widest)


def _row(group: tuple[RankRun, ...]) -> tuple[str, str, str, str]:
    first = group[0]
    peak = f"{first.peak_bytes:,}" if first.peak_bytes is not None else "-"
    size = format_bytes(first.peak_bytes) if first.peak_bytes is not None else ""
    reserved = format_bytes(first.reserved_bytes) if first.reserved_bytes else ""
    ranks = ", ".join(f"{run.rank:,}" for run in group)
    if first.failure:
        return peak, size, reserved, f"{ranks}: {without_gpu(first.failure)}"
    if first.status:
        return peak, size, reserved, f"{ranks}: ended with status {first.status}"
    return peak, size, reserved, ranks
