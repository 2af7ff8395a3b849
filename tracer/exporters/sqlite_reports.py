"""memory_report.sqlite and run_time_report.sqlite: the tables of Skyline's and DeepView.Profile's schemas alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer.errors import OutputError
from tracer.exporters.files import replacing
from tracer.units import ms

if TYPE_CHECKING:
    from tracer.answers.operators.memory_report import MemoryReport
    from tracer.answers.operators.run_times import RunTimeRow
    from tracer.capture.sources.source_line import SourceLine

RelativeName = Callable[[str], str | None]
Place = tuple[str, int]  # A file's path and a line of it

# Source: `tracking/memory/report_queries.py` of skyline-cli 0.5.0 and DeepView.Profile 0.14.5, which are identical.
_MEMORY_TABLES = (
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
_WEIGHT, _ACTIVATION = 1, 2

# Source: `tracking/time/report_queries.py` of the same two.
_RUN_TIME_TABLES = (
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


def write_memory_report(report: MemoryReport, path: Path, *, relative: RelativeName) -> None:
    """Write the memory report of a run.

    Args:
        relative: A file's path from the root of the user's project, or None for a file that is not of the project,
            whose frames are left out.
    """
    # All entries share one numbering, weights first; entries without frames have a number too.
    entries = [(row, _WEIGHT) for row, _ in enumerate(report.weights, start=1)]
    entries += [(row, _ACTIVATION) for row, _ in enumerate(report.activations, start=1)]
    frames = [*(weight.frames for weight in report.weights), *(entry.frames for entry in report.activations)]
    rows = {
        "entry_types": ((_WEIGHT, "Weight"), (_ACTIVATION, "Activation")),
        "misc_sizes": (("peak_usage_bytes", report.peak_bytes),),
        "weight_entries": (
            (row, weight.name, weight.size_bytes, weight.grad_size_bytes)
            for row, weight in enumerate(report.weights, start=1)
        ),
        "activation_entries": (
            (row, activation.name, activation.size_bytes) for row, activation in enumerate(report.activations, start=1)
        ),
        "stack_correlation": ((number, *entry) for number, entry in enumerate(entries, start=1)),
        "stack_frames": (
            (number, ordering, *place)
            for number, found in enumerate(frames, start=1)
            for ordering, place in enumerate(_in_project(found, relative))
        ),
    }
    _write_database(path, _MEMORY_TABLES, rows)


def write_run_time_report(times: Sequence[RunTimeRow], path: Path, *, relative: RelativeName) -> None:
    """Write the run-time report; `relative` is as in `write_memory_report`."""
    rows = list(enumerate(times, start=1))
    tables = {
        "run_time_entries": (
            (entry_id, row.name, ms(row.forward_ns), None if row.backward_ns is None else ms(row.backward_ns))
            for entry_id, row in rows
        ),
        "stack_frames": (
            (ordering, *place, entry_id)
            for entry_id, row in rows
            for ordering, place in enumerate(_in_project(row.frames, relative))
        ),
    }
    _write_database(path, _RUN_TIME_TABLES, tables)


def _in_project(frames: Iterable[SourceLine], relative: RelativeName) -> Iterable[Place]:
    """Path and line of the frames that are of the project."""
    named = ((relative(frame.file), frame.line) for frame in frames)
    return ((file, line) for file, line in named if file is not None)


def _write_database(path: Path, statements: Iterable[str], rows: Mapping[str, Iterable[Sequence[Any]]]) -> None:
    """Write a database file whole or not at all.

    Args:
        rows: By table; of each row a value for every column.
    """
    with replacing(path) as temporary:
        try:
            with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
                # In memory, because a journal beside the temporary file would outlive a killed process.
                connection.execute("PRAGMA journal_mode = MEMORY")
                connection.execute("BEGIN")
                connection.execute("PRAGMA user_version = 1")
                for statement in statements:
                    connection.execute(statement)
                for name, values in rows.items():
                    num_columns = len(connection.execute(f"PRAGMA table_info({name})").fetchall())
                    connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * num_columns)})", values)
                connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise OutputError(f"{path} cannot be written: {error}.", hint="Name another folder.") from error
