"""memory_report.sqlite: the tables that Skyline's and DeepView.Profile's readers know, and ours beside them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracer.errors import OutputError
from tracer.exporters.files import replacing

if TYPE_CHECKING:
    from tracer.analysis.operators.memory_report import MemoryReport
    from tracer.analysis.snapshots.findings import ReplayedSnapshot, SnapshotFinding
    from tracer.analysis.snapshots.fragmentation import Fragmentation
    from tracer.analysis.snapshots.oom import OutOfMemory
    from tracer.analysis.snapshots.timeline import DeviceTimeline
    from tracer.capture.sources.source_line import SourceLine

Rows = Iterable[Sequence[Any]]
# `user_version` is Skyline's number for the tables that its readers know; that of `format` is for ours beside them.
_OF_EVERY_FILE = (
    "CREATE TABLE format (name TEXT PRIMARY KEY, version INTEGER NOT NULL)",
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
)


def table(name: str, *columns: str, of: str = "INTEGER") -> str:
    """The statement that makes a table; of a column that is named alone each row has a value, of this type."""
    typed = (column if " " in column else f"{column} {of} NOT NULL" for column in columns)
    return f"CREATE TABLE {name} (\n  " + ",\n  ".join(typed) + "\n)"


def write_database(
    path: Path,
    statements: Iterable[str],
    rows: Mapping[str, Rows],
    *,
    of: tuple[str, int],
    settings: Mapping[str, object],
    user_version: int,
) -> None:
    """Write a database file whole or not at all.

    Args:
        statements: They make tables and views; every file has its format and the run's settings, as text, beside them.
        rows: By table; of each row a value for every column. Names of tables are this program's own.
    """
    # Arguments of the command line are bytes; what is no text there would be refused.
    texts = ((name, str(value).encode(errors="replace").decode()) for name, value in settings.items())
    with replacing(path) as temporary:
        try:
            with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
                # In memory, because a journal beside the temporary file would outlive a killed process.
                connection.execute("PRAGMA journal_mode = MEMORY")
                connection.execute("BEGIN")
                connection.execute(f"PRAGMA user_version = {user_version:d}")
                for statement in (*statements, *_OF_EVERY_FILE):
                    connection.execute(statement)
                for name, values in {**rows, "format": [of], "settings": texts}.items():
                    num_columns = len(connection.execute(f"PRAGMA table_info({name})").fetchall())
                    connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * num_columns)})", values)
                connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise OutputError(f"{path} cannot be written: {error}.", hint="Name another folder.") from error


RelativeName = Callable[[str], str | None]

WEIGHT, ACTIVATION = 1, 2
_PEAK_KEY = "peak_usage_bytes"
USER_VERSION = 1

# Source: `tracking/memory/report_queries.py` of skyline-cli 0.5.0 and DeepView.Profile 0.14.5, which are identical.
TABLES = (
    """CREATE TABLE IF NOT EXISTS weight_entries (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  size_bytes INTEGER NOT NULL,
  grad_size_bytes INTEGER NOT NULL
)""",
    """CREATE TABLE IF NOT EXISTS activation_entries (
  id INTEGER PRIMARY KEY,
  operation_name TEXT NOT NULL,
  size_bytes INTEGER NOT NULL
)""",
    """CREATE TABLE IF NOT EXISTS stack_correlation (
  correlation_id INTEGER PRIMARY KEY,
  entry_id INTEGER NOT NULL,
  entry_type INTEGER NOT NULL,
  UNIQUE (correlation_id, entry_id)
)""",
    """CREATE UNIQUE INDEX IF NOT EXISTS entry_type_and_id
  ON stack_correlation(entry_type, entry_id)""",
    """CREATE TABLE IF NOT EXISTS stack_frames (
  correlation_id INTEGER NOT NULL,
  ordering INTEGER NOT NULL,
  file_path TEXT NOT NULL,
  line_number INTEGER NOT NULL,
  PRIMARY KEY (correlation_id, ordering)
)""",
    """CREATE TABLE IF NOT EXISTS entry_types (
  entry_type INTEGER PRIMARY KEY,
  name TEXT NOT NULL
)""",
    """CREATE TABLE IF NOT EXISTS misc_sizes (
  key TEXT PRIMARY KEY,
  size_bytes INT NOT NULL
)""",
)

FORMAT, VERSION = "torch-timeline memory report", 1  # Of the tables that are not the originals'
EXTRA_TABLES = (
    table("weight_details", "weight_id INTEGER PRIMARY KEY", "module TEXT NOT NULL"),
    table(
        "activation_details", "activation_id INTEGER PRIMARY KEY", "module TEXT", "phase TEXT NOT NULL", "invocation",
        "invocations", "input_shapes TEXT NOT NULL", "num_storages", "input_bytes", "unread_bytes",
    ),
    table("peak_by_category", "category TEXT PRIMARY KEY", "size_bytes"),
    table("total_sizes", "name TEXT PRIMARY KEY", "size_bytes"),
)  # fmt: skip

VIEWS = (
    """CREATE VIEW weights_with_source AS
SELECT w.id, w.name, d.module, w.size_bytes, w.grad_size_bytes, f.file_path, f.line_number
  FROM weight_entries AS w
  JOIN weight_details AS d ON d.weight_id = w.id
  JOIN stack_correlation AS c ON c.entry_type = 1 AND c.entry_id = w.id
  LEFT JOIN stack_frames AS f ON f.correlation_id = c.correlation_id AND f.ordering = 0
 ORDER BY w.id""",
    """CREATE VIEW activations_with_source AS
SELECT a.id, a.operation_name, d.module, a.size_bytes, d.invocation, d.invocations, d.input_shapes,
       f.file_path, f.line_number
  FROM activation_entries AS a
  JOIN activation_details AS d ON d.activation_id = a.id
  JOIN stack_correlation AS c ON c.entry_type = 2 AND c.entry_id = a.id
  LEFT JOIN stack_frames AS f ON f.correlation_id = c.correlation_id AND f.ordering = 0
 ORDER BY a.id""",
    """CREATE VIEW memory_by_module AS
SELECT module, SUM(weight_bytes) AS weight_bytes, SUM(grad_bytes) AS grad_bytes,
       SUM(activation_bytes) AS activation_bytes
  FROM (SELECT module, size_bytes AS weight_bytes, grad_size_bytes AS grad_bytes, 0 AS activation_bytes
          FROM weights_with_source
        UNION ALL
        SELECT module, 0, 0, size_bytes FROM activations_with_source)
 GROUP BY module
 ORDER BY SUM(weight_bytes + grad_bytes + activation_bytes) DESC, module""",
    """CREATE VIEW activations_by_line AS
SELECT file_path, line_number, COUNT(*) AS entries, SUM(size_bytes) AS size_bytes
  FROM activations_with_source
 GROUP BY file_path, line_number
 ORDER BY SUM(size_bytes) DESC, file_path, line_number""",
)


def write_memory_report(report: MemoryReport, path: Path, *, relative: RelativeName) -> None:
    """Write the memory report.

    Args:
        relative: A file's path from the root of the user's project, or None for a file that is not of the project,
            whose frames are left out.
    """
    rows = entry_rows(
        peak_bytes=report.peak_bytes,
        weights=[(weight.name, weight.size_bytes, weight.grad_size_bytes) for weight in report.weights],
        activations=[(activation.name, activation.size_bytes) for activation in report.activations],
        frames=[
            *(project_frames(weight.frames, relative) for weight in report.weights),
            *(project_frames(activation.frames, relative) for activation in report.activations),
        ],
    )
    totals = {"weights": report.weight_bytes, "gradients": report.grad_bytes, "activations": report.activation_bytes}
    rows |= {
        "weight_details": ((row, weight.module) for row, weight in enumerate(report.weights, start=1)),
        "activation_details": (
            (row, activation.module, "forward", activation.invocation, activation.invocations,
             json.dumps(activation.input_shapes), activation.num_storages, activation.input_bytes,
             activation.unread_bytes)
            for row, activation in enumerate(report.activations, start=1)
        ),
        "peak_by_category": report.categories,
        "total_sizes": totals.items(),
    }  # fmt: skip
    settings = {"device": report.device, "activations of step": report.step or "none", **report.settings}
    statements = (*TABLES, *EXTRA_TABLES, *VIEWS)
    write_database(path, statements, rows, of=(FORMAT, VERSION), settings=settings, user_version=USER_VERSION)


def entry_rows(
    *,
    peak_bytes: int,
    weights: Sequence[tuple[str, int, int]],
    activations: Sequence[tuple[str, int]],
    frames: Sequence[Iterable[tuple[int, str, int]]],
) -> dict[str, Rows]:
    """Rows of the tables that the originals' readers know.

    Args:
        frames: Frames of the weights, then of the activations: ordering, path and line of each frame.
    """
    # One running number for all entries, weights first, whether they have frames or not.
    entries = [(row, WEIGHT) for row, _ in enumerate(weights, start=1)]
    entries += [(row, ACTIVATION) for row, _ in enumerate(activations, start=1)]
    return {
        "entry_types": ((WEIGHT, "Weight"), (ACTIVATION, "Activation")),
        "misc_sizes": ((_PEAK_KEY, peak_bytes),),
        "weight_entries": ((row, *weight) for row, weight in enumerate(weights, start=1)),
        "activation_entries": ((row, *activation) for row, activation in enumerate(activations, start=1)),
        "stack_correlation": ((number, *entry) for number, entry in enumerate(entries, start=1)),
        "stack_frames": ((number, *frame) for number, found in enumerate(frames, start=1) for frame in found),
    }


def project_frames(frames: Iterable[SourceLine], relative: RelativeName) -> Iterable[tuple[int, str, int]]:
    """Ordering, path and line of the frames of the project, numbered without gaps."""
    named = ((relative(frame.file), frame.line) for frame in frames)
    return ((number, *frame) for number, frame in enumerate((file, line) for file, line in named if file is not None))


SNAPSHOT_FORMAT, SNAPSHOT_VERSION = "torch-timeline snapshot report", 1  # Of the tables that are not the originals'
SNAPSHOT_TABLES = (
    table("entry_counts", "entry_type", "entry_id", "num_blocks", "PRIMARY KEY (entry_type, entry_id)"),
    table("peak_by_category", "category TEXT PRIMARY KEY", "size_bytes"),
    table(
        "devices", "device INTEGER PRIMARY KEY", "is_reported", "entries", "peak_entry", "peak_time_us",
        "peak_requested_bytes", "peak_allocated_bytes INTEGER", "reserved_at_peak_bytes INTEGER",
        "before_recording_bytes", "start_requested_bytes", "end_requested_bytes", "reserved_end_bytes INTEGER",
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


def write_snapshot_report(
    replayed: ReplayedSnapshot,
    finding: SnapshotFinding,
    shown: int,
    timeline: DeviceTimeline,
    path: Path,
    *,
    settings: Mapping[str, object],
) -> None:
    """Write the report of one device, with the other devices' findings beside it; a file that is there is replaced.

    Args:
        settings: What is known of the recording.
    """
    from tracer.analysis.snapshots.memory_report import activations_at_peak, drawn_levels, weights_at_peak

    device, devices = finding.devices[shown], finding.devices
    weights, activations = weights_at_peak(replayed.devices[shown]), activations_at_peak(replayed.devices[shown])
    counts = [(WEIGHT, number, weight.count) for number, weight in enumerate(weights, start=1)]
    counts += [(ACTIVATION, number, activation.count) for number, activation in enumerate(activations, start=1)]
    groups = [(one.device, group) for one in devices for group in one.peak.groups]
    ooms = [(one.device, *_oom_row(event)) for one in devices for event in one.oom]
    rows = entry_rows(
        peak_bytes=device.peak.requested_bytes,
        # Which gradient is whose, a snapshot does not show.
        weights=[(weight.name, weight.bytes, 0) for weight in weights],
        activations=[(activation.name, activation.bytes) for activation in activations],
        frames=[[(order, *line) for order, line in enumerate(entry.frames)] for entry in (*weights, *activations)],
    )
    rows |= {
        "entry_counts": counts,
        "peak_by_category": device.peak.by_category.items(),
        "devices": (
            (one.device, index == shown, one.entries, one.peak.entry, one.peak.time_us,
             one.peak.requested_bytes, *_reserved(one.peak.fragmentation),
             one.peak.before_recording_bytes, one.start_requested_bytes, one.end_requested_bytes,
             _reserved(one.end_fragmentation)[1])
            for index, one in enumerate(devices)
        ),
        "peak_groups": (
            (number, owner, group.kind.words, group.evidence, group.is_before_recording, group.bytes, group.count,
             group.site.frame, group.site.file, group.site.line, json.dumps(group.stack))
            for number, (owner, group) in enumerate(groups, start=1)
        ),
        "out_of_memory": ((number, *row) for number, row in enumerate(ooms, start=1)),
        "timeline": zip(*map(np.ndarray.tolist, drawn_levels(replayed.devices[shown], timeline)), strict=True),
    }  # fmt: skip
    settings = {"device": device.device, "weights' gradients": "not known", **settings}
    statements = (*TABLES, *SNAPSHOT_TABLES)
    write_database(
        path, statements, rows, of=(SNAPSHOT_FORMAT, SNAPSHOT_VERSION), settings=settings, user_version=USER_VERSION
    )


def _reserved(memory: Fragmentation | None) -> tuple[int | None, int | None]:
    """Allocated and reserved bytes; None for both where no caching allocator served the requests."""
    return (None, None) if memory is None else (memory.allocated_bytes, memory.reserved_bytes)


def _oom_row(event: OutOfMemory) -> tuple[object, ...]:
    return (
        event.entry, event.time_us, event.asked_bytes, event.device_free_bytes, event.requested_bytes,
        event.allocated_bytes, event.reserved_bytes, event.unallocated_bytes, event.largest_free_bytes,
        event.usable_free_bytes, event.pending_free_bytes, event.fits_without_fragmentation, event.site.frame,
        event.site.file, event.site.line, event.cause, event.advice,
    )  # fmt: skip
