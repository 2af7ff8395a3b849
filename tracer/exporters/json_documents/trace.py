"""The explanation of a trace as JSON, for scripts: everything that the screen says."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from tracer.analysis.times.findings import TraceTimes, cause
from tracer.analysis.times.ranks import JobTimes, RankRow
from tracer.analysis.times.step_times import StepTimes
from tracer.exporters.json_documents.header import json_header
from tracer.exporters.json_documents.peak import peak_document
from tracer.results.trace_report import TraceReport
from tracer.units import NS_PER_US

VERSION = 1
_NS = re.compile(r"_ns$")


def trace_json(report: TraceReport) -> dict[str, Any]:
    """Return the JSON of a trace; docs/files.md describes it."""
    computed = False if report.is_of_null_gpu else None
    return {
        **json_header("trace", VERSION, computed=computed),
        "file": report.file,
        "rank": report.rank,
        "notes": list(report.notes),
        "missing": list(report.missing),
        "memory": _memory(report),
        "times": None if report.times is None else times_values(report.times),
    }


def _memory(report: TraceReport) -> dict[str, Any] | None:
    if report.results is None or report.results.findings is None:
        return None
    findings = report.results.findings
    recordings = [cycle.recording for cycle in findings.cycles]
    document = peak_document(findings.peaks, recordings=recordings, origin=report.results.origin)
    return document | {"torch": None}


def times_values(times: TraceTimes) -> dict[str, Any]:
    """Times of a device as JSON values."""
    return {
        "device": times.device,
        "cause": cause(times),
        "work_us": times.work_ns / NS_PER_US,
        "num_streams": len(times.streams),
        "streams": [_in_us(asdict(stream)) for stream in times.streams],
        "other_devices": list(times.other_devices),
        "total": _step(times.total),
        "steps": [_step(step) for step in times.steps],
        "launchers": [_in_us(asdict(row) | row.launcher._asdict()) for row in times.rows],
        "kernels": [_in_us(asdict(row) | row.launcher._asdict()) for row in times.kernels],
    }


def _step(step: StepTimes) -> dict[str, Any]:
    return _in_us(asdict(step))


def _in_us(values: dict[str, Any]) -> dict[str, Any]:
    """Nanoseconds as microseconds, by the names of the keys; the launcher's own keys stand beside them."""
    return {
        _NS.sub("_us", key): value / NS_PER_US if key.endswith("_ns") else value
        for key, value in values.items()
        if key != "launcher"
    }


def trace_job_json(job: JobTimes) -> dict[str, Any]:
    """Return the JSON of several ranks beside each other."""
    slowest = job.slowest
    return {
        **json_header("trace job", VERSION),
        "slowest": None if slowest is None else slowest.times.name,
        "compared_collectives": job.num_compared,
        "left_out_collectives": job.num_left_out,
        "ranks": [_rank(row) for row in job.rows],
        "unreadable": [{"file": file, "problem": problem} for file, problem in job.problems],
    }


def _rank(row: RankRow) -> dict[str, Any]:
    times = row.times
    return {
        "file": times.file,
        "rank": times.rank,
        "device": times.device,
        "peak_bytes": times.peak_bytes,
        "steps": times.num_steps,
        "total": None if times.total is None else _step(times.total),
        "waited_us": row.waited_ns / NS_PER_US,
        "waited_for_us": row.waited_for_ns / NS_PER_US,
        "came_last": row.num_last,
    }
