"""fit.json: which changes of a script were tried, and with which it fits; `run --apply` reads it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tracer.command_line import this_command
from tracer.errors import UsageError
from tracer.exporters.files import write_atomically
from tracer.exporters.json_documents.header import json_header
from tracer.results.fit import FitReport

VERSION = 1
_FORMAT = "torch-timeline fit"
_MAX_BYTES = 1 << 24
_HINT = "Name the fit.json that `fit --save-dir` wrote, or the changes themselves."


def fit_values(report: FitReport) -> dict[str, Any]:
    """All of it, as values for JSON; docs/files.md describes them."""
    return {
        **json_header("fit", VERSION, torch=torch.__version__, command=this_command(), computed=False),
        "device": report.device,
        "usable_bytes": report.usable_bytes,
        "script": list(report.script),
        "trials": [asdict(trial) for trial in report.trials],
        "apply": None if report.apply is None else list(report.apply),
        "arguments": list(report.arguments),
    }


def write_fit_json(report: FitReport, path: Path) -> None:
    """Write fit.json, the trials of a script's changes.

    Raises:
        OutputError: It cannot be written.
    """
    write_atomically(path, json.dumps(fit_values(report), indent=1) + "\n")


def read_fit_json(path: Path) -> tuple[str, ...]:
    """Names of the changes with which the script fits.

    Raises:
        UsageError: It cannot be read, is something else, or says that nothing fits.
    """
    try:
        if path.is_file() and path.stat().st_size > _MAX_BYTES:
            raise UsageError(f"{path} is too large to be what fit wrote.", hint=_HINT)
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}.", hint=_HINT) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON that can be read.", hint=_HINT) from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise UsageError(f"{path} is not what fit wrote.", hint=_HINT)
    if document.get("version") != VERSION:
        raise UsageError(f"{path} is of another version of this program.", hint="Make it anew with fit.")
    names = document.get("apply")
    if names is None:
        raise UsageError(f"{path} says that nothing fits.", hint="Ask fit about a larger GPU, or a smaller batch.")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path} is damaged: its changes are no names.", hint=_HINT)
    return tuple(names)
