"""The answers of `doctor` on the screen: a line for each check, and below it the command that mends it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from tracer.exporters.screen.text import say
from tracer.results.doctor import CheckResult, DoctorReport, Status
from tracer.units import some

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
