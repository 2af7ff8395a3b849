"""A prediction for people: which engine answered, will it fit, what fills it, what was assumed."""

from __future__ import annotations

from rich.console import Console

from tracer.exporters.screen.failure import print_failure
from tracer.exporters.screen.fit import need_words
from tracer.exporters.screen.paths import source_place
from tracer.exporters.screen.profile import NUM_ROWS, print_rows
from tracer.exporters.screen.text import say
from tracer.exporters.screen.values import print_values
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.results.null_run import CAVEAT
from tracer.results.prediction import LargestSize, OutOfMemoryAt, Prediction
from tracer.units import format_bytes

_ENGINE = {
    "null GPU": CAVEAT,
    "rehearsal": "Rehearsed on tensors without memory, by rules for what a GPU does differently from the CPU.",
}
_ON_CPU = "Rehearsed on tensors without memory, as the CPU runs it."


def engine_words(prediction: Prediction) -> str:
    """A sentence on which engine answered."""
    return _ON_CPU if prediction.results.device == "cpu" else _ENGINE[prediction.engine]


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
        return f"{does} not fit in {name}: {problem} {_where(at)}.{by_how_much}"
    if memory.num_retries:
        times = "once" if memory.num_retries == 1 else f"{memory.num_retries} times"
        return f"{subject}{fits} in {name}, but only because the allocator releases its cache {times}."
    least, most = prediction.room_bytes
    if least < 0 and prediction.nccl.most_bytes:
        left = card.usable_bytes - memory.peak_reserved_bytes
        return f"{fits} in {name} if NCCL takes no more than {format_bytes(left)}."
    left_words = format_bytes(most) if least == most else f"{format_bytes(least)} to {format_bytes(most)}"
    words = f"{subject}{fits} in {name}: {left_words} are left."
    if prediction.spread.high_bytes > card.usable_bytes:
        return f"{words} This prediction may be wrong by as much."
    return words


def _where(at: OutOfMemoryAt) -> str:
    line = f" at {source_place(at.line.file, at.line.line)}" if at.line is not None else ""
    if at.step < 0:
        return f"before the first step{line}" if line else "when the model is loaded"
    module = f" of {at.module}" if at.module else ""
    phase = f"in {at.phase} of step {at.step + 1}" if at.phase else f"in step {at.step + 1}"
    return f"{phase}, by {at.op}{module}{line}" if at.op else f"{phase}{module}{line}"


def print_prediction(prediction: Prediction, console: Console, *, top: int = NUM_ROWS) -> None:
    """The answer, the sizes, what fills it and what was assumed or is not counted. Readable in 80 columns."""
    need, spread, findings = prediction.need, prediction.spread, prediction.findings
    say(console)
    say(console, engine_words(prediction))
    say(console, verdict(prediction), style="bold")
    phase = findings.worst.peak.phase if findings is not None else None
    until = "" if prediction.is_whole else ", up to where memory ran out"
    say(console, f"Peak allocated: {format_bytes(need.peak_allocated_bytes)}, in {phase or 'no phase'}{until}.")
    low, high = format_bytes(spread.low_bytes), format_bytes(spread.high_bytes)
    words = f"; {low} to {high}, {prediction.spread_is_about}" if prediction.spread_is_about else ""
    say(console, f"Peak reserved: {format_bytes(need.peak_reserved_bytes)}{words}.")
    if prediction.without_end is not None and prediction.card is not None:
        for sentence in need_words(prediction.without_end, prediction.card.usable_bytes):
            say(console, sentence)
    for shape in prediction.by_shape:
        allocated, reserved = format_bytes(shape.allocated_bytes), format_bytes(shape.reserved_bytes)
        say(console, f"With {' '.join(shape.inputs)} alone: {allocated} allocated, {reserved} reserved.")
    if prediction.other is not None:
        _print_difference(prediction, prediction.other, console)
    failed = prediction.results.failed_allocation
    is_shown = False
    if failed is not None and not prediction.is_whole:
        is_shown = print_failure(failed, findings, console, top)
    if findings is not None:
        print_rows(findings.worst.peak, console, top, categories=not is_shown)
    say(console)
    print_values(prediction.results.values_read, console)
    say(console, "Assumed", style="bold")
    for sentence in prediction.assumptions:
        say(console, sentence, indent=2)


def _print_difference(prediction: Prediction, other: Prediction, console: Console) -> None:
    """What the other engine says; nothing where both say the same."""
    ours, theirs = prediction.need, other.need
    for name in ("allocated", "reserved"):
        mine, its = (getattr(sizes, f"peak_{name}_bytes") for sizes in (ours, theirs))
        if mine != its:
            by = f"{its - mine:+,} bytes, {100 * (its - mine) / mine:+.2f} %"
            say(console, f"By {other.engine}, peak {name} is {format_bytes(its)} ({by}).")


def largest_words(largest: LargestSize) -> str:
    """The largest that fits, and how to have the batch that was asked for all the same."""
    if not largest.size:
        return "Not even one sample fits." if largest.option == "--batch-size" else "Not even the smallest fits."
    quantity, size_words = {
        "--batch-size": ("batch", f"{largest.size}"),
        "--tokens": ("number of tokens", f"{largest.size}"),
        "--input": ("image", f"{largest.size}x{largest.size}"),
    }[largest.option]
    words = f"Largest {quantity} that fits: {size_words}."
    if largest.is_all:
        why = "The model has no more positions." if largest.option == "--tokens" else "No larger one was tried."
        return f"{words} {why}"
    if largest.accumulated is None:
        return words
    size, number = largest.accumulated
    return (
        f"{words} All {size * number} samples fit in {number} micro-batches: --batch-size {size} --accumulate {number}."
    )
