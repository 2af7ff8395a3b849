"""A report of a watched run, for tests that are about one part of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracer.answers.step_findings import StepFindings
from tracer.answers.watch_report import Event, WatchReport
from tracer.capture.step_columns import StepTable


def report_of(**given: Any) -> WatchReport:
    """A report that says nothing, but for what is given."""
    empty = WatchReport(
        device="cuda:0",
        events=(Event("asked for", 3, 5),),
        error="",
        error_line=None,
        columns=StepTable().columns(),
        steps=StepFindings(0),
        limit_bytes=None,
        allocated_bytes=None,
        reserved_bytes=None,
        failed=None,
        groups=(),
        outlived=(),
        notes=(),
        settings={},
    )
    return replace(empty, **given)
