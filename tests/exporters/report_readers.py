"""What other programs ask the two SQLite reports, and what the tests compare."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def shape(path: Path) -> dict[str, Any]:
    """Structure of a file's tables: columns, indexes and user_version, without the text of the statements."""
    with closing(sqlite3.connect(path)) as con:
        out: dict[str, Any] = {"user_version": con.execute("PRAGMA user_version").fetchone()[0]}
        for (table,) in con.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall():
            indexes = [
                (unique, origin, partial, tuple(c[2] for c in con.execute(f"PRAGMA index_info('{name}')")))
                for _, name, unique, origin, partial in con.execute(f"PRAGMA index_list('{table}')").fetchall()
            ]
            out[table] = (con.execute(f"PRAGMA table_info('{table}')").fetchall(), sorted(indexes))
        return out


def query(path: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as con:
        return con.execute(sql, values).fetchall()


def dump(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """R6: a web service that turns every table into JSON, with unquoted names."""
    names = [name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type='table'")]
    return {name: query(path, f"SELECT * FROM {name}") for name in names}


def memory_entries(entry_type: int, columns: str, table: str) -> str:
    """R1 and R2: entries with their innermost line."""
    return f"""
        WITH code_contexts AS (
          SELECT c.entry_id, s.file_path, s.line_number
            FROM stack_frames AS s JOIN stack_correlation AS c ON s.correlation_id == c.correlation_id
            WHERE c.entry_type = {entry_type}
            GROUP BY s.correlation_id HAVING s.ordering == MIN(s.ordering))
        SELECT {columns}, c.file_path, c.line_number
          FROM {table} AS e LEFT JOIN code_contexts AS c ON e.id == c.entry_id
         WHERE e.size_bytes > 0 ORDER BY c.file_path ASC, c.line_number ASC"""


R1 = memory_entries(1, "e.name, e.size_bytes, e.grad_size_bytes", "weight_entries")
R2 = memory_entries(2, "e.operation_name, e.size_bytes", "activation_entries")
R3 = "SELECT size_bytes FROM misc_sizes WHERE key = ?"
R4 = """
    WITH code_contexts AS (
      SELECT entry_id, file_path, line_number FROM stack_frames GROUP BY entry_id HAVING ordering == MIN(ordering))
    SELECT e.operation_name, e.forward_ms, e.backward_ms, c.file_path, c.line_number
      FROM run_time_entries AS e LEFT JOIN code_contexts AS c ON e.id == c.entry_id
     ORDER BY c.file_path ASC, c.line_number ASC"""
