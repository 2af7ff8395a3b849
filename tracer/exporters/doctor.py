"""The answers of `doctor`: on the screen, and as doctor.json, which names no person, host or folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from tracer.exporters.json_documents.header import json_header
from tracer.exporters.json_documents.public_text import public, public_environment
from tracer.exporters.screen.text import say
from tracer.results.doctor import CheckResult, DoctorReport, Status
from tracer.units import some

VERSION = 1
_STYLES = {Status.PASS: "green", Status.FAIL: "bold red", Status.SKIP: "yellow"}


def print_doctor(report: DoctorReport, console: Console) -> None:
    """Print the report; a person reads it in a minute."""
    about = report.about
    where = f"{about.get('name') or 'no GPU'}, as {about.get('device', 'the CPU')}"
    say(console, f"torch-timeline {about['program']}, torch {about.get('torch', 'not loaded')}, {where}.")
    if not report.computed:
        say(console, "Null GPU: memory is torch's own, nothing was computed.")
    width = max(len(check.name) for check in report.checks)
    for heading, checks in (("What is here", report.installed), ("What works", report.works)):
        console.print(f"\n{heading}", markup=False)
        _print_checks(checks, width, console)
    console.print("")
    for line in _summary(report):
        say(console, line)


def _print_checks(checks: Sequence[CheckResult], width: int, console: Console) -> None:
    for check in checks:
        console.print(f"  {check.status}", style=_STYLES[check.status], end="", markup=False)
        console.print(f"  {check.name:{width}}  {check.outcome.sentence}", soft_wrap=True, markup=False)
        if check.outcome.mend and check.status is not Status.PASS:
            console.print(f"  {'':{width + 6}}  {check.outcome.mend}", soft_wrap=True, markup=False)


def _summary(report: DoctorReport) -> Iterator[str]:
    failures = report.with_status(Status.FAIL)
    counts = ", ".join(f"{len(report.with_status(status))} {status}" for status in Status)
    yield f"{some(len(report.checks), 'check')}: {counts}."
    if failures:
        yield f"Mend first: {', '.join(check.name for check in failures)}."


def doctor_json(report: DoctorReport) -> dict[str, Any]:
    """All of it, as values for JSON; docs/files.md describes them."""
    torch = report.about.get("torch")
    header = json_header("doctor", VERSION, torch=str(torch) if torch else None, computed=report.computed)
    return {
        **header,
        "command": None,
        "counts": {status.value: len(report.with_status(status)) for status in Status},
        "about": public(report.about) | {"environment": public_environment()},
        "installed": [_values(check) for check in report.installed],
        "works": [_values(check) for check in report.works],
    }


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
