"""Columns by name in numpy's own container, of a file that may be anybody's.

`numpy.load` opens these files too. Here no file can run code, ask for more than it holds, or fill the memory: each
column's header is compared with the bytes that are there before any memory is taken for it, and only numbers in one
dimension are let in.

Source:
    `numpy.lib.format`: a zip archive with one `.npy` file for each array.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.errors import RecordingError
from tracer.exporters.files import replacing

Arrays = dict[str, npt.NDArray[Any]]

DAMAGED = "The file is damaged or of another program; profile again with --keep-recording."
MAX_COLUMNS = 100_000
MAX_UNPACKED_BYTES = 16 << 30
"""Most bytes of all columns together: 70 bytes an event, so this is more than two hundred million events."""
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


def read_columns(path: Path) -> Arrays:
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
    """Refuse an archive before anything is unpacked: no member gives more bytes than the archive states."""
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
        if np.lib.format.read_magic(member) != (1, 0):
            raise RecordingError("A column has a header that is not known here.", hint=DAMAGED)
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        left = entry.file_size - member.tell()
        if len(shape) != 1 or dtype.str not in _ALLOWED or shape[0] * dtype.itemsize != left:
            raise RecordingError(f"Column {entry.filename[:80]!r} is not a row of numbers.", hint=DAMAGED)
        data = member.read()
    if len(data) != left:
        raise RecordingError(f"Column {entry.filename[:80]!r} ends in the middle.", hint=DAMAGED)
    if dtype.kind == "b":  # any byte but 0 is true, and only 1 is equal to it
        return np.frombuffer(data, np.uint8).astype(np.bool_)
    return np.frombuffer(data, dtype)
