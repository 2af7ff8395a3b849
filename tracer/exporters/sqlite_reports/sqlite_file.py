"""SQLite files that appear whole or not at all: built beside their place in one transaction, then moved into it.

A reader that has the former file open keeps it; the next one to open the path sees the new file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tracer.errors import OutputError
from tracer.exporters.files import replacing

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
