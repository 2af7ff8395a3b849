"""Opens a file that claims to be an allocator snapshot and refuses everything that plain data does not need."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from pathlib import Path
from typing import Any, NoReturn

from tracer.errors import SnapshotError

HOW_TO_RECORD = "Record one with torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot(path)."
_GZIP_MAGIC = b"\x1f\x8b"


class _DataOnlyUnpickler(pickle.Unpickler):
    """Loads containers, numbers and text; every global is refused, so nothing of the file is ever executed."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise SnapshotError(
            f"The pickle asks for the Python object {module[:80]}.{name[:80]}, which a snapshot never needs.",
            hint="Do not load this file with pickle.load: it would run what the file says.",
        )

    def persistent_load(self, pid: object) -> NoReturn:
        raise SnapshotError("The pickle refers to objects outside of the file, which a snapshot never does.")


def read_objects(path: Path) -> Any:
    """Read the plain objects of a snapshot: a pickle of any protocol or its JSON dump, either of them gzipped or not.

    Raises:
        SnapshotError: The file is missing, unreadable, truncated, of another kind, or asks for Python globals.
    """
    try:
        with path.open("rb") as file:
            if file.peek(2)[:2] == _GZIP_MAGIC:
                with gzip.open(file, "rb") as unpacked:
                    return _decode(unpacked, path)
            return _decode(file, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SnapshotError(f"Cannot read {path}: {reason}.", hint="Check the path and its permissions.") from error


def is_gzipped(path: Path) -> bool:
    """Whether the content, not the name, says gzip."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP_MAGIC


def _decode(file: io.BufferedReader | gzip.GzipFile, path: Path) -> Any:
    head = file.peek(16)[:16]
    if not head:
        raise SnapshotError(f"{path} is empty (0 bytes).", hint="The dump was probably interrupted; take it again.")
    try:
        if head.lstrip()[:1] in (b"{", b"["):
            return json.load(file, object_hook=_FrameSharing())
        return _DataOnlyUnpickler(file).load()
    except (SnapshotError, OSError):
        raise
    except MemoryError as error:
        raise SnapshotError(
            f"{path} asks for more memory than a snapshot of its size can need.", hint="The file is damaged or hostile."
        ) from error
    except Exception as error:
        # Garbage makes the decoders raise nearly anything: EOFError, KeyError, ValueError, RecursionError, ...
        raise SnapshotError(f"{path} {_complaint(head, error)}", hint=HOW_TO_RECORD) from error


def _complaint(head: bytes, error: Exception) -> str:
    if head.startswith(b"PK\x03\x04"):
        return "is a zip archive (torch.save writes those), not an allocator snapshot."
    if isinstance(error, EOFError) or "truncated" in str(error) or "exhausted before end" in str(error):
        return "is truncated: it ends in the middle of its data."
    return f"is neither a pickle nor JSON that can be read ({type(error).__name__})."


class _FrameSharing:
    """Makes equal stack frames of a JSON dump one object again, as they are in a pickle."""

    def __init__(self) -> None:
        self._frames: dict[tuple[Any, Any, Any], dict[str, Any]] = {}

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        if "filename" not in item or "name" not in item:
            return item
        key = (item["name"], item["filename"], item.get("line"))
        return self._frames.setdefault(key, item)
