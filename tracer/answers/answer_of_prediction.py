"""Does it fit: a prediction for people, and results of trials of changes in a sentence each, with commands to paste."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tracer.answers.answer import Answer
from tracer.answers.null_run import CAVEAT
from tracer.answers.paths import source_place
from tracer.answers.prediction import FitTrial
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.units import MIB, format_bytes, format_range

if TYPE_CHECKING:
    from tracer.answers.prediction import Prediction

_VISIBLE_SHARE = 0.0005
_NARROW_SHARE = 0.02


def trial_words(trial: FitTrial, usable_bytes: int, base: FitTrial | None = None) -> tuple[str, ...]:
    """Return the result of a trial in lines."""
    what = _what(trial)
    if trial.has_ended_before:
        return f"{what}: the script ended before a step was done on the GPU.", *_notes(trial)
    sizes = f"{_sizes(trial)}{_difference(trial, base)}"
    if trial.fits:
        left = _left(trial, usable_bytes)
        # So little that another driver, or a batch a little longer, takes it.
        least_left = usable_bytes - trial.reserved_bytes - trial.beside_bytes - trial.nccl.most_bytes
        does = "fits narrowly," if least_left < _NARROW_SHARE * usable_bytes else "fits"
        came = f"{does} with {left} left" if left[0].isdigit() else f"fits{left}"
        return f"{what}: {sizes}; {came}.", *_growth(trial, usable_bytes), *_pinned(trial, base), *_notes(trial)
    if trial.failed_in is None:
        return f"{what}: needs {sizes}; {_missing(trial, usable_bytes)}.", *_pinned(trial, base), *_notes(trial)
    rank = "" if trial.worst_rank is None else f"rank {trial.worst_rank:,} is "
    why = trial.explanation
    at = f" ({source_place(why.file, why.line)})" if why is not None and why.file else ""
    step = "before the first step" if trial.failed_in == -1 else f"in step {trial.failed_in + 1:,}"
    line = f"{what}: {rank}out of memory {step}{at}, with {format_bytes(trial.failed_at_bytes)} allocated."
    return line, *need_words(trial, usable_bytes), *_notes(trial)


def need_words(trial: FitTrial, usable_bytes: int) -> tuple[str, ...]:
    """Say the need of a script that ran out of memory; nothing where it is not known, or is no more than there is.

    Its first steps may fit, and what came later not.
    """
    room_bytes = usable_bytes - trial.beside_bytes
    if not trial.is_whole or trial.has_ended_before or trial.reserved_bytes <= room_bytes:
        return ()
    sentence = f"With enough memory it needs {_sizes(trial)}: {_missing(trial, usable_bytes)}."
    return sentence, *_growth(trial, usable_bytes)


def _sizes(trial: FitTrial) -> str:
    sizes = f"{format_bytes(trial.allocated_bytes)} allocated, {format_bytes(trial.reserved_bytes)} reserved"
    return sizes if trial.worst_rank is None else f"{sizes} by rank {trial.worst_rank:,}, the worst"


def _notes(trial: FitTrial) -> list[str]:
    return [f"  {note}" for note in trial.notes]


def _pinned(trial: FitTrial, base: FitTrial | None) -> list[str]:
    """Return a sentence on what a change has the host hold; none where that is no more than of the script as it is."""
    more_bytes = trial.pinned_bytes - base.pinned_bytes if base is not None else 0
    if more_bytes < MIB:
        return []
    whose = " for each rank of a node" if trial.ranks else ""
    return [f"  The host then holds {format_bytes(more_bytes)} more{whose}, in pinned memory."]


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
    if saved_bytes == 0:
        return f", the same peak{_more_flops(trial, base)}"
    words = f", {format_bytes(abs(saved_bytes))} {'less' if saved_bytes > 0 else 'more'} at the peak"
    return words + _more_flops(trial, base)


def _more_flops(trial: FitTrial, base: FitTrial) -> str:
    """Words of the list of a model's changes; empty where there are as many, or they are not known."""
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


def verdict(prediction: Prediction) -> str:
    """The answer in one sentence or two."""
    card, memory, at = prediction.card, prediction.memory, prediction.failed_at
    if card is None:
        need = prediction.need.peak_reserved_bytes + CONTEXT_BYTES
        return f"Needs {format_bytes(need)} of a GPU, of which {format_bytes(CONTEXT_BYTES)} are CUDA's own context."
    name = f"{card.label} ({format_bytes(card.memory_bytes)})" if card.label else format_bytes(card.memory_bytes)
    fits, subject = "Fits", ""
    if prediction.rank is not None:
        fits, subject = "fits", f"Rank {prediction.rank:,} alone "
    elif prediction.num_cards > 1:
        name = f"{prediction.num_cards} x {name}"
    if at is not None:
        problem = f"{format_bytes(at.size_bytes)} cannot be allocated" if at.size_bytes is not None else "out of memory"
        lacks = max(0, prediction.need.peak_reserved_bytes - card.usable_bytes)
        by_how_much = f" It lacks {format_bytes(lacks)}." if prediction.is_whole else ""
        does = f"{subject}does" if subject else "Does"
        line = f" at {source_place(at.line.file, at.line.line)}" if at.line is not None else ""
        if at.step >= 0:
            where = f"in step {at.step + 1}{line}"
        else:
            where = f"before the first step{line}" if line else "when the model is loaded"
        return f"{does} not fit in {name}: {problem} {where}.{by_how_much}"
    if memory.num_retries:
        times = "once" if memory.num_retries == 1 else f"{memory.num_retries} times"
        return f"{subject}{fits} in {name}, but only because the allocator releases its cache {times}."
    least, most = prediction.room_bytes
    if least < 0 and prediction.nccl.most_bytes:
        left = card.usable_bytes - memory.peak_reserved_bytes
        return f"{subject}{fits} in {name} if NCCL takes no more than {format_bytes(left)}."
    return f"{subject}{fits} in {name}: {format_range(least, most)} are left."


def answer_of_prediction(prediction: Prediction) -> Answer:
    """Return the verdict, the sizes, what fills the device, and what was assumed or is not counted."""
    need, card, results = prediction.need, prediction.card, prediction.results
    if prediction.is_whole:  # what failed is told by the verdict, and the peak is that of a run with enough memory
        results = replace(results, failed_allocation=None)
    of_run = results.answer
    is_of_rank = prediction.rank is not None and prediction.failed_at is None
    at_end = " Whether the job fits is said at the end, after all ranks." if is_of_rank else ""
    allocated, reserved = format_bytes(need.peak_allocated_bytes), format_bytes(need.peak_reserved_bytes)
    until = "" if prediction.is_whole else ", up to where memory ran out"
    without_end = (
        () if prediction.without_end is None or card is None else need_words(prediction.without_end, card.usable_bytes)
    )
    # Where both peaks are of one moment, the run's own sentences have these sizes.
    moment = None if results.findings is None or results.origin.device_bytes is None else results.findings.worst.peak
    is_said = moment is not None and not until and moment.reserved_then_bytes == need.peak_reserved_bytes
    sizes = () if is_said else (f"Peak reserved: {reserved}, with {allocated} allocated{until}.",)
    return replace(
        of_run,
        happened=(
            f"{verdict(prediction)}{at_end}",
            *of_run.happened,
            *sizes,
            *without_end,
        ),
        remarks=tuple(dict.fromkeys((*prediction.assumptions, *of_run.remarks))),
        caveat=CAVEAT,
        is_alarming=prediction.fits is False,
    )
