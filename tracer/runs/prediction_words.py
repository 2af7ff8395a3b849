"""A prediction for people and for programs: will it fit, what fills it, what was assumed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console

from tracer.exporters.json_documents.header import json_header, this_command
from tracer.exporters.screen.paths import source_place
from tracer.exporters.screen.profile import NUM_ROWS, print_categories, print_lines
from tracer.exporters.screen.text import say
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.runs.prediction import LargestBatch, Place, Prediction
from tracer.units import format_bytes

VERSION = 1


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


def print_prediction(prediction: Prediction, console: Console, *, top: int = NUM_ROWS) -> None:
    """The answer, the sizes, what fills it and what was assumed. Readable in 80 columns.

    Args:
        prediction: Of a step.
        console: Where to print.
        top: Rows of the table of lines; what the others hold together is said.
    """
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
    print_categories(peak, console)
    if top:
        print_lines(peak, console, top)
    say(console)
    say(console, "Assumed", style="bold")
    for sentence in prediction.assumptions:
        say(console, sentence, indent=2)


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """The same for programs; docs/files.md describes it."""
    unlimited, memory, card = prediction.unlimited, prediction.memory, prediction.card
    peak = prediction.findings.worst.peak
    document: dict[str, Any] = {
        **json_header("prediction", VERSION, torch=torch.__version__, command=this_command(), computed=False),
        "method": "rehearsal",
        "device": prediction.rehearsal.device,
        "peak_allocated_bytes": unlimited.peak_allocated_bytes,
        "peak_requested_bytes": unlimited.peak_requested_bytes,
        "peak_reserved_bytes": unlimited.peak_reserved_bytes,
        "reserved_low_bytes": prediction.spread.low_bytes,
        "reserved_high_bytes": prediction.spread.high_bytes,
        "context_bytes": CONTEXT_BYTES,
        "fits": prediction.fits,
        "phase": peak.phase,
        "by_category": peak.by_category(),
        "rows": [asdict(row) for row in peak.rows],
        "by_shape": [
            {
                "inputs": list(need.inputs),
                "allocated_bytes": need.allocated_bytes,
                "reserved_bytes": need.reserved_bytes,
            }
            for need in prediction.by_shape
        ],
        "assumptions": list(prediction.assumptions),
        "values_read": None,
    }
    if card is not None:
        document["card"] = {"name": card.label or None, "total_bytes": card.memory_bytes}
        document["usable_bytes"] = card.usable_bytes
        document["room_bytes"] = card.usable_bytes - unlimited.peak_reserved_bytes
        document["num_retries"] = memory.num_retries
    if (at := prediction.failed_at) is not None and memory.failure is not None:
        document["out_of_memory"] = {
            "size_bytes": memory.failure.size_bytes,
            "step": at.step,
            "phase": at.phase,
            "module": at.module or None,
            "op": at.op or None,
            "file": at.line.file if at.line is not None else None,
            "line": at.line.line if at.line is not None else None,
        }
    return document


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


def largest_json(largest: LargestBatch) -> dict[str, Any]:
    """The same for programs."""
    size, number = largest.accumulated or (None, None)
    accumulated = None if size is None else {"batch_size": size, "accumulate": number}
    return {"largest_batch": largest.batch_size, "accumulated": accumulated}
