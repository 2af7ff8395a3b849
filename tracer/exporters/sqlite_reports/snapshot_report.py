"""The memory report of an allocator snapshot: the tables that Skyline's readers know, and others beside them."""

from __future__ import annotations

import json
from pathlib import Path

from tracer.analysis.snapshots.memory_report import SnapshotReport
from tracer.analysis.snapshots.oom import OutOfMemory
from tracer.exporters.sqlite_reports.memory_report import (
    ACTIVATION,
    TABLES,
    USER_VERSION,
    WEIGHT,
    entry_rows,
    table,
    write_database,
)

FORMAT, VERSION = "torch-timeline snapshot report", 1  # Of the tables that are not the originals'
EXTRA_TABLES = (
    table("entry_counts", "entry_type", "entry_id", "num_blocks", "PRIMARY KEY (entry_type, entry_id)"),
    table("peak_by_category", "category TEXT PRIMARY KEY", "size_bytes"),
    table(
        "devices", "device INTEGER PRIMARY KEY", "is_reported", "entries", "peak_entry", "peak_time_us",
        "peak_requested_bytes", "peak_allocated_bytes", "reserved_at_peak_bytes", "before_recording_bytes",
        "start_requested_bytes", "end_requested_bytes", "reserved_end_bytes",
    ),
    table(
        "peak_groups", "id INTEGER PRIMARY KEY", "device", "kind TEXT NOT NULL", "evidence TEXT NOT NULL",
        "is_before_recording", "size_bytes", "num_blocks", "function TEXT NOT NULL", "file_path TEXT",
        "line_number INTEGER", "stack TEXT NOT NULL",
    ),
    table(
        "out_of_memory", "id INTEGER PRIMARY KEY", "device", "entry", "time_us", "asked_bytes",
        "device_free_bytes INTEGER", "requested_bytes", "allocated_bytes", "reserved_bytes", "unallocated_bytes",
        "largest_free_bytes", "usable_free_bytes", "pending_free_bytes", "fits_without_fragmentation",
        "function TEXT NOT NULL", "file_path TEXT", "line_number INTEGER", "cause TEXT NOT NULL",
        "advice TEXT NOT NULL",
    ),
    table("timeline", "entry INTEGER PRIMARY KEY", "time_us", "requested_bytes", "allocated_bytes", "reserved_bytes"),
)  # fmt: skip


def write_snapshot_report(report: SnapshotReport, path: Path) -> None:
    """Write the report; a file that is there is replaced."""
    entries = (*report.weights, *report.activations)
    levels, devices = report.levels, report.finding.devices
    counts = [(WEIGHT, number, weight.count) for number, weight in enumerate(report.weights, start=1)]
    counts += [(ACTIVATION, number, activation.count) for number, activation in enumerate(report.activations, start=1)]
    columns = (levels.entry, levels.time_us, levels.requested_bytes, levels.allocated_bytes, levels.reserved_bytes)
    groups = [(device.device, group) for device in devices for group in device.peak.groups]
    ooms = [(device.device, *_oom_row(event)) for device in devices for event in device.oom]
    rows = entry_rows(
        peak_bytes=report.device.peak.requested_bytes,
        # Which gradient is whose, a snapshot does not show.
        weights=[(weight.name, weight.bytes, 0) for weight in report.weights],
        activations=[(activation.name, activation.bytes) for activation in report.activations],
        frames=[[(order, *line) for order, line in enumerate(entry.frames)] for entry in entries],
    )
    rows |= {
        "entry_counts": counts,
        "peak_by_category": report.device.peak.by_category,
        "devices": (
            (device.device, index == report.shown, device.entries, device.peak.entry, device.peak.time_us,
             device.peak.requested_bytes, device.peak.allocated_bytes, device.peak.reserved_bytes,
             device.peak.before_recording_bytes, device.start_requested_bytes, device.end_requested_bytes,
             device.reserved_end_bytes)
            for index, device in enumerate(devices)
        ),
        "peak_groups": (
            (number, device, group.kind.words, group.evidence, group.is_before_recording, group.bytes, group.count,
             group.site.frame, group.site.file, group.site.line, json.dumps(group.stack))
            for number, (device, group) in enumerate(groups, start=1)
        ),
        "out_of_memory": ((number, *row) for number, row in enumerate(ooms, start=1)),
        "timeline": zip(*(column.tolist() for column in columns), strict=True),
    }  # fmt: skip
    settings = {"device": report.device.device, "weights' gradients": "not known", **report.settings}
    statements = (*TABLES, *EXTRA_TABLES)
    write_database(path, statements, rows, of=(FORMAT, VERSION), settings=settings, user_version=USER_VERSION)


def _oom_row(event: OutOfMemory) -> tuple[object, ...]:
    return (
        event.entry, event.time_us, event.asked_bytes, event.device_free_bytes, event.requested_bytes,
        event.allocated_bytes, event.reserved_bytes, event.unallocated_bytes, event.largest_free_bytes,
        event.usable_free_bytes, event.pending_free_bytes, event.fits_without_fragmentation, event.site.frame,
        event.site.file, event.site.line, event.cause, event.advice,
    )  # fmt: skip
