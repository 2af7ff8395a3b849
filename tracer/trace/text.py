"""The text of a trace, whatever it is packed in: in pieces, and no more of it than an honest file has.

Before the events stand the keys of its object, read one after the other: a value, such as metadata of the user's, may
have any name inside it, so that nothing is searched for.
"""

from __future__ import annotations

import codecs
import gzip
import json
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from tracer.errors import RecordingError, SnapshotError
from tracer.snapshot.containers import opened, packing
from tracer.snapshot.remarks import Remarks

PIECE_BYTES: Final = 4 << 20
# A trace of one operator in a loop becomes 80 times smaller.
_MAX_FACTOR: Final = 300
_SPARE_BYTES: Final = 64 << 20
TAIL_LEFT_OUT: Final = "What follows the packed data is not packed with them and is left out, as `gzip -dc` does"
CUT: Final = "The file ends in the middle; what was whole before is read"


def pieces_of(path: Path, remarks: Remarks) -> Iterator[str]:
    """The text of a file, some MiB at a time. Bytes that are no UTF-8 are replaced.

    Args:
        path: Packed in gzip, Zstandard, xz, bzip2 or a zip archive, or not at all.

    Raises:
        RecordingError: It cannot be read, or unpacks to more than a trace does.
    """
    decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
    for piece in _bytes_of(path, remarks):
        yield decode(piece)
    yield decode(b"", True)


def _bytes_of(path: Path, remarks: Remarks) -> Iterator[bytes]:
    try:
        most = path.stat().st_size * (_MAX_FACTOR if packing(path) else 1) + _SPARE_BYTES
        with opened(path) as file:
            has_read = False
            while True:
                try:
                    piece = _piece(file)
                except gzip.BadGzipFile as error:
                    if not has_read:
                        raise
                    remarks.add(TAIL_LEFT_OUT, "where it is unpacked", str(error))
                    return
                except (EOFError, zlib.error, lzma.LZMAError) as error:
                    remarks.add(CUT, "where it is unpacked", str(error))
                    return
                if not piece:
                    return
                has_read = True
                if (most := most - len(piece)) < 0:
                    raise RecordingError(
                        f"It unpacks to more than {_MAX_FACTOR} times its size.",
                        hint="No trace does: unpack it yourself.",
                    )
                yield piece
    except SnapshotError as error:
        raise RecordingError(str(error), hint=error.hint) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordingError(f"Cannot read {path}: {reason}.", hint="Check the path and its permissions.") from error


def _piece(file: IO[bytes]) -> bytes:
    """What one read gives: a longer one loses what it has unpacked where the data end in the middle."""
    read = getattr(file, "read1", file.read)
    return bytes(read(PIECE_BYTES))


EVENTS_KEY: Final = "traceEvents"
_DECODER: Final = json.JSONDecoder(strict=False)


def trace_head(text: str) -> tuple[int, dict[str, object]]:
    """Characters up to and with the bracket that opens the events, and the values before it.

    Raises:
        ValueError: The text is no trace, or ends before that.
    """
    at = _skip(text, 0)
    if text[at] == "[":  # the events alone
        return at + 1, {}
    at = _expect(text, at, "{")
    values: dict[str, object] = {}
    while True:
        key, at = _DECODER.raw_decode(text, _skip(text, at))
        at = _skip(text, _expect(text, at, ":"))
        if key == EVENTS_KEY:
            at = _expect(text, at, "[")
            text[_skip(text, at)]  # at least one more sign, which tells whether the list is empty
            return at, values
        values[str(key)], at = _DECODER.raw_decode(text, at)
        at = _expect(text, at, ",")


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _expect(text: str, at: int, sign: str) -> int:
    at = _skip(text, at)
    if text[at] != sign:
        raise ValueError(f"{sign} expected")
    return at + 1
