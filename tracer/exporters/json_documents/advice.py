"""advice.json and fit.json: what would lower the peak, and with which changes a script fits; `run --apply` reads it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tracer.changes.recommendation import AdviceReport
from tracer.errors import UsageError
from tracer.exporters.document import Document, Source, read_document
from tracer.exporters.json_documents.header import json_header, record_values
from tracer.results.fit import FitReport

VERSION = 1


def advice_values(report: AdviceReport, *, computed: bool) -> dict[str, Any]:
    """All of it, as values for JSON; docs/files.md describes them."""
    return {
        **json_header("advice", VERSION, torch=torch.__version__, computed=computed),
        **record_values(report),
        "fits": report.fits if report.target_bytes is not None else None,
        "not_tried": [{"change": change, "reason": reason} for change, reason in report.not_tried],
    }


_FIT_VERSION = 1
_FORMAT = "torch-timeline fit"
_MAX_BYTES = 1 << 24
_HINT = "Name the fit.json that `fit --save-dir` wrote, or the changes themselves."


def fit_values(report: FitReport) -> dict[str, Any]:
    """All of it, as values for JSON; docs/files.md describes them."""
    return {
        **json_header("fit", _FIT_VERSION, torch=torch.__version__, computed=False),
        "device": report.device,
        "usable_bytes": report.usable_bytes,
        "script": list(report.script),
        "trials": [asdict(trial) for trial in report.trials],
        "apply": None if report.best is None else list(report.best.apply),
        "arguments": [] if report.best is None else list(report.best.arguments),
    }


def read_fit_json(path: Path) -> tuple[str, ...]:
    """Names of the changes with which the script fits."""
    document = read_document(path, Source(str(path), UsageError, _HINT), at_most=_MAX_BYTES, hint=_HINT)
    document.check_format(_FORMAT, _FIT_VERSION, "what fit wrote")
    if (names := document.or_none("apply", Document.texts)) is None:
        raise UsageError(f"{path} says that nothing fits.", hint="Ask fit about a larger GPU, or a smaller batch.")
    return names
