"""A prediction for people, by rehearsal or by the null GPU: will it fit, what fills it, what was assumed."""

from __future__ import annotations

from rich.console import Console

from tracer.analysis.profiles.peak import PeakReport
from tracer.exporters.screen.paths import source_place
from tracer.exporters.screen.profile import NUM_ROWS, print_categories, print_lines
from tracer.exporters.screen.snapshot import print_failed_allocation
from tracer.exporters.screen.text import say
from tracer.exporters.screen.values import print_values
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.results.null_run import NO_TIMES
from tracer.results.prediction import LargestBatch, NullPrediction, Place, Prediction
from tracer.units import format_bytes, some


def verdict(prediction: Prediction) -> str:
    """The answer in one sentence."""
    card, memory = prediction.card, prediction.memory
    if card is None:
        need = prediction.unlimited.peak_reserved_bytes + CONTEXT_BYTES
        return f"Needs {format_bytes(need)} of a GPU, of which {format_bytes(CONTEXT_BYTES)} are CUDA's own context."
    name = f"{card.label} ({format_bytes(card.memory_bytes)})" if card.label else format_bytes(card.memory_bytes)
    if memory.failure is not None:
        at = prediction.failed_at
        lacks = prediction.unlimited.peak_reserved_bytes - card.usable_bytes
        where = f" {_where(at)}" if at is not None else ""
        return (
            f"Does not fit in {name}: {format_bytes(memory.failure.size_bytes)} cannot be allocated{where}. "
            f"It lacks {format_bytes(max(0, lacks))}."
        )
    room = card.usable_bytes - memory.peak_reserved_bytes
    words = f"Fits in {name}: {format_bytes(room)} are left."
    if memory.num_retries:
        times = "once" if memory.num_retries == 1 else f"{memory.num_retries} times"
        return f"Fits in {name}, but only because the allocator gives back its cache {times}."
    if prediction.spread.high_bytes > card.usable_bytes:
        return f"{words} This prediction may be off by as much."
    return words


def _where(at: Place) -> str:
    if at.step < 0:
        return "when the model is loaded"
    line = f" at {source_place(at.line.file, at.line.line)}" if at.line is not None else ""
    module = f" of {at.module}" if at.module else ""
    return f"in {at.phase} of step {at.step + 1}, by {at.op}{module}{line}"


def print_prediction(prediction: Prediction | NullPrediction, console: Console, *, top: int = NUM_ROWS) -> None:
    """The answer, the sizes, what fills it and what was assumed or is not counted. Readable in 80 columns.

    Args:
        prediction: Of a step.
        console: Where to print.
        top: Rows of the table of lines; what the others hold together is said.
    """
    if isinstance(prediction, NullPrediction):
        _print_null_prediction(prediction, console, top)
    else:
        _print_rehearsed(prediction, console, top)


def _print_rehearsed(prediction: Prediction, console: Console, top: int) -> None:
    unlimited, spread = prediction.unlimited, prediction.spread
    peak = prediction.findings.worst.peak
    low, high = format_bytes(spread.low_bytes), format_bytes(spread.high_bytes)
    say(console)
    say(console, verdict(prediction), style="bold")
    say(console, f"Peak allocated: {format_bytes(unlimited.peak_allocated_bytes)}, in {peak.phase or 'no phase'}.")
    reserved = format_bytes(unlimited.peak_reserved_bytes)
    say(console, f"Peak reserved: {reserved}; {low} to {high} if allocations differ a little.")
    for need in prediction.by_shape:
        allocated, reserved = format_bytes(need.allocated_bytes), format_bytes(need.reserved_bytes)
        say(console, f"With {' '.join(need.inputs)} alone: {allocated} allocated, {reserved} reserved.")
    _print_rows(peak, console, top)
    say(console)
    say(console, "Assumed", style="bold")
    for sentence in prediction.assumptions:
        say(console, sentence, indent=2)


def null_verdict(prediction: NullPrediction) -> str:
    """The answer in one sentence or two."""
    where, failure = prediction.devices.words, prediction.results.failure
    if failure is not None:
        at = prediction.failed_line
        place = f" at {source_place(at.file, at.line)}" if at is not None else ""
        return f"Does not fit on {where}: out of memory in step {failure.step + 1}{place}.{_need(prediction)}"
    if prediction.num_retries:
        times = some(prediction.num_retries, "time")
        return f"Fits on {where}, but only because the allocator gives back its cache {times}."
    return f"Fits on {where}: {format_bytes(prediction.room_bytes)} are left."


def _need(prediction: NullPrediction) -> str:
    if prediction.needed_bytes is None:
        return ""
    usable_bytes = prediction.devices.card.usable_bytes
    lacks = max(0, prediction.needed_bytes - usable_bytes)
    return (
        f" By rehearsal it reserves {format_bytes(prediction.needed_bytes)}: {format_bytes(lacks)} more than the "
        f"{format_bytes(usable_bytes)} that CUDA's context leaves."
    )


def _print_null_prediction(prediction: NullPrediction, console: Console, top: int) -> None:
    results, findings = prediction.results, prediction.findings
    say(console)
    say(console, results.origin.caveat, style="bold")
    say(console, null_verdict(prediction), style="bold")
    phase = findings.worst.peak.phase if findings is not None else None
    when = f", in {phase}" if phase else ""
    say(console, f"Peak allocated: {format_bytes(prediction.peak_allocated_bytes)}{when}.")
    say(console, f"Peak reserved: {format_bytes(prediction.peak_reserved_bytes)}.")
    if results.failed_allocation is not None:
        print_failed_allocation(results.failed_allocation, console, top=top)
    elif findings is not None:
        _print_rows(findings.worst.peak, console, top)
    say(console)
    print_values(results.values_read, console)
    for note in results.notes:
        if note != NO_TIMES:
            say(console, note)


def _print_rows(peak: PeakReport, console: Console, top: int) -> None:
    print_categories(peak, console)
    if top:
        print_lines(peak, console, top)


def largest_words(largest: LargestBatch) -> str:
    """The largest batch, and how to have the one that was asked for all the same."""
    if not largest.batch_size:
        return "Not even one sample fits."
    words = f"Largest batch that fits: {largest.batch_size}."
    if largest.accumulated is None:
        return words
    size, number = largest.accumulated
    return (
        f"{words} All {size * number} samples fit in {number} micro-batches: --batch-size {size} --accumulate {number}."
    )
