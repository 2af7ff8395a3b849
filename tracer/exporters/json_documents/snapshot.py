"""The explanation of a snapshot as JSON, for scripts: everything that the screen says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tracer.allocator.reproduce import Reproduction
from tracer.analysis.snapshots.allocator_finding import AllocatorFinding
from tracer.analysis.snapshots.findings import DeviceFinding, SnapshotFinding
from tracer.analysis.snapshots.groups import CallerShare, Group
from tracer.analysis.snapshots.moments import Between, Held, LastBefore, Moments
from tracer.analysis.snapshots.oom import OutOfMemory
from tracer.analysis.snapshots.reserved import Reserved
from tracer.analysis.snapshots.what_if import WhatIf
from tracer.exporters.json_documents.header import json_header

VERSION = 1


def snapshot_json(
    finding: SnapshotFinding,
    *,
    file: str,
    allocator: Sequence[AllocatorFinding] = (),
    more: Mapping[int, Mapping[str, Any]] | None = None,
    command: str | None = None,
) -> str:
    """The findings as a JSON text; every device's groups sum to its `peak_requested_bytes`."""
    modelled = {
        allocator_finding.device: {"allocator": allocator_values(allocator_finding)} for allocator_finding in allocator
    }
    devices = [
        _device(device) | dict((more or {}).get(device.device, {})) | modelled.get(device.device, {})
        for device in finding.devices
    ]
    worst = finding.worst
    values = {
        # A snapshot does not say which torch made it.
        **json_header("snapshot", VERSION, torch=None, command=command),
        "file": file,
        "notes": list(finding.notes),
        "worst_device": None if worst is None else finding.devices[worst].device,
        "devices": devices,
    }
    return json.dumps(values, indent=2)


def _device(device: DeviceFinding) -> dict[str, Any]:
    peak = device.peak
    return {
        "device": device.device,
        "entries": device.entries,
        "first_time_us": device.first_time_us if device.first_time_us >= 0 else None,
        "notes": list(device.notes),
        "peak_entry": peak.entry,
        "peak_time_us": peak.time_us if peak.time_us >= 0 else None,
        "peak_phase": peak.phase or None,
        "peak_requested_bytes": peak.requested_bytes,
        "peak_allocated_bytes": peak.allocated_bytes,
        "reserved_at_peak_bytes": peak.reserved_bytes,
        "before_recording_bytes": peak.before_recording_bytes,
        "start_requested_bytes": device.start_requested_bytes,
        "end_requested_bytes": device.end_requested_bytes,
        "growth_bytes": device.growth_bytes,
        "reserved_end_bytes": device.reserved_end_bytes,
        "fragmentation_at_peak": asdict(peak.fragmentation),
        "fragmentation_at_end": asdict(device.end_fragmentation),
        "by_kind": [asdict(share) for share in peak.by_kind],
        "by_annotation": [asdict(share) for share in peak.by_annotation] if peak.has_annotations else [],
        "by_stream": [asdict(share) for share in peak.by_stream],
        "oom": [
            {**oom_values(event), "groups": [group_values(group) for group in event.groups]} for event in device.oom
        ],
        "groups": [group_values(group) for group in peak.groups],
        "never_freed": [group_values(group) for group in device.never_freed],
    }


def group_values(group: Group) -> dict[str, Any]:
    """A group of blocks."""
    return {
        "bytes": group.bytes,
        "count": group.count,
        "kind": group.kind.words,
        "evidence": group.evidence,
        "is_before_recording": group.is_before_recording,
        "frame": group.site.frame,
        "file": group.site.file,
        "line": group.site.line,
        "stack": list(group.stack),
        "callers": [_caller(share) for share in group.callers],
    }


def _caller(share: CallerShare) -> dict[str, Any]:
    site = share.site
    where = {"frame": None, "file": None, "line": None} if site is None else asdict(site)
    return {"bytes": share.bytes, "count": share.count, **where}


def oom_values(event: OutOfMemory) -> dict[str, Any]:
    """A failed allocation without what was in use then."""
    return {
        "entry": event.entry,
        "time_us": event.time_us,
        "asked_bytes": event.asked_bytes,
        "device_free_bytes": event.device_free_bytes,
        "requested_bytes": event.requested_bytes,
        "allocated_bytes": event.allocated_bytes,
        "reserved_bytes": event.reserved_bytes,
        "unallocated_bytes": event.unallocated_bytes,
        "largest_free_bytes": event.largest_free_bytes,
        "usable_free_bytes": event.usable_free_bytes,
        "usable_largest_free_bytes": event.usable_largest_free_bytes,
        "pending_free_bytes": event.pending_free_bytes,
        "fits_without_fragmentation": event.fits_without_fragmentation,
        "frame": event.site.frame,
        "file": event.site.file,
        "line": event.site.line,
        "stack": list(event.stack),
        "cause": event.cause,
        "decisive": event.decisive or None,
        "advice": event.advice,
    }


def moments_values(moments: Moments) -> dict[str, Any]:
    """The moments of a device that somebody asked about, and its steps."""
    return {
        "held": [_held(moment) for moment in moments.held],
        "between": _between(moments.between) if moments.between is not None else None,
        "before_oom": _last(moments.before_oom) if moments.before_oom is not None else None,
        "steps": [asdict(step) for step in moments.steps],
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


def allocator_values(finding: AllocatorFinding) -> dict[str, Any]:
    """A device's allocator findings as JSON values; each moment's rows sum to its `reserved_bytes`."""
    modelled = finding.modelled
    return {
        "settings": asdict(modelled.settings) if modelled is not None else None,
        "reproduced": _reproduced(modelled.reproduction) if modelled is not None else None,
        "agreement": list(finding.agreement),
        "reserved_at_peak": _reserved(finding.at_peak) if finding.at_peak is not None else None,
        "reserved_at_end": _reserved(finding.at_end),
        "what_if": _what_if(finding.what_if) if finding.what_if is not None else None,
        "first_changes": [asdict(change) for change in finding.first.changes] if finding.first is not None else None,
    }


def _reproduced(reproduction: Reproduction) -> dict[str, Any]:
    kinds = ("addresses", "segments", "releases", "failures", "end_segments", "end_blocks")
    return {
        "is_exact": reproduction.is_exact,
        **{kind: asdict(getattr(reproduction, kind)) for kind in kinds},
        "recorded_peak_bytes": reproduction.recorded_peak_bytes,
        "peak_bytes": reproduction.peak_bytes,
        "first_difference": reproduction.first_difference,
        "given_up_at": reproduction.given_up_at,
        "num_retries": reproduction.num_retries,
    }


def _reserved(reserved: Reserved) -> dict[str, Any]:
    return {
        "entry": reserved.entry,
        "reserved_bytes": reserved.bytes,
        "rows": [asdict(row) for row in reserved.rows],
        "held_free_by": [
            {**asdict(holder), "sites": [asdict(site) for site in holder.sites]} for holder in reserved.holders
        ],
    }


def _what_if(what_if: WhatIf) -> dict[str, Any]:
    return {
        "gpu_memory_bytes": what_if.gpu_memory,
        "runs": what_if.runs if what_if.gpu_memory is not None else None,
        "starts_clean": what_if.starts_clean,
        "capacity_bytes": what_if.capacity,
        "recorded_peak_bytes": what_if.recorded_peak_bytes,
        "num_failed": what_if.num_failed,
        "not_worth": list(what_if.not_worth),
        "search_step_bytes": what_if.step_bytes,
        "rows": [_row(**asdict(row)) for row in what_if.rows],
    }


def _row(settings: str, outcome: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"settings": settings, **outcome, **more}
