"""The explanation of a snapshot as JSON, for scripts: everything that the screen says."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tracer.answers.allocator.allocator_finding import AllocatorFinding, WhatIf
from tracer.answers.allocator.reserved import Reserved
from tracer.answers.answer import answer_values
from tracer.answers.answer_of_snapshot import answer_of_snapshot
from tracer.answers.findings import ReplayedFindings, SnapshotFindings
from tracer.answers.out_of_memory import OutOfMemory
from tracer.blocks.from_snapshot.timeline import step_levels
from tracer.exporters.json_documents.header import json_header, json_value, record_values

VERSION = 1
_NOT_IN_REPRODUCED = ("num_extra", "releases_by_program", "refused_bytes", "has_counters", "moments")


def snapshot_json(findings: SnapshotFindings, *, file: str) -> dict[str, Any]:
    """Return the JSON of a snapshot's findings; every device's groups sum to its `peak_requested_bytes`."""
    return {
        # A snapshot does not say which torch made it.
        **json_header("snapshot", VERSION),
        "file": file,
        "answer": answer_values(answer_of_snapshot(findings, file=file)),
        "notes": list(findings.notes),
        "pinned_bytes": findings.pinned_bytes,
        "worst_device": findings.worst.source.state.device if findings.parts else None,
        "devices": list(map(_device, findings.parts)),
    }


def _device(found: ReplayedFindings) -> dict[str, Any]:
    device, peak, tried = found.source, found.peak, found.allocator
    at_peak, at_end = peak.fragmentation, device.end_memory
    start_bytes, end_bytes = device.replay.requested_bytes[[0, -1]].tolist()
    return {
        "device": device.state.device,
        "entries": device.num_events,
        "first_time_us": device.first_time_us if device.first_time_us >= 0 else None,
        "notes": list(found.notes),
        "peak_entry": peak.position,
        "peak_time_us": peak.time_us if peak.time_us >= 0 else None,
        "peak_phase": peak.phase or None,
        "peak_requested_bytes": peak.peak_bytes,
        "peak_allocated_bytes": None if at_peak is None else at_peak.allocated_bytes,
        "reserved_at_peak_bytes": None if at_peak is None else at_peak.reserved_bytes,
        "before_recording_bytes": peak.before_recording_bytes,
        "start_requested_bytes": start_bytes,
        "end_requested_bytes": end_bytes,
        "growth_bytes": end_bytes - start_bytes,
        "reserved_end_bytes": None if at_end is None else at_end.reserved_bytes,
        "fragmentation_at_peak": None if at_peak is None else asdict(at_peak),
        "fragmentation_at_end": None if at_end is None else asdict(at_end),
        "by_kind": json_value(peak.by_kind),
        "by_annotation": json_value(peak.by_annotation) if peak.has_annotations else [],
        "by_name": json_value(peak.by_name) if peak.has_names else [],
        "by_stream": json_value(peak.by_stream),
        "oom": [{**oom_values(event), "groups": json_value(event.groups)} for event in found.failures],
        "groups": json_value(peak.rows),
        "never_freed": json_value(found.never_freed),
        "steps": json_value(step_levels(device)),
        **({} if tried is None else {"allocator": allocator_values(tried)}),
    }


def oom_values(event: OutOfMemory) -> dict[str, Any]:
    """A failed allocation without what was in use then."""
    values = record_values(event, without=("groups", "why", "change", "allocators_advice", "in_evaluation"))
    return {**values, "advice": event.advice, "decisive": event.decisive or None}


def allocator_values(finding: AllocatorFinding) -> dict[str, Any]:
    """A device's allocator findings as JSON values; each moment's rows sum to its `reserved_bytes`."""
    modelled = finding.modelled
    return {
        "settings": asdict(modelled.settings) if modelled is not None else None,
        "reproduced": {
            "is_exact": modelled.reproduction.is_exact,
            **record_values(modelled.reproduction, without=_NOT_IN_REPRODUCED),
        }
        if modelled is not None
        else None,
        "agreement": list(finding.agreement),
        "reserved_at_peak": _reserved(finding.at_peak) if finding.at_peak is not None else None,
        "reserved_at_end": _reserved(finding.at_end),
        "what_if": _what_if(finding.what_if) if finding.what_if is not None else None,
        "first_changes": [asdict(change) for change in finding.first.changes] if finding.first is not None else None,
    }


def _reserved(reserved: Reserved) -> dict[str, Any]:
    return {
        "entry": reserved.entry,
        "reserved_bytes": reserved.bytes,
        "rows": json_value(reserved.rows),
    }


def _what_if(what_if: WhatIf) -> dict[str, Any]:
    # A recording that ends by a failed request lacks the requests that follow it where it is served.
    is_known = what_if.gpu_memory is not None and not (what_if.runs and what_if.ends_by_failure)
    return {
        "gpu_memory_bytes": what_if.gpu_memory,
        "runs": what_if.runs if is_known else None,
        "ends_by_failure": what_if.ends_by_failure,
        "starts_clean": what_if.starts_clean,
        "capacity_bytes": what_if.capacity,
        "recorded_peak_bytes": what_if.recorded_peak_bytes,
        "num_failed": what_if.num_failed,
        "rows": [{**record_values(row, without=("outcome",)), **record_values(row.outcome)} for row in what_if.rows],
    }
