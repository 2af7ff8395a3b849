"""The explanation of a snapshot as JSON, for scripts: everything that the screen says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tracer.analysis.snapshots.allocator_finding import AllocatorFinding
from tracer.analysis.snapshots.callers import CallerShare
from tracer.analysis.snapshots.findings import DeviceFinding, SnapshotFinding
from tracer.analysis.snapshots.groups import Group
from tracer.analysis.snapshots.oom import OutOfMemory
from tracer.exporters.json_documents.allocator import allocator_values
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
    """The findings as a JSON text; every device's groups sum to its `peak_requested_bytes`.

    Args:
        finding: What `explain_replayed` returned.
        file: The snapshot's name, as the person gave it.
        allocator: What `explain_allocator` returned for the same devices.
        more: Other values of a device, by its index.
        command: The command that made the document.
    """
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
        "oom": [_oom(event) for event in device.oom],
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


def _oom(event: OutOfMemory) -> dict[str, Any]:
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
        "advice": event.advice,
        "groups": [group_values(group) for group in event.groups],
    }
