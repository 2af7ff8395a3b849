"""Opens a file that claims to be an allocator snapshot and refuses everything that plain data does not need.

Unpickling executes nothing: plain data, and stand-ins for the few names of plain data that people store.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import IO, Any, Final

from tracer.errors import SnapshotError
from tracer.snapshot.containers import ZIP_MAGIC, opened
from tracer.snapshot.remarks import Remarks

HOW_TO_RECORD = "Record one with torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot(path)."
# Each costs another reading of the file.
_MOST_ODD_TEXTS: Final = 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_JSON_BYTES: Final = 1 << 16
"""Read of a file of JSON, to say what it is: Kineto writes the properties of the devices before its events."""


def read_objects(path: Path, remarks: Remarks) -> Any:
    """Read the plain objects of a snapshot: a pickle of any protocol, packed or not.

    Raises:
        SnapshotError: The file is missing, unreadable, truncated, of another kind, or asks for Python globals.
    """
    try:
        try:
            with opened(path) as file:
                return _decode(file, path, remarks)
        except UnicodeDecodeError as error:
            with opened(path) as file:
                return _decode_marked(file.read(), error, path, remarks)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SnapshotError(f"Cannot read {path}: {reason}.", hint="Check the path and its permissions.") from error


def _decode_marked(content: bytes, error: UnicodeDecodeError, path: Path, remarks: Remarks) -> Any:
    """The objects of a file with texts that are not UTF-8, as names of C++ need not be: a mark for each wrong byte."""
    for _ in range(_MOST_ODD_TEXTS):
        odd = bytes(error.object)
        remarks.add("A text is not UTF-8 and is read with ? where it is not", "it is", odd[:80])
        content = content.replace(odd, _marked(odd))
        try:
            return _decode(io.BufferedReader(io.BytesIO(content)), path, remarks)
        except UnicodeDecodeError as another:
            error = another
    raise SnapshotError(f"{path} {_complaint(content[:16], error)}", hint=HOW_TO_RECORD)


def _marked(text: bytes) -> bytes:
    """The text with marks, as long as it was: a pickle says how long each is."""
    while True:
        try:
            text.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            text = text[: error.start] + b"?" * (error.end - error.start) + text[error.end :]
        else:
            return text


def _decode(file: IO[bytes], path: Path, remarks: Remarks) -> Any:
    head = b""
    try:
        head = file.peek(16)[:16]  # type: ignore[attr-defined]
        if not head:
            raise SnapshotError(f"{path} is empty (0 bytes).", hint="The dump was probably interrupted; take it again.")
        if head.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"["):
            what, hint = _json_words(file.read(_JSON_BYTES))
            raise SnapshotError(f"{path} is {what}, not an allocator snapshot.", hint=hint)
        return _unpickled(file, remarks)
    except (SnapshotError, OSError, UnicodeDecodeError):
        raise
    except MemoryError as error:
        raise SnapshotError(
            f"{path} asks for more memory than a snapshot of its size can need.", hint="The file is damaged or hostile."
        ) from error
    except Exception as error:
        # Garbage makes the decoders raise nearly anything: EOFError, KeyError, ValueError, RecursionError, ...
        raise SnapshotError(f"{path} {_complaint(head, error)}", hint=_beside(path) or HOW_TO_RECORD) from error


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


def _unpickled(file: IO[bytes], remarks: Remarks) -> Any:
    """The first pickle of the file; of what torch.save wrote before its zip archives, the one that holds the data."""
    content = DataOnlyUnpickler(file).load()
    if is_torchs_magic(content):
        for _ in ("protocol", "system", "data"):
            content = DataOnlyUnpickler(file).load()
    elif rest := file.read(1):
        remarks.add("More follows the first pickle of the file and is not read", "it begins with", rest)
    return content


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
)


_TORCHS_MAGIC: Final = 0x1950A86A20F9469CFC6C
_MAX_ITEM_BYTES: Final = 8


class DataOnlyUnpickler(pickle.Unpickler):
    """Loads containers, numbers and text; nothing of the file is ever executed.

    Names of a closed list stand for functions of ours: an OrderedDict is read as a dict, numpy's integers and floats as
    Python's. Every other global is refused.
    """

    def find_class(self, module: str, name: str) -> Any:
        """The plain stand-in for a global of the pickle."""
        stand_in = _STAND_INS.get((module, name))
        if stand_in is None:
            raise SnapshotError(
                f"The pickle asks for the Python object {module[:80]}.{name[:80]}, which a snapshot never needs.",
                hint="Do not load this file with pickle.load: it would run what the file says.",
            )
        return stand_in

    def persistent_load(self, pid: object) -> Any:
        """Refuse a reference to an object outside of the file."""
        raise SnapshotError("The pickle refers to objects outside of the file, which a snapshot never does.")


class _DataType:
    """Numpy's words for the type of a number: `i8` and, as its state, the order of the bytes."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code if type(code) is str else ""
        self.is_big_endian = False

    def __setstate__(self, state: object) -> None:
        self.is_big_endian = type(state) is tuple and len(state) > 1 and state[1] == ">"


def _number(kind: object, content: object = b"", *_: object) -> object:
    """A scalar of numpy's as Python's; None for what is neither an integer nor a truth value."""
    if type(kind) is not _DataType or type(content) is not bytes or len(content) > _MAX_ITEM_BYTES:
        return None
    order: Any = "big" if kind.is_big_endian else "little"
    if kind.code[:1] == "b":
        return content != b"\0"
    return int.from_bytes(content, order, signed=kind.code[:1] == "i") if kind.code[:1] in ("i", "u") else None


def _plain_dict(*items: object) -> dict[Any, Any]:
    """A stand-in for `OrderedDict(...)`, whose items follow or are given as a list of pairs."""
    pairs = items[0] if items and type(items[0]) is list else []
    return {pair[0]: pair[1] for pair in pairs if type(pair) in (list, tuple) and len(pair) == 2}


def _bytes(text: object, encoding: object = "latin1", *_: object) -> bytes | None:
    """How protocols before 3 write bytes."""
    return text.encode("latin1") if type(text) is str and encoding == "latin1" else None


_STAND_INS: Final = {
    ("collections", "OrderedDict"): _plain_dict,
    ("_codecs", "encode"): _bytes,
    ("numpy", "dtype"): _DataType,
    ("numpy.core.multiarray", "scalar"): _number,
    ("numpy._core.multiarray", "scalar"): _number,
}


def is_torchs_magic(value: object) -> bool:
    """Whether it is the number with which torch.save began a file before it wrote zip archives.

    Source:
        `MAGIC_NUMBER` in `torch/serialization.py`.
    """
    return type(value) is int and value == _TORCHS_MAGIC
