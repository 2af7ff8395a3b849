"""Results of trials of changes, in a sentence each, and the command that trains with what fits."""

from __future__ import annotations

import shlex

from tracer.results.fit import FitReport, FitTrial
from tracer.units import format_bytes


def trial_words(trial: FitTrial, usable_bytes: int, base: FitTrial | None = None) -> tuple[str, ...]:
    """What came of it.

    Args:
        trial: It.
        usable_bytes: Bytes of the card that a program can use.
        base: The script as it is, to compare with; None to leave that out.
    """
    what = ", ".join((*((shlex.join(trial.arguments),) if trial.arguments else ()), *trial.apply)) or "as it is"
    if trial.fits:
        left = usable_bytes - trial.reserved_bytes
        came = f"fits with {format_bytes(left)} left" if left >= 0 else "fits, after the allocator released its cache"
        sizes = f"{format_bytes(trial.allocated_bytes)} allocated, {format_bytes(trial.reserved_bytes)} reserved"
        sizes += "" if trial.worst_rank is None else f" by rank {trial.worst_rank:,}, the worst"
        line = f"{what}: {sizes}{_difference(trial, base)}; {came}."
    elif trial.has_ended_before:
        line = f"{what}: the script ended with an error before a step was done."
    else:
        rank = "" if trial.worst_rank is None else f"rank {trial.worst_rank:,} is "
        line = f"{what}: {rank}out of memory, with {format_bytes(trial.allocated_bytes)} allocated."
    return line, *(f"  {note}" for note in trial.notes)


def _difference(trial: FitTrial, base: FitTrial | None) -> str:
    """The change of the peak in words; empty where one of the two ran out of memory."""
    if base is None or not base.fits:
        return ""
    saved_bytes = base.allocated_bytes - trial.allocated_bytes
    if saved_bytes == 0:
        return ", the same peak"
    return f", {format_bytes(abs(saved_bytes))} {'less' if saved_bytes > 0 else 'more'} at the peak"


def command_words(report: FitReport, program: str, num_ranks: int = 0) -> str:
    """A command to paste: the script with what makes it fit.

    Args:
        report: A report in which something fits.
        program: This program, as it was called.
        num_ranks: Number of ranks of a job on each node; 0 for one process.
    """
    own = shlex.join((*report.script, *report.arguments))
    if not report.apply:
        return f"torchrun --nproc-per-node {num_ranks} {own}" if num_ranks else f"python {own}"
    run = f"run --apply {','.join(report.apply)} {own}"
    return f"torchrun --nproc-per-node {num_ranks} -m tracer {run}" if num_ranks else f"{program} {run}"
