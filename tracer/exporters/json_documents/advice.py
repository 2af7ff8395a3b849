"""advice.json: what would lower the peak, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tracer.changes.recommendation import AdviceReport
from tracer.command_line import this_command
from tracer.exporters.files import write_json
from tracer.exporters.json_documents.header import json_header, record_values

VERSION = 1


def advice_values(report: AdviceReport, *, computed: bool) -> dict[str, Any]:
    """All of it, as values for JSON; docs/files.md describes them."""
    return {
        **json_header("advice", VERSION, torch=torch.__version__, command=this_command(), computed=computed),
        **record_values(report),
        "fits": report.fits if report.target_bytes is not None else None,
        "not_tried": [{"change": change, "reason": reason} for change, reason in report.not_tried],
    }


def write_advice_json(report: AdviceReport, path: Path, *, computed: bool = True) -> None:
    """Write advice.json; arguments as of `advice_values`."""
    write_json(path, advice_values(report, computed=computed))
