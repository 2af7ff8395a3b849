"""The explanation of a snapshot as JSON, for scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tracer.analysis.snapshots.allocator_finding import AllocatorFinding
from tracer.analysis.snapshots.findings import DeviceFinding, SnapshotFinding
from tracer.analysis.snapshots.groups import Group
from tracer.analysis.snapshots.oom import OutOfMemory
from tracer.exporters.allocator_json import allocator_values


def snapshot_json(finding: SnapshotFinding, *, file: str, allocator: Sequence[AllocatorFinding] = ()) -> str:
    """The findings as a JSON text; every device's groups sum to its `peak_requested_bytes`.

    Args:
        finding: What `explain_snapshot` returned.
        file: The snapshot's name, as the person gave it.
        allocator: What `explain_allocator` returned for the same devices.
    """
    modelled = {found.device: {"allocator": allocator_values(found)} for found in allocator}
    devices = [_device(device) | modelled.get(device.device, {}) for device in finding.devices]
    return json.dumps({"file": file, "devices": devices}, indent=2)


def _device(found: DeviceFinding) -> dict[str, Any]:
    peak = found.peak
    return {
        "device": found.device,
        "entries": found.entries,
        "peak_requested_bytes": peak.requested_bytes,
        "peak_allocated_bytes": peak.allocated_bytes,
        "reserved_at_peak_bytes": peak.reserved_bytes,
        "start_requested_bytes": found.start_requested_bytes,
        "end_requested_bytes": found.end_requested_bytes,
        "reserved_end_bytes": found.reserved_end_bytes,
        "oom": [_oom(event) for event in found.oom],
        "groups": [_group(group) for group in peak.groups],
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "bytes": group.bytes,
        "count": group.count,
        "kind": group.kind,
        "frame": group.site.frame,
        "file": group.site.file,
        "line": group.site.line,
        "stack": list(group.stack),
    }


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
        "fits_without_fragmentation": event.fits_without_fragmentation,
        "frame": event.site.frame,
        "file": event.site.file,
        "line": event.site.line,
        "advice": event.advice,
        "groups": [_group(group) for group in event.groups],
    }
