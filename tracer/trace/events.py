"""The events in the text of a trace, some thousands at a time: nothing of the file is kept but what is being read.

A piece of text is cut behind an event and read as one list, which costs a third of reading event by event. A cut inside
a value leaves no list that can be read, so that it is noticed. What stays unreadable is left out and remarked.

Source:
    "Trace Event Format" of the Chromium project: an object with the list `traceEvents`, or that list alone.
"""

from __future__ import annotations

import codecs
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Final

from tracer.errors import RecordingError, SnapshotError
from tracer.snapshot.containers import opened, packing
from tracer.snapshot.remarks import Remarks

MAX_VALUE_CHARACTERS: Final = 16 << 20
"""Of one event, or of all that stands before or behind the events; a longer one is no trace's."""
LEFT_OUT: Final = "An event is no JSON and is left out"
TAIL_LEFT_OUT: Final = "What follows the events is no JSON and is not read"
_SPACE: Final = " \t\r\n"
_BEFORE_EVENT = re.compile(r"[\s,]*")
_NEXT_EVENT = re.compile(r"\}\s*,\s*(?=\{)")
_MAX_CUTS, _MAX_TRIES = 64, 2
# An error so close to the end of the text may be the end's.
_NEAR_END = 16
# Digits that a float is sure to keep; an absolute time has more.
_FLOAT_CHARACTERS: Final = 15


def _number(text: str) -> float | Decimal:
    return float(text) if len(text) <= _FLOAT_CHARACTERS else Decimal(text)


_DECODER: Final = json.JSONDecoder(strict=False, parse_float=_number)


class EventReader:
    """Reads one trace.

    Attributes:
        header: The values beside the events in the trace's object, as far as they have been met.
    """

    def __init__(self, pieces: Iterator[str], remarks: Remarks) -> None:
        """Set up; nothing is read yet.

        Args:
            remarks: Gets what could not be read.
        """
        self.header: dict[str, Any] = {}
        self._pieces, self._remarks = pieces, remarks
        self._text = ""
        self._is_last = self._has_ended = False

    def batches(self) -> Iterator[list[Any]]:
        """The events in the order of the file. They may be anything that JSON has.

        Raises:
            RecordingError: The text is no trace, or has an event that is larger than any.
        """
        self._read_head()
        while not self._has_ended:
            events = self._many() or self._one_by_one()
            if events:
                yield events
            if not self._has_ended and not self._more():
                if self._is_last and not events:
                    self._remarks.add(CUT, "in the events", self._text[:40].strip())
                    return
                self._is_last = True
        self._read_tail()

    def _more(self) -> bool:
        """Take some more text, which may come in small pieces; False at its end."""
        pieces, num_characters = [self._text], 0
        for piece in self._pieces:
            pieces.append(piece)
            num_characters += len(piece)
            if num_characters >= PIECE_BYTES:
                break
        self._text = "".join(pieces)
        return len(pieces) > 1

    def _read_head(self) -> None:
        while True:
            try:
                at, values = trace_head(self._text)
            except (ValueError, IndexError, RecursionError) as error:
                if len(self._text) <= MAX_VALUE_CHARACTERS and self._more():
                    continue
                raise RecordingError(
                    "It is no trace of torch.profiler's: there is no list of events in it.",
                    hint="prof.export_chrome_trace(path) and tensorboard_trace_handler(folder) write one.",
                ) from error
            self.header.update(values)
            self._text = self._text[at:]
            return

    def _many(self) -> list[Any]:
        """All events of the text but the last, which may go on in the next piece; none where that cannot be read."""
        text, end, num_tries = self._text, len(self._text), 0
        for _ in range(_MAX_CUTS):
            end = text.rfind("{", 0, end)
            comma = _skip_back(text, end) - 1
            if comma < 1:
                return []
            if text[comma] != "," or text[_skip_back(text, comma) - 1] != "}":
                continue
            try:
                events: list[Any] = _DECODER.decode(f"[{text[:comma].lstrip(_COMMAS)}]")
            except (ValueError, RecursionError):
                num_tries += 1
                if num_tries == _MAX_TRIES:
                    return []
                continue
            self._text = text[end:]
            return events
        return []

    def _one_by_one(self) -> list[Any]:
        """The events that can be read, up to the end of the list or of the text."""
        text, at, events = self._text, 0, []
        while True:
            at = _skip_between(text, at)
            if at == len(text):
                break
            if text[at] == "]":
                self._has_ended = True
                break
            try:
                event, at = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                if self._may_go_on(error, len(text) - at):
                    break
                following = _NEXT_EVENT.search(text, max(at, getattr(error, "pos", at) - 1))
                if following is None:
                    if len(text) - at > MAX_VALUE_CHARACTERS:
                        raise RecordingError("An event is larger than any of a trace.", hint=_DAMAGED) from error
                    break
                self._remarks.add(LEFT_OUT, "the one that begins with", text[at : at + 80])
                at = following.end()
                continue
            events.append(event)
        self._text = text[at:]
        return events

    def _may_go_on(self, error: Exception, num_characters: int) -> bool:
        """Whether what could not be read may be the beginning of an event that the next piece has the rest of."""
        if not isinstance(error, json.JSONDecodeError) or num_characters > MAX_VALUE_CHARACTERS:
            return False
        return error.pos >= len(error.doc) - _NEAR_END or error.msg.startswith("Unterminated string")

    def _read_tail(self) -> None:
        """The keys behind the events, such as `traceName`."""
        while len(self._text) <= MAX_VALUE_CHARACTERS and self._more():
            pass
        rest = self._text[1:].strip(_COMMAS)
        if rest in ("", "}"):
            return
        try:
            values = _DECODER.decode(f"{{{rest}")
        except (ValueError, RecursionError) as error:
            self._remarks.add(TAIL_LEFT_OUT, "it says", str(error))
        else:
            self.header.update(values)


_COMMAS: Final = f"{_SPACE},"
_DAMAGED: Final = "The file is damaged, or it is no trace of torch.profiler's."


def _skip_back(text: str, end: int) -> int:
    while end > 0 and text[end - 1] in _SPACE:
        end -= 1
    return end


def _skip_between(text: str, at: int) -> int:
    match = _BEFORE_EVENT.match(text, at)
    return match.end() if match is not None else at


PIECE_BYTES: Final = 4 << 20
# A trace of one operator in a loop becomes 80 times smaller.
_MAX_FACTOR: Final = 300
_SPARE_BYTES: Final = 64 << 20
PACKED_TAIL_LEFT_OUT: Final = "What follows the packed data is not packed with them and is left out, as `gzip -dc` does"
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
                    remarks.add(PACKED_TAIL_LEFT_OUT, "where it is unpacked", str(error))
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
    """Read a piece; a longer read would lose unpacked bytes if the data end in the middle."""
    read = getattr(file, "read1", file.read)
    return bytes(read(PIECE_BYTES))


EVENTS_KEY: Final = "traceEvents"
_HEAD_DECODER: Final = json.JSONDecoder(strict=False)


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
        key, at = _HEAD_DECODER.raw_decode(text, _skip(text, at))
        at = _skip(text, _expect(text, at, ":"))
        if key == EVENTS_KEY:
            at = _expect(text, at, "[")
            text[_skip(text, at)]  # at least one more sign, which tells whether the list is empty
            return at, values
        values[str(key)], at = _HEAD_DECODER.raw_decode(text, at)
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
