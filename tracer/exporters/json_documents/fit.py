"""fit.json: the changes with which a script fits; `run --apply` reads it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tracer.errors import UsageError
from tracer.exporters.document import Source, read_document
from tracer.exporters.json_documents.header import json_header
from tracer.results.fit import FitReport

_VERSION = 1
_FORMAT = "torch-timeline fit"
_MAX_BYTES = 1 << 24
_HINT = "Name the fit.json that `fit --save-dir` wrote, or the changes themselves."


def fit_values(report: FitReport) -> dict[str, Any]:
    """All of it, as values for JSON; docs/files.md describes them."""
    return {
        **json_header("fit", _VERSION, torch=torch.__version__, computed=False),
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
    document.check_format(_FORMAT, _VERSION, "what fit wrote")
    names: tuple[str, ...] | None = document.read("apply", tuple[str, ...] | None)
    if names is None:
        raise UsageError(f"{path} says that nothing fits.", hint="Ask fit about a larger GPU, or a smaller batch.")
    return names
