"""Does it fit: a prediction for people."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracer.answers.answer import Answer
from tracer.answers.answer_of_fit import need_words
from tracer.answers.null_run import CAVEAT
from tracer.answers.paths import source_place
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.units import format_bytes, format_range

if TYPE_CHECKING:
    from tracer.answers.prediction import Prediction


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
