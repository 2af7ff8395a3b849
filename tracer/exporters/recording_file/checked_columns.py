"""Columns by name in numpy's own container: whoever takes one says what it has to be, and anything else is a sentence.

`numpy.load` opens these files too. Here no file can run code, ask for more than it holds, or fill the memory: each
column's header is compared with the bytes that are there before any memory is taken for it, and only numbers in one
dimension are let in.

Source:
    `numpy.lib.format`: a zip archive with one `.npy` file for each array.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tracer.arrays import Bools, Floats, Ints
from tracer.errors import RecordingError
from tracer.exporters.document import Source
from tracer.exporters.files import replacing
from tracer.snapshot.remarks import printable

Bytes8 = npt.NDArray[np.uint8]

DAMAGED = "The file is damaged or of another program; profile again with --keep-recording."
RECORDING = Source("The recording", RecordingError, DAMAGED)
MAX_BYTES = 1 << 50  # Of one block or of all together: more than any machine has, and far from where 64 bits end
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
        """A column of integers, all of them from `low` to `high`."""
        column = np.ascontiguousarray(self._take(name, "i", length), np.int64)
        if len(column) and not (low <= int(column.min()) and int(column.max()) <= high):
            raise RecordingError(f"Column {name} has values outside {low} to {high}.", hint=DAMAGED)
        return column

    def bytes_column(self, name: str, *, low: int = 0, length: int | None = None) -> Ints:
        """A column of sizes, which can be summed in 64 bits."""
        column = self.ints(name, low=low, high=MAX_BYTES, length=length)
        if float(np.abs(column).sum(dtype=np.float64)) > MAX_NUMBER:
            raise RecordingError(f"Column {name} has more bytes than there are.", hint=DAMAGED)
        return column

    def ends(self, name: str, *, total: int, length: int | None = None) -> Ints:
        """End of each of several pieces; the last one ends at `total`."""
        column = self.ints(name, low=0, high=total, length=length)
        if (np.diff(column) < 0).any() or (int(column[-1]) if len(column) else 0) != total:
            raise RecordingError(f"Column {name} does not divide {total} rows.", hint=DAMAGED)
        return column

    def bools(self, name: str, *, length: int | None = None) -> Bools:
        """A column of truth values."""
        return np.ascontiguousarray(self._take(name, "b", length), np.bool_)

    def floats(self, name: str) -> Floats:
        """A column of numbers."""
        return np.ascontiguousarray(self._take(name, "f", None), np.float64)

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


MAX_COLUMNS = 100_000
MAX_UNPACKED_BYTES = 16 << 30
"""Of all columns together: 70 bytes an event, so this is more than two hundred million events."""
_ALLOWED = {"<i8", "|b1", "<f8", "|u1"}
_ENCRYPTED = 1


def write_columns(path: Path, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write columns, whole or not at all; equal columns make equal files."""
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, column in columns.items():
            # An entry of one's own has no date, and a column may be larger than 2 GiB.
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(column), allow_pickle=False)


def read_columns(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the columns of a file, of this program's kinds of numbers.

    Raises:
        RecordingError: It cannot be read, is damaged, or is something else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check(path, entries)
            return {entry.filename.removesuffix(".npy"): _column(archive, entry) for entry in entries}
    except RecordingError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordingError(f"Cannot read {path}: {reason}.", hint="Check the path and its permissions.") from error
    except MemoryError as error:
        raise RecordingError(f"{path} holds more than there is memory for.", hint=DAMAGED) from error
    # Garbage makes zipfile, zlib and numpy raise nearly anything: BadZipFile, zlib.error, struct.error, ValueError, ...
    except Exception as error:
        raise RecordingError(
            f"{path} is no recording that can be read ({type(error).__name__}).", hint=DAMAGED
        ) from error


def _check(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Before anything is unpacked. What an archive says of a member's size is a bound of what it gives."""
    names = {entry.filename for entry in entries}
    if len(entries) > MAX_COLUMNS or len(names) < len(entries):
        raise RecordingError(f"{path} has too many columns, or one twice.", hint=DAMAGED)
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
        raise RecordingError(f"{path} would unpack to more than any recording.", hint=DAMAGED)
    for entry in entries:
        is_plain = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if not is_plain or entry.flag_bits & _ENCRYPTED or not entry.filename.endswith(".npy"):
            raise RecordingError(f"{path} has a part that is no column of numbers.", hint=DAMAGED)


def _column(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(entry) as member:
        shape, dtype = _header(member)
        left = entry.file_size - member.tell()
        if len(shape) != 1 or dtype.str not in _ALLOWED or shape[0] * dtype.itemsize != left:
            raise RecordingError(f"Column {entry.filename[:80]!r} is not a row of numbers.", hint=DAMAGED)
        data = member.read()
    if len(data) != left:
        raise RecordingError(f"Column {entry.filename[:80]!r} ends in the middle.", hint=DAMAGED)
    if dtype.kind == "b":  # any byte but 0 is true, and only 1 is equal to it
        return np.frombuffer(data, np.uint8).astype(np.bool_)
    return np.frombuffer(data, dtype)


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if np.lib.format.read_magic(member) != (1, 0):
        raise RecordingError("A column has a header that is not known here.", hint=DAMAGED)
    shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    return shape, dtype
