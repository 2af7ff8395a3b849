"""Moments of a snapshot's recording, as values for JSON."""

from __future__ import annotations

from typing import Any

from tracer.analysis.snapshots.moments import Between, Held, LastBefore, Moments
from tracer.exporters.json_documents.snapshot import group_values


def moments_values(moments: Moments) -> dict[str, Any]:
    """What was asked about one device, and its steps."""
    return {
        "held": [_held(moment) for moment in moments.held],
        "between": _between(moments.between) if moments.between is not None else None,
        "before_oom": _last(moments.before_oom) if moments.before_oom is not None else None,
        "steps": [
            {"entry": step.entry, "end_bytes": step.end_bytes, "peak_bytes": step.peak_bytes} for step in moments.steps
        ],
    }


def _held(held: Held) -> dict[str, Any]:
    return {
        "entry": held.entry,
        "time_us": held.time_us if held.time_us >= 0 else None,
        "phase": held.phase or None,
        "requested_bytes": held.requested_bytes,
        "reserved_bytes": held.reserved_bytes,
        "groups": [group_values(group) for group in held.groups],
    }


def _between(between: Between) -> dict[str, Any]:
    return {
        "first_entry": between.first,
        "last_entry": between.last,
        "first_bytes": between.first_bytes,
        "last_bytes": between.last_bytes,
        "came": [group_values(group) for group in between.came],
        "went": [group_values(group) for group in between.went],
    }


def _last(last: LastBefore) -> dict[str, Any]:
    return {
        "entry": last.entry,
        "first_entry": last.first,
        "bytes": last.bytes,
        "groups": [group_values(group) for group in last.groups],
    }
