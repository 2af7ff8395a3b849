"""The profiler's own trace of each cycle, kept out of memory until it is known which cycle's is wanted.

What the profiler holds of a cycle is too large to keep for many of them, and its trace can be written only once. So it
is written as soon as the cycle is read, packed into one nameless temporary file, about 20 bytes an event, which the
system takes back when this process ends, however it ends.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from tracer.capture.torch_private.torch_profiler import save_trace
from tracer.errors import OutputError, TracerError

if TYPE_CHECKING:
    from tracer.capture.recording import ProfilerTrace


_CHUNK_BYTES, _TAIL_BYTES = 1 << 20, 1 << 14


class TraceStore:
    """The traces of a run's cycles."""

    def __init__(self) -> None:
        self._file: Any = None
        self._parts: list[tuple[int, int] | TracerError] = []

    def add(self, results: Any) -> None:
        """Take the next cycle's trace from the profiler's results. What keeps it from that is told when it is read."""
        try:
            self._parts.append(self._take(results))
        except TracerError as error:
            self._parts.append(error)
        except OSError as error:
            reason = error.strerror or str(error)
            self._parts.append(
                OutputError(
                    f"The profiler's trace could not be kept in {tempfile.gettempdir()}: {reason}.",
                    hint="Set TMPDIR to a folder with more room.",
                )
            )

    def forget_first(self) -> None:
        """Forget the first cycle's trace; its bytes stay in the file."""
        del self._parts[0]

    def _take(self, results: Any) -> tuple[int, int]:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the store lives
            finalize(self, self._file.close)
        start = self._file.seek(0, os.SEEK_END)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            save_trace(results, path)
            _forget_place(path)
            packer = zlib.compressobj(1)
            with path.open("rb") as text:
                while chunk := text.read(_CHUNK_BYTES):
                    self._file.write(packer.compress(chunk))
            self._file.write(packer.flush())
        return start, self._file.tell()

    def trace(self, number: int) -> ProfilerTrace:
        """The trace of a cycle, counted from 0."""
        from tracer.capture.recording import ProfilerTrace

        return ProfilerTrace(os.getpid(), partial(self._chunks, number))

    def _chunks(self, number: int) -> Iterator[bytes]:
        part = self._parts[number]
        if isinstance(part, TracerError):
            raise part
        position, end = part
        unpacker = zlib.decompressobj()
        while position < end:
            self._file.seek(position)
            packed = self._file.read(min(_CHUNK_BYTES // 16, end - position))
            position += len(packed)
            while packed:
                yield unpacker.decompress(packed, _CHUNK_BYTES)
                packed = unpacker.unconsumed_tail
        yield unpacker.flush()


def _forget_place(path: Path) -> None:
    """The trace ends with the name of the file that the profiler wrote, which is nobody's business and soon gone."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - _TAIL_BYTES))
        tail, name = file.read(), json.dumps(str(path)).encode()
        if (at := tail.rfind(name)) >= 0:
            file.seek(start + at)
            file.write(json.dumps(path.name).encode() + tail[at + len(name) :])
            file.truncate()
