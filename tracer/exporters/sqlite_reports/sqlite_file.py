"""SQLite files that appear whole or not at all: built beside their place in one transaction, then moved into it.

A reader that has the former file open keeps it; the next one to open the path sees the new file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tracer.errors import OutputError
from tracer.exporters.files import replacing

Row = Sequence[Any]


def write_database(path: Path, fill: Callable[[sqlite3.Connection], None], *, user_version: int) -> None:
    """Write a database file whole or not at all.

    Args:
        fill: Makes the tables and puts in the rows; everything that it does is one transaction.

    Raises:
        OutputError: It cannot be written.
    """
    with replacing(path) as temporary:
        try:
            with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
                # In memory, because a journal beside the temporary file would outlive a killed process.
                connection.execute("PRAGMA journal_mode = MEMORY")
                connection.execute("BEGIN")
                connection.execute(f"PRAGMA user_version = {user_version:d}")
                fill(connection)
                connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise OutputError(f"{path} cannot be written: {error}.", hint="Name another folder.") from error


def create(connection: sqlite3.Connection, statements: Iterable[str]) -> None:
    """Run statements one by one, which unlike `executescript` leaves the transaction open."""
    for statement in statements:
        connection.execute(statement)


def insert(connection: sqlite3.Connection, table: str, rows: Iterable[Row]) -> None:
    """Insert rows with a value for every column; the names of tables are this program's own."""
    num_columns = len(connection.execute(f"PRAGMA table_info({table})").fetchall())
    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * num_columns)})", rows)


# `user_version` is Skyline's number for the tables that its readers know; this one is for ours beside them.
FORMAT_TABLE = "CREATE TABLE format (name TEXT PRIMARY KEY, version INTEGER NOT NULL)"


def insert_format(connection: sqlite3.Connection, name: str, version: int) -> None:
    """Insert the format's name and version, which are of our own tables."""
    insert(connection, "format", [(name, version)])


SETTINGS_TABLE = "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)"


def insert_settings(connection: sqlite3.Connection, settings: Mapping[str, object]) -> None:
    """Insert the run's settings, as text."""
    # Arguments of the command line are bytes; what is no text there would be refused.
    texts = ((name, str(value).encode(errors="replace").decode()) for name, value in settings.items())
    insert(connection, "settings", texts)
