"""A prediction for programs, by rehearsal or by the null GPU; docs/files.md describes the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from tracer.analysis.profiles.findings import Findings
from tracer.analysis.snapshots.sites import Site
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.values_read import ValuesRead
from tracer.exporters.json_documents.header import json_header, this_command
from tracer.null_gpu.cards import CONTEXT_BYTES, Card
from tracer.rehearsal.device_memory import DeviceMemory
from tracer.results.prediction import LargestBatch, NullPrediction, Prediction

VERSION = 1


def prediction_json(prediction: Prediction | NullPrediction) -> dict[str, Any]:
    """The answer of either, under the same keys."""
    return _of_null_gpu(prediction) if isinstance(prediction, NullPrediction) else _of_rehearsal(prediction)


def _of_rehearsal(prediction: Prediction) -> dict[str, Any]:
    document = _document(
        "rehearsal",
        prediction.rehearsal.device,
        prediction.unlimited,
        findings=prediction.findings,
        card=prediction.card,
        num_retries=prediction.memory.num_retries,
        fits=prediction.fits,
        reserved_bytes=(prediction.spread.low_bytes, prediction.spread.high_bytes),
        by_shape=[asdict(need) | {"inputs": list(need.inputs)} for need in prediction.by_shape],
        assumptions=prediction.assumptions,
    )
    if (at := prediction.failed_at) is not None and (failure := prediction.memory.failure) is not None:
        place = {"step": at.step, "phase": at.phase, "module": at.module or None, "op": at.op or None}
        document["out_of_memory"] = {"size_bytes": failure.size_bytes, **place, **_line(at.line)}
    return document


def _of_null_gpu(prediction: NullPrediction) -> dict[str, Any]:
    results, failed = prediction.results, prediction.results.failed_allocation
    document = _document(
        "null GPU",
        results.device,
        prediction,
        findings=prediction.findings,
        card=prediction.devices.card,
        num_retries=prediction.num_retries,
        fits=prediction.fits,
        reserved_bytes=(prediction.peak_reserved_bytes,) * 2,
        assumptions=results.notes,
        values_read=results.values_read,
    )
    if results.failure is not None:
        place = {"step": results.failure.step, "phase": None, "module": None, "op": None}
        size_bytes = failed.asked_bytes if failed is not None else None
        document["out_of_memory"] = {
            "size_bytes": size_bytes,
            **place,
            **_line(failed.site if failed is not None else None),
        }
    return document


def _document(
    method: str,
    device: str,
    sizes: DeviceMemory | NullPrediction,
    *,
    findings: Findings | None,
    card: Card | None,
    num_retries: int,
    fits: bool | None,
    reserved_bytes: tuple[int, int],
    assumptions: Sequence[str],
    by_shape: Sequence[dict[str, Any]] = (),
    values_read: ValuesRead | None = None,
) -> dict[str, Any]:
    peak = findings.worst.peak if findings is not None else None
    document: dict[str, Any] = {
        **json_header("prediction", VERSION, torch=torch.__version__, command=this_command(), computed=False),
        "method": method,
        "device": device,
        "peak_allocated_bytes": sizes.peak_allocated_bytes,
        "peak_requested_bytes": sizes.peak_requested_bytes,
        "peak_reserved_bytes": sizes.peak_reserved_bytes,
        "reserved_low_bytes": reserved_bytes[0],
        "reserved_high_bytes": reserved_bytes[1],
        "context_bytes": CONTEXT_BYTES,
        "fits": fits,
        "phase": peak.phase if peak is not None else None,
        "by_category": peak.by_category() if peak is not None else {},
        "rows": [asdict(row) for row in peak.rows] if peak is not None else [],
        "by_shape": list(by_shape),
        "assumptions": list(assumptions),
        "values_read": None if values_read is None else asdict(values_read),
    }
    if card is not None:
        document["card"] = {"name": card.label or None, "total_bytes": card.memory_bytes}
        document["usable_bytes"] = card.usable_bytes
        document["room_bytes"] = card.usable_bytes - sizes.peak_reserved_bytes
        document["num_retries"] = num_retries
    return document


def _line(line: SourceLine | Site | None) -> dict[str, object]:
    return {"file": None, "line": None} if line is None else {"file": line.file, "line": line.line}


def largest_json(largest: LargestBatch) -> dict[str, Any]:
    """The largest batch that fits."""
    size, number = largest.accumulated or (None, None)
    accumulated = None if size is None else {"batch_size": size, "accumulate": number}
    return {"largest_batch": largest.batch_size, "accumulated": accumulated}
