"""watch.json: a watched run for other programs, with the counters of its steps; docs/files.md describes its keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from tracer.answers.answer import answer_values
from tracer.answers.watch_report import OutlivedMemory, WatchReport, answer_of_watch
from tracer.exporters.json_documents.header import json_header, record_values

VERSION = 1
_OOM_KEYS = ("asked_bytes", "device_free_bytes", "cause", "decisive", "advice", "frame", "file", "line")


def watch_values(report: WatchReport) -> dict[str, Any]:
    """Return the document of a report."""
    times = {"time_ns": None} if report.caveat else {}
    events = [asdict(event) | times for event in report.events]
    failed = None
    if report.failed is not None:
        from tracer.exporters.json_documents.snapshot import oom_values

        failed = oom_values(report.failed.event)
    earlier = [report.found_before] if report.found_before is not None else []
    return {
        **json_header("watch", VERSION, torch=torch.__version__, computed=not report.caveat),
        "answer": answer_values(answer_of_watch(report)),
        "device": report.device,
        "event": events[-1],
        "events": events,
        "error": report.error or None,
        "error_file": report.error_line.file if report.error_line is not None else None,
        "error_line": report.error_line.line if report.error_line is not None else None,
        "limit_bytes": report.limit_bytes,
        "allocated_bytes": report.allocated_bytes,
        "reserved_bytes": report.reserved_bytes,
        "findings": asdict(report.steps),
        "out_of_memory": None if failed is None else {name: failed[name] for name in _OOM_KEYS},
        "kept": [_outlived(group) for group in report.outlived],
        "found_before": [
            {
                "event": asdict(one.event) | times,
                "findings": asdict(one.steps),
                "kept": [_outlived(group) for group in one.outlived],
            }
            for one in earlier
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
