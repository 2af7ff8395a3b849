"""Moments of a snapshot's recording, as values for JSON."""

from __future__ import annotations

from typing import Any

from tracer.analysis.snapshots.moments import Between, Held, LastBefore, Moments
from tracer.exporters.json_documents.snapshot import group_values


def moments_values(found: Moments) -> dict[str, Any]:
    """What was asked about one device, and its steps."""
    return {
        "held": [_held(moment) for moment in found.held],
        "between": _between(found.between) if found.between is not None else None,
        "before_oom": _last(found.before_oom) if found.before_oom is not None else None,
        "steps": [
            {"entry": step.entry, "end_bytes": step.end_bytes, "peak_bytes": step.peak_bytes} for step in found.steps
        ],
    }


def _held(found: Held) -> dict[str, Any]:
    return {
        "entry": found.entry,
        "time_us": found.time_us if found.time_us >= 0 else None,
        "phase": found.phase or None,
        "requested_bytes": found.requested_bytes,
        "reserved_bytes": found.reserved_bytes,
        "groups": [group_values(group) for group in found.groups],
    }


def _between(found: Between) -> dict[str, Any]:
    return {
        "first_entry": found.first,
        "last_entry": found.last,
        "first_bytes": found.first_bytes,
        "last_bytes": found.last_bytes,
        "came": [group_values(group) for group in found.came],
        "went": [group_values(group) for group in found.went],
    }


def _last(found: LastBefore) -> dict[str, Any]:
    return {
        "entry": found.entry,
        "first_entry": found.first,
        "bytes": found.bytes,
        "groups": [group_values(group) for group in found.groups],
    }
