"""The null GPU's prediction for people and for programs: does it fit, what fills it, what is not counted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console

from tracer.exporters.json_documents.header import json_header, this_command
from tracer.exporters.screen.paths import source_place
from tracer.exporters.screen.profile import NUM_ROWS, print_categories, print_lines
from tracer.exporters.screen.snapshot import print_failed_allocation
from tracer.exporters.screen.text import say
from tracer.exporters.screen.values import print_values
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.runs.null_prediction import NullPrediction
from tracer.runs.null_run import CAVEAT, NO_TIMES
from tracer.runs.prediction_words import VERSION
from tracer.units import format_bytes, some


def verdict(prediction: NullPrediction) -> str:
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


def print_null_prediction(prediction: NullPrediction, console: Console, *, top: int = NUM_ROWS) -> None:
    """The answer, the sizes, what fills it and what is not counted. Readable in 80 columns.

    Args:
        prediction: Of a run.
        console: Where to print.
        top: Rows of the table of lines; what the others hold together is said.
    """
    results, findings = prediction.results, prediction.findings
    say(console)
    say(console, CAVEAT, style="bold")
    say(console, verdict(prediction), style="bold")
    phase = findings.worst.peak.phase if findings is not None else None
    when = f", in {phase}" if phase else ""
    say(console, f"Peak allocated: {format_bytes(prediction.peak_allocated_bytes)}{when}.")
    say(console, f"Peak reserved: {format_bytes(prediction.peak_reserved_bytes)}.")
    if results.failed_allocation is not None:
        print_failed_allocation(results.failed_allocation, console, top=top)
    elif findings is not None:
        print_categories(findings.worst.peak, console)
        if top:
            print_lines(findings.worst.peak, console, top)
    say(console)
    print_values(results.values_read, console)
    for note in results.notes:
        if note != NO_TIMES:
            say(console, note)


def null_prediction_json(prediction: NullPrediction) -> dict[str, Any]:
    """The same for programs: the keys of every prediction, as docs/files.md describes them."""
    card, findings, failed = prediction.devices.card, prediction.findings, prediction.results.failed_allocation
    peak = findings.worst.peak if findings is not None else None
    document: dict[str, Any] = {
        **json_header("prediction", VERSION, torch=torch.__version__, command=this_command(), computed=False),
        "method": "null GPU",
        "device": prediction.results.device,
        "peak_allocated_bytes": prediction.peak_allocated_bytes,
        "peak_requested_bytes": prediction.peak_requested_bytes,
        "peak_reserved_bytes": prediction.peak_reserved_bytes,
        "reserved_low_bytes": prediction.peak_reserved_bytes,
        "reserved_high_bytes": prediction.peak_reserved_bytes,
        "context_bytes": CONTEXT_BYTES,
        "fits": prediction.fits,
        "phase": peak.phase if peak is not None else None,
        "by_category": peak.by_category() if peak is not None else {},
        "rows": [asdict(row) for row in peak.rows] if peak is not None else [],
        "by_shape": [],
        "assumptions": list(prediction.results.notes),
        "values_read": None if prediction.results.values_read is None else asdict(prediction.results.values_read),
        "card": {"name": card.label, "total_bytes": card.memory_bytes},
        "usable_bytes": card.usable_bytes,
        "room_bytes": prediction.room_bytes,
        "num_retries": prediction.num_retries,
    }
    if prediction.results.failure is not None:
        document["out_of_memory"] = {
            "size_bytes": failed.asked_bytes if failed is not None else None,
            "step": prediction.results.failure.step,
            "phase": None,
            "module": None,
            "op": None,
            "file": failed.site.file if failed is not None else None,
            "line": failed.site.line if failed is not None else None,
        }
    return document
