"""run_time_report.sqlite: the tables that Skyline's and DeepView.Profile's readers know, and ours beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple
from pathlib import Path

from tracer.analysis.operators.run_times import RunTimeRow, RunTimes, StepTime
from tracer.exporters.sqlite_reports.memory_report import RelativeName, project_frames, table, write_database
from tracer.units import ms

USER_VERSION = 1

# Source: `tracking/time/report_queries.py` of skyline-cli 0.5.0 and DeepView.Profile 0.14.5, which are identical.
TABLES = (
    """CREATE TABLE IF NOT EXISTS run_time_entries (
  id INTEGER PRIMARY KEY,
  operation_name TEXT NOT NULL,
  forward_ms REAL NOT NULL,
  backward_ms REAL
)""",
    """CREATE TABLE IF NOT EXISTS stack_frames (
  ordering INTEGER NOT NULL,
  file_path TEXT NOT NULL,
  line_number INTEGER NOT NULL,
  entry_id INTEGER NOT NULL,
  PRIMARY KEY (entry_id, ordering)
)""",
)

FORMAT, VERSION = "torch-timeline run-time report", 1  # Of the tables that are not the originals'
EXTRA_TABLES = (
    table(
        "run_time_details", "entry_id INTEGER PRIMARY KEY", "module TEXT", "phase TEXT NOT NULL", "invocation",
        "invocations", "input_shapes TEXT NOT NULL", "num_steps", "host_forward_ms REAL NOT NULL",
        "host_backward_ms REAL", "recompute_ms REAL NOT NULL",
    ),
    table(
        "bookkeeping_operations", "operation_name TEXT PRIMARY KEY", "num_calls INTEGER NOT NULL", "forward_ms",
        "backward_ms", of="REAL",
    ),
    table(
        "step_times", "cycle INTEGER NOT NULL", "step TEXT NOT NULL", "step_ms", "forward_ms", "forward_entries_ms",
        "forward_bookkeeping_ms", "forward_python_ms", "backward_ms", "backward_entries_ms",
        "backward_bookkeeping_ms", "backward_unclaimed_ms", "optimizer_ms", "rest_ms", "PRIMARY KEY (cycle, step)",
        of="REAL",
    ),
    table("device_time", "part TEXT PRIMARY KEY", "ms", of="REAL"),
)  # fmt: skip

VIEWS = (
    """CREATE VIEW run_times_with_source AS
SELECT e.id, e.operation_name, d.module, e.forward_ms, e.backward_ms, d.invocation, d.invocations, d.input_shapes,
       f.file_path, f.line_number
  FROM run_time_entries AS e
  JOIN run_time_details AS d ON d.entry_id = e.id
  LEFT JOIN stack_frames AS f ON f.entry_id = e.id AND f.ordering = 0
 ORDER BY e.id""",
    """CREATE VIEW time_by_module AS
SELECT module, COUNT(*) AS entries, SUM(forward_ms) AS forward_ms, TOTAL(backward_ms) AS backward_ms
  FROM run_times_with_source
 GROUP BY module
 ORDER BY SUM(forward_ms) + TOTAL(backward_ms) DESC, module""",
    """CREATE VIEW time_by_line AS
SELECT file_path, line_number, COUNT(*) AS entries, SUM(forward_ms) AS forward_ms, TOTAL(backward_ms) AS backward_ms
  FROM run_times_with_source
 GROUP BY file_path, line_number
 ORDER BY SUM(forward_ms) + TOTAL(backward_ms) DESC, file_path, line_number""",
    """CREATE VIEW time_by_operation AS
SELECT operation_name, COUNT(*) AS entries, SUM(forward_ms) AS forward_ms, TOTAL(backward_ms) AS backward_ms
  FROM run_time_entries
 GROUP BY operation_name
 ORDER BY SUM(forward_ms) + TOTAL(backward_ms) DESC, operation_name""",
    """CREATE VIEW untracked_time AS
SELECT AVG(forward_ms) AS forward_ms, AVG(forward_entries_ms) AS forward_entries_ms,
       AVG(forward_bookkeeping_ms) AS forward_bookkeeping_ms, AVG(forward_python_ms) AS forward_python_ms,
       AVG(backward_ms) AS backward_ms, AVG(backward_entries_ms) AS backward_entries_ms,
       AVG(backward_bookkeeping_ms) AS backward_bookkeeping_ms, AVG(backward_unclaimed_ms) AS backward_unclaimed_ms,
       AVG(optimizer_ms) AS optimizer_ms, AVG(rest_ms) AS rest_ms, AVG(step_ms) AS step_ms
  FROM step_times""",
)


def write_run_time_report(
    report: RunTimes, path: Path, *, relative: RelativeName, settings: Mapping[str, object] | None = None
) -> None:
    """Write the run-time report."""
    rows = list(enumerate(report.rows, start=1))
    device = {} if report.device is None else asdict(report.device)
    tables = {
        "run_time_entries": (
            (entry_id, row.name, ms(row.forward_ns), _ms_or_none(row.backward_ns)) for entry_id, row in rows
        ),
        "stack_frames": (
            (ordering, file, line, entry_id)
            for entry_id, row in rows
            for ordering, file, line in project_frames(row.frames, relative)
        ),
        "run_time_details": ((entry_id, *_details(row)) for entry_id, row in rows),
        "bookkeeping_operations": (
            (row.name, row.count, ms(row.forward_ns), ms(row.backward_ns)) for row in report.bookkeeping
        ),
        "step_times": map(_step, report.steps),
        "device_time": ((name.removesuffix("_ns"), ms(part_ns)) for name, part_ns in device.items()),
    }
    write_database(
        path,
        (*TABLES, *EXTRA_TABLES, *VIEWS),
        tables,
        of=(FORMAT, VERSION),
        settings={"forward_ms and backward_ms": _CLOCKS[report.clock], **(settings or {})},
        user_version=USER_VERSION,
    )


_CLOCKS = {
    "host": "time of the operator on the host; on an accelerator its kernels may still run when it ends",
    "device": "time of the operator's kernels on the device",
}


def _details(row: RunTimeRow) -> tuple[object, ...]:
    shapes = json.dumps(row.input_shapes)
    host = (ms(row.host_forward_ns), _ms_or_none(row.host_backward_ns), ms(row.recompute_ns))
    return (row.module, "forward", row.invocation, row.invocations, shapes, row.num_steps, *host)


def _ms_or_none(duration_ns: float | None) -> float | None:
    return None if duration_ns is None else ms(duration_ns)


def _step(step: StepTime) -> tuple[object, ...]:
    cycle, name, *durations = astuple(step)
    return (cycle, name, *(ms(duration) for duration in durations))
