"""watch.json: a watched run's answer as JSON, for scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from tracer.exporters.json_documents.header import json_header, record_values
from tracer.exporters.json_documents.snapshot import oom_values
from tracer.results.watch_report import Event, OutlivedMemory, WatchReport

VERSION = 1
_OOM_KEYS = ("asked_bytes", "device_free_bytes", "cause", "decisive", "advice", "frame", "file", "line")


def watch_values(report: WatchReport) -> dict[str, Any]:
    """The fields that docs/files.md describes."""
    return {
        **json_header("watch", VERSION, torch=torch.__version__, computed=not report.caveat),
        "device": report.device,
        "event": _event(report.event, report),
        "events": [_event(event, report) for event in report.events],
        "error": report.error or None,
        "error_file": report.error_line.file if report.error_line is not None else None,
        "error_line": report.error_line.line if report.error_line is not None else None,
        "limit_bytes": report.limit_bytes,
        "allocated_bytes": report.allocated_bytes,
        "reserved_bytes": report.reserved_bytes,
        **_findings(report),
        "found_before": [
            {"event": _event(earlier.event, report), **_findings(earlier)} for earlier in report.found_before
        ],
        "by_kind": report.by_kind(),
        "in_use": [record_values(group, without=("is_before_recording", "stack")) for group in report.groups],
        "notes": list(report.notes),
        "values_read": None if report.values_read is None else asdict(report.values_read),
        "settings": {name: str(value) for name, value in report.settings.items()},
        "steps": {
            name: getattr(report.columns, name).tolist()
            for name in report.columns.__slots__
            if name != "time_ns" or not report.caveat
        },
    }


def _findings(report: WatchReport) -> dict[str, Any]:
    failed = report.out_of_memory
    return {
        "findings": asdict(report.steps),
        "out_of_memory": None if failed is None else {name: oom_values(failed)[name] for name in _OOM_KEYS},
        "kept": [_outlived(group) for group in report.outlived],
    }


def _event(event: Event, report: WatchReport) -> dict[str, Any]:
    return asdict(event) | ({"time_ns": None} if report.caveat else {})


def _outlived(group: OutlivedMemory) -> dict[str, Any]:
    return {
        "what": group.what,
        "frame": group.frame or None,
        "file": group.line.file if group.line is not None else None,
        "line": group.line.line if group.line is not None else None,
        "bytes": group.bytes,
        "count": group.count,
        "bytes_per_step": group.bytes_per_step,
        "holders": [
            {
                "path": name.holder.path,
                "variable": name.holder.variable,
                "also": list(name.holder.also),
                "num_looked_at": len(name.holder.addresses),
                "graph_file": name.graph_line.file if name.graph_line is not None else None,
                "graph_line": name.graph_line.line if name.graph_line is not None else None,
            }
            for name in group.holders
        ],
    }
