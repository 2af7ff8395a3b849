"""Results of trials of changes, in a sentence each, and the command that trains with what fits."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console

from tracer.exporters.screen.text import print_rows, say
from tracer.results.fit import FitReport, FitTrial
from tracer.units import format_bytes

_VISIBLE_SHARE = 0.0005


def trial_words(trial: FitTrial, usable_bytes: int, base: FitTrial | None = None) -> tuple[str, ...]:
    """What came of it.

    Args:
        base: The script as it is, to compare with; None to leave that out.
    """
    what = _what(trial)
    if trial.fits:
        left = _left(trial, usable_bytes)
        came = f"fits with {left} left" if left[0].isdigit() else f"fits{left}"
        sizes = f"{format_bytes(trial.allocated_bytes)} allocated, {format_bytes(trial.reserved_bytes)} reserved"
        sizes += "" if trial.worst_rank is None else f" by rank {trial.worst_rank:,}, the worst"
        line = f"{what}: {sizes}{_difference(trial, base)}; {came}."
    elif trial.has_ended_before:
        line = f"{what}: the script ended with an error before a step was done."
    else:
        rank = "" if trial.worst_rank is None else f"rank {trial.worst_rank:,} is "
        line = f"{what}: {rank}out of memory, with {format_bytes(trial.allocated_bytes)} allocated."
    return line, *(f"  {note}" for note in trial.notes)


def _left(trial: FitTrial, usable_bytes: int) -> str:
    """What is left of the card, `1.00 GiB` or a range, by how much NCCL takes; or on what it hangs that it fits."""
    room = usable_bytes - trial.reserved_bytes - trial.beside_bytes
    least, most = room - trial.nccl.most_bytes, room - trial.nccl.least_bytes
    if most < 0:
        return ", after the allocator released its cache"
    if least < 0:
        return f" if NCCL takes no more than {format_bytes(room)}"
    return format_bytes(most) if least == most else f"{format_bytes(least)} to {format_bytes(most)}"


def _what(trial: FitTrial) -> str:
    return ", ".join((*((shlex.join(trial.arguments),) if trial.arguments else ()), *trial.apply)) or "as it is"


def print_search(report: FitReport, trials: Sequence[FitTrial], commands: Sequence[str], console: Console) -> None:
    """Print a table of trials, and commands to paste below it."""
    is_job = any(trial.ranks for trial in trials)
    rows = [
        (*_row(trial, report.usable_bytes), *([_by_rank(trial)] if is_job else []))
        for trial in trials
        if not trial.in_vain
    ]
    title, words = f"Tried on {report.device}, the cheapest that fits first", ("with", "peak by rank")[: 1 + is_job]
    print_rows(title, ("peak", "reserved", "left"), rows, console, words=words)
    if commands:
        say(console)
        say(console, "Commands for those that fit, in that order:")
        for command in commands:
            console.print(command, soft_wrap=True, markup=False, highlight=False)


def _row(trial: FitTrial, usable_bytes: int) -> tuple[str, str, str, str]:
    if trial.has_ended_before:
        return "", "", "error", _what(trial)
    if not trial.fits:
        return "", "", "out of memory", _what(trial)
    words = _left(trial, usable_bytes).removeprefix(", ").strip()
    return format_bytes(trial.allocated_bytes), format_bytes(trial.reserved_bytes), words, _what(trial)


def _by_rank(trial: FitTrial) -> str:
    """As in `0, 2: 1.00 GiB; 3: out of memory`: ranks of the same peak together, the worst first."""
    alike: dict[tuple[bool, int], list[int]] = {}
    for rank in trial.ranks:
        alike.setdefault((rank.fits, rank.allocated_bytes if rank.fits else 0), []).append(rank.rank)
    return "; ".join(
        f"{', '.join(f'{rank:,}' for rank in ranks)}: {format_bytes(size) if fits else 'out of memory'}"
        for (fits, size), ranks in sorted(alike.items(), key=lambda item: (item[0][0], -item[0][1]))
    )


def _difference(trial: FitTrial, base: FitTrial | None) -> str:
    """The change of the peak in words; empty where one of the two ran out of memory."""
    if base is None or not base.fits:
        return ""
    saved_bytes = base.allocated_bytes - trial.allocated_bytes
    if saved_bytes == 0:
        return f", the same peak{_more_flops(trial, base)}"
    words = f", {format_bytes(abs(saved_bytes))} {'less' if saved_bytes > 0 else 'more'} at the peak"
    return words + _more_flops(trial, base)


def _more_flops(trial: FitTrial, base: FitTrial) -> str:
    """As the list of a model's changes has it; empty where there are as many, or they are not known."""
    if not trial.flops or not base.flops:
        return ""
    more = trial.flops / base.flops - 1
    return f", {100 * more:+.1f} % FLOPs" if abs(more) > _VISIBLE_SHARE else ""


def command_words(
    script: Sequence[str], apply: Sequence[str], program: str, *, num_ranks: int = 0, num_nodes: int = 1
) -> str:
    """A command to paste: the script with what makes it fit.

    Args:
        num_ranks: Number of ranks of a job on each node; 0 for one process.
    """
    own = shlex.join(script)
    run = f"run --apply {','.join(apply)} {own}"
    if not num_ranks:
        return f"{program} {run}" if apply else f"python {own}"
    nodes = f" --nnodes {num_nodes} --rdzv-backend c10d --rdzv-endpoint $HOST_NODE_ADDR" if num_nodes > 1 else ""
    torchrun = f"torchrun{nodes} --nproc-per-node {num_ranks}"
    return f"{torchrun} -m tracer {run}" if apply else f"{torchrun} {own}"
