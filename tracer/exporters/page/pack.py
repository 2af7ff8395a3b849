"""Columns of numbers as text, small enough to carry in a page; `data.js` unpacks them.

A packed table is its columns' differences, as little-endian int64, sorted by the significance of their bytes,
deflated, in base64. Most differences are 0, so a row costs a few bytes.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from typing import TypedDict

import numpy as np

from tracer.arrays import Ints


class Packed(TypedDict):
    """A table of integers as text; `total` is the number of rows that it was reduced from."""

    total: int
    rows: int
    columns: int
    packed: str


def packed(columns: Sequence[Ints], *, total: int | None = None) -> Packed:
    """A table of columns in packed form.

    Args:
        total: Number of rows that it was reduced from; None if it was not.
    """
    rows = len(columns[0]) if columns else 0
    return {
        "total": rows if total is None else total,
        "rows": rows,
        "columns": len(columns),
        "packed": pack(columns),
    }


def pack(columns: Iterable[Ints]) -> str:
    """Columns of one length as text. All values below 2**53, which JavaScript counts exactly."""
    deltas = np.array([np.diff(column, prepend=0) for column in columns], "<i8")
    planes = deltas.reshape(-1, 1).view(np.uint8).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode()


def unpacked(table: Packed) -> Ints:
    """What `packed` was given, [columns, rows]."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(table["packed"])), np.uint8).reshape(8, -1)
    deltas = np.ascontiguousarray(planes.T).view("<i8").reshape(table["columns"], table["rows"])
    return np.asarray(np.cumsum(deltas, axis=1), np.int64)
