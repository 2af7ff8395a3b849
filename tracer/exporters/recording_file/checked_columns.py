"""Columns by name, as a file has them: whoever takes one says what it has to be, and anything else is a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.arrays import Bools, Floats, Ints
from tracer.errors import RecordingError
from tracer.exporters.document import Source
from tracer.snapshot.printable import printable

Bytes8 = npt.NDArray[np.uint8]

DAMAGED = "The file is damaged or of another program; profile again with --keep-recording."
RECORDING = Source("The recording", RecordingError, DAMAGED)
MAX_BYTES = 1 << 50
"""Of one block or of all together: more than any machine has, and far from where 64 bits end."""
MAX_NUMBER = 1 << 62


class Columns:
    """What was read from a file, checked as it is taken."""

    def __init__(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        self._columns = columns

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def _take(self, name: str, kind: str, length: int | None) -> npt.NDArray[Any]:
        column = self._columns.get(name)
        if column is None:
            raise RecordingError(f"The recording has no column {name}.", hint=DAMAGED)
        if column.dtype.kind != kind:
            raise RecordingError(f"Column {name} holds {column.dtype}, which is not what it should.", hint=DAMAGED)
        if length is not None and len(column) != length:
            raise RecordingError(f"Column {name} has {len(column)} rows, not {length}.", hint=DAMAGED)
        return column

    def length(self, name: str) -> int:
        """Rows of a column of integers."""
        return len(self._take(name, "i", None))

    def ints(self, name: str, *, low: int = -MAX_NUMBER, high: int = MAX_NUMBER, length: int | None = None) -> Ints:
        """A column of integers, all of them from `low` to `high`.

        Args:
            length: How many rows there have to be; None for any.

        Raises:
            RecordingError: There is no such column, or it is not so.
        """
        column = np.ascontiguousarray(self._take(name, "i", length), np.int64)
        if len(column) and not (low <= int(column.min()) and int(column.max()) <= high):
            raise RecordingError(f"Column {name} has values outside {low} to {high}.", hint=DAMAGED)
        return column

    def bytes_column(self, name: str, *, low: int = 0, length: int | None = None) -> Ints:
        """A column of sizes, which can be summed in 64 bits.

        Raises:
            RecordingError: There is no such column, or it is not so.
        """
        column = self.ints(name, low=low, high=MAX_BYTES, length=length)
        if float(np.abs(column).sum(dtype=np.float64)) > MAX_NUMBER:
            raise RecordingError(f"Column {name} has more bytes than there are.", hint=DAMAGED)
        return column

    def ends(self, name: str, *, total: int, length: int | None = None) -> Ints:
        """End of each of several pieces; the last one ends at `total`.

        Args:
            total: Rows of all pieces together.
            length: How many pieces there have to be; None for any.

        Raises:
            RecordingError: There is no such column, or it is not so.
        """
        column = self.ints(name, low=0, high=total, length=length)
        if (np.diff(column) < 0).any() or (int(column[-1]) if len(column) else 0) != total:
            raise RecordingError(f"Column {name} does not divide {total} rows.", hint=DAMAGED)
        return column

    def bools(self, name: str, *, length: int | None = None) -> Bools:
        """A column of truth values."""
        return np.ascontiguousarray(self._take(name, "b", length), np.bool_)

    def floats(self, name: str, *, length: int | None = None) -> Floats:
        """A column of numbers."""
        return np.ascontiguousarray(self._take(name, "f", length), np.float64)

    def blob(self, name: str) -> bytes:
        """Bytes stored under a name."""
        return self._take(name, "u", None).tobytes()

    def texts(self, name: str, *, length: int | None = None, as_is: bool = False) -> tuple[str, ...]:
        """A table of texts.

        Args:
            as_is: Texts that are never shown; others lose what a terminal obeys.
        """
        data = self.blob(f"{name}.utf8")
        ends = self.ends(f"{name}.ends", total=len(data), length=length).tolist()
        try:
            texts = [
                data[start:end].decode("utf-8", "surrogatepass") for start, end in zip([0, *ends], ends, strict=False)
            ]
        except UnicodeDecodeError as error:
            raise RecordingError(f"Table {name} holds bytes that are no text.", hint=DAMAGED) from error
        return tuple(texts) if as_is else tuple(map(printable, texts))


def text_columns(name: str, texts: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """A table of texts as two columns: all letters, and where each text ends among them."""
    pieces = [text.encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return {f"{name}.utf8": np.frombuffer(b"".join(pieces), np.uint8), f"{name}.ends": ends}
