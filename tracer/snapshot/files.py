"""Opens a file that claims to be an allocator snapshot and refuses everything that plain data does not need.

Unpickling executes nothing: it reads plain data alone. The file may be packed by gzip, or in a zip archive such as
torch.save's.
"""

from __future__ import annotations

import errno
import gzip
import io
import pickle
import re
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

from tracer.errors import SnapshotError

HOW_TO_RECORD = "Record one with torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot(path)."
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_JSON_BYTES: Final = 1 << 16
"""Read of a file of JSON, to say what it is: Kineto writes the properties of the devices before its events."""


def read_objects(path: Path) -> Any:
    """Read the plain objects of a snapshot: a pickle of any protocol, packed or not.

    Raises:
        SnapshotError: The file is missing, unreadable, truncated, of another kind, or asks for Python globals.
    """
    try:
        with opened(path) as file:
            return _decode(file, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SnapshotError(f"Cannot read {path}: {reason}.", hint="Check the path and its permissions.") from error


def _decode(file: IO[bytes], path: Path) -> Any:
    head = b""
    try:
        head = file.peek(16)[:16]  # type: ignore[attr-defined]
        if not head:
            raise SnapshotError(f"{path} is empty (0 bytes).", hint="The dump was probably interrupted; take it again.")
        if head.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"["):
            what, hint = _json_words(file.read(_JSON_BYTES))
            raise SnapshotError(f"{path} is {what}, not an allocator snapshot.", hint=hint)
        content = DataOnlyUnpickler(file).load()
        if file.read(1):
            raise SnapshotError(
                "More follows the first pickle of the file.", hint="Write each snapshot to its own file."
            )
        return content
    except (SnapshotError, OSError):
        raise
    except MemoryError as error:
        raise SnapshotError(
            f"{path} asks for more memory than a snapshot of its size can need.", hint="The file is damaged or hostile."
        ) from error
    except Exception as error:
        # Garbage makes the decoders raise nearly anything: EOFError, KeyError, ValueError, RecursionError, ...
        complaint = _complaint(head, error)
        hint = "Unpack it first." if " packed " in complaint else _beside(path) or HOW_TO_RECORD
        raise SnapshotError(f"{path} {complaint}", hint=hint) from error


def _json_words(content: bytes) -> tuple[str, str]:
    """Return what a file of JSON is, by its first bytes, and a hint."""
    if b'"traceEvents"' in content:
        hint = "HTA and ui.perfetto.dev read it; torch.cuda.memory._dump_snapshot writes a snapshot."
        return "a profiler trace", hint
    if b'"torch-timeline ' in content:
        return "an answer of this program", "Name the memory_snapshot.pkl beside it, or compare two folders by `diff`."
    # `export_memory_timeline` writes [times, sizes] to .json and rows of time, action, size and category to .raw.json.
    if re.match(rb"\s*\[\s*\[\s*[-\d]", content):
        return "torch's memory timeline", HOW_TO_RECORD
    return "JSON", "Name the pickle that torch.cuda.memory._dump_snapshot() wrote."


def _beside(path: Path) -> str:
    snapshot = path.with_name("memory_snapshot.pkl")
    return f"Name {snapshot}." if path != snapshot and snapshot.is_file() else ""


def _complaint(head: bytes, error: Exception) -> str:
    for start, format_name in _OTHER_FILES:
        if head.lstrip().lower().startswith(start):
            return f"is {format_name}, not an allocator snapshot."
    if head.startswith(ZIP_MAGIC):
        return "is a zip archive that cannot be read."
    if isinstance(error, EOFError) or "truncated" in str(error) or "exhausted before end" in str(error):
        return "is truncated: it ends in the middle of its data."
    return f"is no pickle that can be read ({type(error).__name__})."


_OTHER_FILES: Final = (
    (b"<!doctype html", "a web page"),
    (b"<html", "a web page"),
    (b"sqlite format 3", "an SQLite database"),
    (b"\xfd7zxz\x00", "packed by xz"),
    (b"bzh", "packed by bzip2"),
    (b"\x28\xb5\x2f\xfd", "packed by Zstandard"),
)


class DataOnlyUnpickler(pickle.Unpickler):
    """Loads containers, numbers and text; nothing of the file is ever executed, and every global is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse a global of the pickle."""
        raise SnapshotError(
            f"The pickle asks for the Python object {module[:80]}.{name[:80]}, which a snapshot never needs.",
            hint="Do not load this file with pickle.load: it would run what the file says.",
        )

    def persistent_load(self, pid: object) -> Any:
        """Refuse a reference to an object outside of the file."""
        raise SnapshotError("The pickle refers to objects outside of the file, which a snapshot never does.")


# ---- containers ------------------------------------------------------------------------------------------------------

ZIP_MAGIC: Final = b"PK\x03\x04"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_FACTOR: Final = 60
"""How many times larger a packed snapshot may become. Measured on 3 MB with deep stacks: gzip 17."""


def packing(path: Path) -> str:
    """Return a file's container by its content, not its name; "" without one."""
    with path.open("rb") as file:
        head = file.read(4)
    return "zip" if head == ZIP_MAGIC else "gzip" if head.startswith(_GZIP_MAGIC) else ""


def packed_factor(path: Path) -> int:
    """Return the largest factor between the content of an honest file and the file."""
    return _FACTOR if packing(path) else 1


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The unpacked content of a file, with `peek`.

    Raises:
        SnapshotError: It is packed in something that cannot be opened here.
    """
    kind = packing(path)
    with path.open("rb") as file:
        if kind == "zip":
            with _in_archive(file, path) as member:
                yield member
        elif kind:
            with gzip.open(file, "rb") as unpacked:
                yield cast(IO[bytes], unpacked)
        else:
            yield file


def why_no_file(path: Path) -> str:
    """Return, as the end of a sentence, why a path is no ordinary file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        is_loop = error.errno == errno.ELOOP
        return "is a link that leads back to itself" if is_loop else f"cannot be looked at: {error.strerror}"
    return "is a directory" if stat.S_ISDIR(mode) else "is no file, but a pipe or a device"


@contextmanager
def _in_archive(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """The only member, or torch.save's `data.pkl`."""
    try:
        archive = zipfile.ZipFile(file)
        names = [name for name in archive.namelist() if not name.endswith("/")]
        chosen = [name for name in names if name.endswith("/data.pkl") or name == "data.pkl"] or names
        if names and all(name.endswith(".npy") for name in names):
            raise SnapshotError(
                f"{path} holds numpy's arrays, as a kept recording does, and is not an allocator snapshot.",
                hint="The command `report` reads kept recordings; a snapshot may lie beside it.",
            )
        if len(chosen) != 1:
            raise SnapshotError(
                f"{path} is a zip archive with {len(chosen)} files.", hint="Unpack it and name the snapshot."
            )
        with archive.open(chosen[0]) as member:
            yield io.BufferedReader(cast(Any, member))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        # An unknown compression or a password.
        raise SnapshotError(
            f"{path} is a zip archive that cannot be read ({error}).", hint="Unpack it first."
        ) from error
