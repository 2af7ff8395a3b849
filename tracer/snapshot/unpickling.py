"""Unpickling that executes nothing: plain data, and stand-ins for the few names of plain data that people store."""

from __future__ import annotations

import pickle
from typing import Any, Final

from tracer.errors import SnapshotError

_TORCHS_MAGIC: Final = 0x1950A86A20F9469CFC6C
_MAX_ITEM_BYTES: Final = 8


class DataOnlyUnpickler(pickle.Unpickler):
    """Loads containers, numbers and text; nothing of the file is ever executed.

    Names of a closed list stand for functions of ours: an OrderedDict is read as a dict, numpy's integers and floats as
    Python's. Every other global is refused.
    """

    def find_class(self, module: str, name: str) -> Any:
        """The plain stand-in for a global of the pickle.

        Raises:
            SnapshotError: It is not on the list.
        """
        stand_in = _STAND_INS.get((module, name))
        if stand_in is None:
            raise SnapshotError(
                f"The pickle asks for the Python object {module[:80]}.{name[:80]}, which a snapshot never needs.",
                hint="Do not load this file with pickle.load: it would run what the file says.",
            )
        return stand_in

    def persistent_load(self, pid: object) -> Any:
        """Refuse a reference to an object outside of the file.

        Raises:
            SnapshotError: Always.
        """
        raise SnapshotError("The pickle refers to objects outside of the file, which a snapshot never does.")


class _DataType:
    """What numpy writes of the type of a number: `i8` and, as its state, the order of the bytes."""

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
    """What stands for `OrderedDict(...)`, whose items follow or are given as a list of pairs."""
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
