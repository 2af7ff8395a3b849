"""doctor.json: what a bug report needs of a machine, and nothing that names a person, a host or a folder of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracer.exporters.files import write_json
from tracer.exporters.json_documents.header import json_header
from tracer.exporters.json_documents.public_text import public, public_environment
from tracer.results.doctor import CheckResult, DoctorReport, Status

VERSION = 1


def doctor_json(report: DoctorReport) -> dict[str, Any]:
    """All of it, as values for JSON; docs/files.md describes them."""
    torch = report.about.get("torch")
    header = json_header("doctor", VERSION, torch=str(torch) if torch else None, command=None, computed=report.computed)
    return {
        **header,
        "counts": {status.value: len(report.with_status(status)) for status in Status},
        "about": public(report.about) | {"environment": public_environment()},
        "installed": [_values(check) for check in report.installed],
        "works": [_values(check) for check in report.works],
    }


def write_doctor_json(report: DoctorReport, path: Path) -> None:
    """Write doctor.json."""
    write_json(path, doctor_json(report))


def _values(check: CheckResult) -> dict[str, Any]:
    outcome = check.outcome
    return {
        "name": check.name,
        "status": outcome.status.value,
        "sentence": public(outcome.sentence),
        "mend": public(outcome.mend),
        "seconds": check.seconds,
        "facts": public(outcome.facts),
    }
