"""A prediction for programs; docs/files.md describes the keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from tracer.capture.sources.source_line import SourceLine
from tracer.exporters.json_documents.header import json_header
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.results.prediction import LargestBatch, Prediction

VERSION = 1


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """Return the answer as values for JSON."""
    sizes, results = prediction.need, prediction.results
    peak = results.findings.worst.peak if results.findings is not None else None
    document: dict[str, Any] = {
        **json_header("prediction", VERSION, torch=torch.__version__, computed=False),
        "method": "null GPU",
        "device": results.device,
        "peak_allocated_bytes": sizes.peak_allocated_bytes,
        "peak_requested_bytes": sizes.peak_requested_bytes,
        "peak_reserved_bytes": sizes.peak_reserved_bytes,
        "context_bytes": CONTEXT_BYTES,
        "fits": prediction.fits,
        "phase": peak.phase if peak is not None else None,
        "by_category": peak.by_category() if peak is not None else {},
        "rows": [asdict(row) for row in peak.rows] if peak is not None else [],
        "assumptions": list(prediction.assumptions),
        "values_read": None if results.values_read is None else asdict(results.values_read),
    }
    if (card := prediction.card) is not None:
        document["card"] = {"name": card.label or None, "total_bytes": card.memory_bytes}
        document["usable_bytes"] = card.usable_bytes
        reserved_bytes = max(sizes.peak_reserved_bytes, prediction.memory.peak_reserved_bytes)
        document["room_bytes"] = card.usable_bytes - reserved_bytes
        document["nccl_least_bytes"] = prediction.nccl.least_bytes
        document["nccl_most_bytes"] = prediction.nccl.most_bytes
        document["num_retries"] = prediction.memory.num_retries
    if (at := prediction.failed_at) is not None:
        document["out_of_memory"] = {"size_bytes": at.size_bytes, "step": at.step, **_line(at.line)}
    if (need := prediction.without_end) is not None:
        document["without_end"] = {"allocated_bytes": need.allocated_bytes, "reserved_bytes": need.reserved_bytes}
    return document


def _line(line: SourceLine | None) -> dict[str, object]:
    return {"file": None, "line": None} if line is None else {"file": line.file, "line": line.line}


def largest_json(largest: LargestBatch) -> dict[str, Any]:
    """Return the keys of `--largest-batch`."""
    size, number = largest.accumulated or (None, None)
    accumulated = None if size is None else {"batch_size": size, "accumulate": number}
    return {"largest_batch": largest.size, "accumulated": accumulated}
