"""Least change with which a script fits: trials of changes in a sentence each, and the command to paste."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from tracer.answers.answer import Answer
from tracer.answers.null_run import CAVEAT
from tracer.answers.paths import source_place
from tracer.answers.prediction import FitReport, FitTrial
from tracer.answers.tables import Cell, Column, Table
from tracer.units import MIB, format_bytes, format_range

_VISIBLE_SHARE = 0.0005
_NARROW_SHARE = 0.02
_MOST_NAMES = 40  # Characters of a trial's changes in the table


def answer_of_fit(report: FitReport) -> Answer:
    """Return the least change that fits, the script as it is, why it does not fit, and a table of all trials."""
    best, base = (None if report.is_each else report.best), report.base
    why: tuple[str, ...] = ()
    if base is not None and (known := base.explanation) is not None and known.cause and not report.is_each:
        why = () if base.fits and not base.growth_bytes else (known.sentences,)
    told = [best] if best is not None else []
    if base is not None and base is not best:
        told.append(base)
    happened = [
        line for trial in told for line in trial_words(trial, report.usable_bytes, None if trial is base else base)
    ]
    if report.best is None and not report.is_each:
        happened.insert(0, _nothing_fits(report))
    return Answer(
        happened=tuple(happened),
        why=why,
        change=report.changes,
        remarks=tuple(dict.fromkeys(_remarks(report, best))),
        in_use=(_table(report),) if len(report.trials) > 1 else (),
        caveat=CAVEAT,
        is_alarming=report.best is None,
    )


def _remarks(report: FitReport, best: FitTrial | None) -> Iterator[str]:
    if not report.is_whole:
        yield f"The search was ended before all changes were tried{': fewer may do' if best is not None else ''}."
    for trial in report.trials if best is None else [best, *report.trials]:
        yield from _pinned(trial, report.base) if report.is_each or trial is best else ()
        begin = f"{_what(trial)}: " if trial.has_ended_before else ""
        yield from (f"{begin}{note}" for note in trial.notes)


def _table(report: FitReport) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for trial in sorted(report.trials, key=lambda trial: (trial is not report.base, trial is not report.best)):
        room_bytes = report.usable_bytes - trial.beside_bytes
        taken_bytes = trial.allocated_bytes if trial.allocated_bytes > room_bytes else trial.reserved_bytes
        left: Cell = room_bytes - taken_bytes
        if trial.fits and taken_bytes > room_bytes:
            left = "fits"
        flops = _more_flops(trial, report.base) if report.base is not None else ""
        sizes: tuple[Cell, ...] = (trial.allocated_bytes, trial.reserved_bytes, left)
        if trial.has_ended_before:
            sizes = ("ended", None, None)
        elif not trial.is_whole:
            sizes = (f"> {format_bytes(trial.allocated_bytes)}", None, None)
        rows.append((_short_what(trial), *sizes, flops))
    numbers = (Column(name, "bytes", adds_up=False) for name in ("allocated", "reserved", "left"))
    names = (Column("changes", "label"), *numbers, Column("FLOPs", "label"))
    return Table("tried", names, tuple(rows), is_whole=report.is_each)


def _short_what(trial: FitTrial) -> str:
    words = _what(trial)
    if len(words) <= _MOST_NAMES or not trial.apply:
        return words[:_MOST_NAMES]
    return f"{trial.apply[-1]} and {len(trial.apply) - 1} more"


def _nothing_fits(report: FitReport) -> str:
    if all(trial.has_ended_before for trial in report.trials):
        return "The script made no step on the GPU in any trial, so that whether it fits is not known."
    if (base := report.base) is None or any(trial.arguments for trial in report.trials):
        return f"The script fits on {report.device} with none of these values. `fit` without --try tries other changes."
    if base.is_filled_by_growth(report.usable_bytes):
        return "No change that needs no edit ends that: the line that keeps memory from step to step has to change."
    if base.built_bytes > report.usable_bytes:
        return (
            f"{format_bytes(base.built_bytes)} are allocated before the first step: no change of the training helps. "
            "What does is fewer weights, weights made in bfloat16 at once, or a part of them on each of several GPUs."
        )
    if not report.is_whole:
        return f"No change that was tried makes the script fit on {report.device}; not all were tried."
    edit = "what the cause below asks for, " if base.explanation is not None and base.explanation.cause else ""
    return (
        f"No change that needs no edit makes the script fit on {report.device}. What is left is {edit}a smaller batch, "
        "sharding over several GPUs, or a larger GPU."
    )


def outcome_words(trial: FitTrial) -> str:
    """Say whether a trial fits, and no more."""
    outcome = "ends before its first step" if trial.has_ended_before else "fits" if trial.fits else "does not fit"
    return f"Tried {_what(trial)}: {outcome}."


def trial_words(trial: FitTrial, usable_bytes: int, base: FitTrial | None = None) -> tuple[str, ...]:
    """Return the result of a trial in lines."""
    what = _what(trial)
    if trial.has_ended_before:
        return (f"{what}: the script ended before a step was done on the GPU.",)
    sizes = f"{_sizes(trial)}{_difference(trial, base)}"
    if trial.fits:
        left = _left(trial, usable_bytes)
        # So little that another driver, or a batch a little longer, takes it.
        least_left = usable_bytes - trial.reserved_bytes - trial.beside_bytes - trial.nccl.most_bytes
        does = "fits narrowly," if least_left < _NARROW_SHARE * usable_bytes else "fits"
        came = f"{does} with {left} left" if left[0].isdigit() else f"fits{left}"
        return f"{what}: {sizes}; {came}.", *_growth(trial, usable_bytes)
    if trial.failed_in is None:
        needs = "needs" if trial.is_whole else "needs at least"
        return (f"{what}: {needs} {sizes}; {_missing(trial, usable_bytes)}.",)
    rank = "" if trial.worst_rank is None else f"rank {trial.worst_rank:,} is "
    why = trial.explanation
    at = f" ({source_place(why.file, why.line)})" if why is not None and why.file else ""
    step = "before the first step" if trial.failed_in == -1 else f"in step {trial.failed_in + 1:,}"
    line = (
        f"{what}: {rank}out of memory {step}{at}; it had {format_bytes(trial.failed_at_bytes)} at the most until then."
    )
    return line, *need_words(trial, usable_bytes)


def need_words(trial: FitTrial, usable_bytes: int) -> tuple[str, ...]:
    """Say the need of a script that ran out of memory; nothing where it is not known, or is no more than there is.

    Its first steps may fit, and what came later not.
    """
    room_bytes = usable_bytes - trial.beside_bytes
    if not trial.is_whole or trial.has_ended_before or trial.reserved_bytes <= room_bytes:
        return ()
    until = f" in its first {trial.num_steps:,} steps" if trial.growth_bytes else ""
    sentence = f"With enough memory it needs {_sizes(trial)}{until}: {_missing(trial, usable_bytes)}."
    return sentence, *_growth(trial, usable_bytes)


def _sizes(trial: FitTrial) -> str:
    sizes = f"{format_bytes(trial.allocated_bytes)} allocated, {format_bytes(trial.reserved_bytes)} reserved"
    return sizes if trial.worst_rank is None else f"{sizes} by rank {trial.worst_rank:,}, the worst"


def _pinned(trial: FitTrial, base: FitTrial | None) -> list[str]:
    """Return a sentence on what a change has the host hold; none where that is no more than of the script as it is."""
    more_bytes = trial.pinned_bytes - base.pinned_bytes if base is not None else 0
    if more_bytes < MIB:
        return []
    whose = " for each rank of a node" if trial.ranks else ""
    return [f"{_what(trial)}: the host then holds {format_bytes(more_bytes)} more{whose}, in pinned memory."]


def _missing(trial: FitTrial, usable_bytes: int) -> str:
    """Say the bytes beyond the device's memory; where the allocated bytes fit, the reserved ones beyond it."""
    room_bytes = usable_bytes - trial.beside_bytes
    if trial.allocated_bytes > room_bytes:
        return f"{format_bytes(trial.allocated_bytes - room_bytes)} more than there is"
    return f"the reserved bytes are {format_bytes(trial.reserved_bytes - room_bytes)} more than there is"


def _growth(trial: FitTrial, usable_bytes: int) -> list[str]:
    """A sentence where memory grows, and when it ends if that goes on."""
    if not trial.growth_bytes:
        return []
    sentence = f"Memory grows: each of the last steps left {format_bytes(trial.growth_bytes)} more in use"
    steps_left = (usable_bytes - trial.beside_bytes - trial.reserved_bytes) // trial.growth_bytes
    if steps_left < 0:
        return [f"{sentence}."]
    return [f"{sentence}; if that goes on, it ends in step {trial.num_steps + steps_left + 1:,} or so."]


def _left(trial: FitTrial, usable_bytes: int) -> str:
    """Return the memory left on the card, `1.00 GiB` or a range, by NCCL's share; or the condition on which it fits."""
    room = usable_bytes - trial.reserved_bytes - trial.beside_bytes
    least, most = room - trial.nccl.most_bytes, room - trial.nccl.least_bytes
    if most < 0:
        return ", after the allocator released its cache"
    if least < 0:
        return f" if NCCL takes no more than {format_bytes(room)}"
    return format_range(least, most)


def _what(trial: FitTrial) -> str:
    return ", ".join((*((shlex.join(trial.arguments),) if trial.arguments else ()), *trial.apply)) or "as it is"


def _difference(trial: FitTrial, base: FitTrial | None) -> str:
    """The change of the peak in words; empty where one of the two is not known."""
    if base is None or not (base.is_whole and trial.is_whole):
        return ""
    saved_bytes = base.allocated_bytes - trial.allocated_bytes
    flops = f", {more} FLOPs" if (more := _more_flops(trial, base)) else ""
    if saved_bytes == 0:
        return f", the same peak{flops}"
    return f", {format_bytes(abs(saved_bytes))} {'less' if saved_bytes > 0 else 'more'} at the peak{flops}"


def _more_flops(trial: FitTrial, base: FitTrial) -> str:
    """By how much more operations a step has; empty where there are as many, or they are not known."""
    if not trial.flops or not base.flops:
        return ""
    more = trial.flops / base.flops - 1
    return f"{100 * more:+.1f} %" if abs(more) > _VISIBLE_SHARE else ""


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
