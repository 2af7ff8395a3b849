"""A prediction for programs, and fit.json, which `run --apply` reads; docs/files.md describes the keys."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from tracer.answers.answer import answer_values
from tracer.answers.answer_of_fit import answer_of_fit
from tracer.answers.answer_of_prediction import answer_of_prediction
from tracer.answers.prediction import FitReport, Prediction
from tracer.errors import UsageError
from tracer.exporters.document import Source, read_document
from tracer.exporters.json_documents.header import json_header
from tracer.null_gpu.build import torch_build, torch_folder
from tracer.null_gpu.cards import CONTEXT_BYTES

VERSION = 1


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """Return the document of a prediction; docs/files.md describes its keys."""
    sizes, results = prediction.need, prediction.results
    peak = results.findings.worst.peak if results.findings is not None else None
    document: dict[str, Any] = {
        **json_header("prediction", VERSION, torch=torch_build(torch_folder()).version, computed=False),
        "answer": answer_values(answer_of_prediction(prediction)),
        "method": "null GPU",
        "device": results.device,
        "peak_allocated_bytes": sizes.peak_allocated_bytes,
        "peak_requested_bytes": sizes.peak_requested_bytes,
        "peak_reserved_bytes": sizes.peak_reserved_bytes,
        "context_bytes": CONTEXT_BYTES,
        "fits": prediction.fits,
        "phase": peak.phase if peak is not None else None,
        "by_category": peak.by_category() if peak is not None else {},
        "rows": [row.values() for row in peak.rows] if peak is not None else [],
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
        line = {"file": None, "line": None} if at.line is None else {"file": at.line.file, "line": at.line.line}
        document["out_of_memory"] = {"size_bytes": at.size_bytes, "step": at.step, **line}
    if (need := prediction.without_end) is not None:
        document["without_end"] = {"allocated_bytes": need.allocated_bytes, "reserved_bytes": need.reserved_bytes}
    return document


_FIT_VERSION = 1
_FIT_FORMAT = "torch-timeline fit"
_NOT_SHOWN = ("uses",)  # Addresses of a run that is over
_MAX_BYTES = 1 << 24
_HINT = "Name the fit.json that `fit --save-dir` wrote, or the changes themselves."


def fit_values(report: FitReport) -> dict[str, Any]:
    """Return the document of a search for what fits; docs/files.md describes its keys."""
    return {
        **json_header("fit", _FIT_VERSION, torch=torch_build(torch_folder()).version, computed=False),
        "answer": answer_values(answer_of_fit(report)),
        "device": report.device,
        "usable_bytes": report.usable_bytes,
        "script": list(report.script),
        "trials": [
            {key: value for key, value in asdict(trial).items() if key not in _NOT_SHOWN} for trial in report.trials
        ],
        "apply": None if report.best is None else list(report.best.apply),
        "arguments": [] if report.best is None else list(report.best.arguments),
    }


def read_fit_json(path: Path) -> tuple[str, ...]:
    """Names of the changes with which the script fits."""
    document = read_document(path, Source(str(path), UsageError, _HINT), at_most=_MAX_BYTES, hint=_HINT)
    document.check_format(_FIT_FORMAT, _FIT_VERSION, "what fit wrote")
    names: tuple[str, ...] | None = document.read("apply", tuple[str, ...] | None)
    if names is None:
        raise UsageError(f"{path} says that nothing fits.", hint="Ask fit about a larger GPU, or a smaller batch.")
    return names
