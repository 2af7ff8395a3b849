"""What a job on the null GPU says once its ranks have run: the worst, the equal ones, and what sets them apart."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from tracer.analysis.kinds import words_of
from tracer.exporters.screen.text import print_table, say, table
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.results.failure import without_gpu
from tracer.results.null_job import NullJob, RankRun
from tracer.units import format_bytes

_NUM_DIFFERENCES = 3


def print_null_job(job: NullJob, console: Console) -> None:
    """Print the job, below the answer of its first rank."""
    say(console)
    for line in job_words(job):
        say(console, line)
    if any(run.peak_bytes is not None for run in job.runs):
        shown = table("bytes", "peak", "reserved")
        shown.add_column("ranks")
        for group in job.groups:
            shown.add_row(*_row(group))
        print_table("Ranks that ran, equal ones together", shown, console)


def job_words(job: NullJob) -> list[str]:
    """The answer in sentences: how many ranks ran, the worst peak, and how far the others are from it."""
    worst = job.worst
    lines = [f"Job of {job.words}."]
    if worst is not None and worst.out_of_memory:
        return [*lines, f"Rank {worst.rank:,} does not fit: {without_gpu(worst.failure)}."]
    if worst is None or worst.peak_bytes is None:
        return [*lines, "None of them recorded a step."]
    card = format_bytes(job.devices.card.usable_bytes)
    lines.append(f"The worst is rank {worst.rank:,}: {format_bytes(worst.peak_bytes)} at its peak, of {card}.")
    least = min((run for run in job.runs if run.peak_bytes is not None), key=lambda run: run.peak_bytes or 0)
    if least.peak_bytes != worst.peak_bytes and least.peak_bytes is not None:
        lines.append(
            f"Rank {least.rank:,} has {format_bytes(worst.peak_bytes - least.peak_bytes)} less: {_apart(worst, least)}."
        )
    elif len(job.runs) > 1:
        lines.append("All that ran have the same peak, to the byte.")
    return [*lines, *_of_card(job)]


def _of_card(job: NullJob) -> Iterator[str]:
    """What the fullest rank takes of its card, with what no allocator of torch's hands out."""
    fullest = job.fullest
    if fullest is None or not (fullest.nccl.words or fullest.shared_bytes):
        return
    least_bytes, most_bytes = fullest.of_card_bytes
    card = job.devices.card.memory_bytes
    yield (
        f"Beside torch's memory: {_beside_torch(fullest)}. So rank {fullest.rank:,} takes "
        f"{_range(least_bytes, most_bytes)} of {format_bytes(card)}{_ends(least_bytes, most_bytes, card, fullest)}"
    )


def _beside_torch(run: RankRun) -> str:
    """As in `CUDA's context, 500.00 MiB, and NCCL's buffers, 28.00 MiB to 688.00 MiB for 1 communicator`."""
    parts = [f"CUDA's context, {format_bytes(CONTEXT_BYTES)}"]
    parts += [f"symmetric memory, {format_bytes(run.shared_bytes)}"] if run.shared_bytes else []
    parts += [f"NCCL's buffers, {run.nccl.words}"] if run.nccl.words else []
    return ", and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _range(least_bytes: int, most_bytes: int) -> str:
    least, most = format_bytes(least_bytes), format_bytes(most_bytes)
    return least if least == most else f"{least} to {most}"


def _ends(least_bytes: int, most_bytes: int, card_bytes: int, fullest: RankRun) -> str:
    if most_bytes <= card_bytes:
        return "."
    if least_bytes > card_bytes:
        return ", and does not fit."
    left = card_bytes - least_bytes + fullest.nccl.least_bytes
    return f", and fits if NCCL takes no more than {format_bytes(left)}."


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
