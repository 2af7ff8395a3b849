"""Plain objects as columns: dicts, lists, tuples, texts and numbers, each object once however often it is pointed to.

So the allocator's own snapshot is kept. As JSON the stack of every entry would be written out; and what is pickled
again is the same to the byte only if what was one object is one object again.

Two equal texts that are two objects stay two, since pickle tells them apart.

Shapes: X objects, each behind all that it holds; I items of containers, one container after the other; T texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.errors import RecordingError
from tracer.exporters.recording_file.checked_columns import DAMAGED, Columns, text_columns

MAX_VISITS = 1_000_000_000
"""Objects in a walk that follows every pointer. An object that holds itself many times over would be without end."""


class Code(IntEnum):
    """What a row of `<name>.code` stands for; `<name>.value` has the rest."""

    NONE = 0
    FALSE = 1
    TRUE = 2
    INT = 3  # The number itself
    LARGE_INT = 4  # Row of the texts: in decimals, what 64 bits do not hold
    FLOAT = 5  # The number's bits
    TEXT = 6  # Row of the texts
    LIST = 7  # How many items it has; so for TUPLE. The items are rows of objects
    TUPLE = 8
    DICT = 9  # How many entries it has: of each the key, then the value


_SIMPLE = {None: Code.NONE, False: Code.FALSE, True: Code.TRUE}
_CONTAINERS: dict[type, Code] = {list: Code.LIST, tuple: Code.TUPLE, dict: Code.DICT}


class _Writer:
    def __init__(self) -> None:
        self.code: list[int] = []
        self.value: list[int] = []
        self.items: list[int] = []
        self.texts: list[str] = []
        self._row: dict[int, int] = {}

    def add(self, root: Any) -> None:
        """Add an object behind all that it holds, without recursion: a stack may be any depth."""
        pending: list[tuple[Any, bool]] = [(root, False)]
        while pending:
            item, is_open = pending.pop()
            if id(item) in self._row:
                continue
            inner = _inner(item)
            if inner is None:
                self._put(item, *self._scalar(item))
            elif is_open:
                self.items += [self._row[id(part)] for part in inner]
                self._put(item, _CONTAINERS[type(item)], len(item))
            else:
                pending.append((item, True))
                pending += [(part, False) for part in reversed(inner)]

    def _put(self, item: Any, code: int, value: int) -> None:
        self._row[id(item)] = len(self.code)
        self.code.append(code)
        self.value.append(value)

    def _scalar(self, scalar: Any) -> tuple[int, int]:
        if scalar is None or scalar is True or scalar is False:
            return _SIMPLE[scalar], 0
        if type(scalar) is int:
            if -(1 << 63) <= scalar < 1 << 63:
                return Code.INT, scalar
            return Code.LARGE_INT, self._text(str(scalar))
        if type(scalar) is float:
            return Code.FLOAT, int(np.float64(scalar).view(np.int64))
        if type(scalar) is str:
            return Code.TEXT, self._text(scalar)
        raise TypeError(f"a {type(scalar).__name__} is not a plain object")

    def _text(self, text: str) -> int:
        self.texts.append(text)
        return len(self.texts) - 1


def _inner(container: Any) -> list[Any] | None:
    """What a container holds, keys before their values; None for what holds nothing."""
    if type(container) is dict:
        return [part for entry in container.items() for part in entry]
    return list(container) if type(container) in (list, tuple) else None


def object_columns(name: str, root: Any) -> dict[str, npt.NDArray[Any]]:
    """The columns of an object, of which the last row is itself.

    Args:
        root: Dicts, lists, tuples, texts, numbers and None, nothing of which holds itself.
    """
    writer = _Writer()
    writer.add(root)
    columns = {"code": writer.code, "value": writer.value, "items": writer.items}
    return {
        **{f"{name}.{key}": np.array(column, np.int64) for key, column in columns.items()},
        **text_columns(f"{name}.texts", writer.texts),
    }


def object_from(columns: Columns, name: str) -> Any:
    """The object that was stored in these columns."""
    codes = columns.ints(f"{name}.code", low=0, high=max(Code))
    values = columns.ints(f"{name}.value", low=-(1 << 63), high=(1 << 63) - 1, length=len(codes))
    items = columns.ints(f"{name}.items", low=0, high=len(codes) - 1).tolist()
    texts = columns.texts(f"{name}.texts", as_is=True)
    objects: list[Any] = []
    visits: list[int] = []
    at = 0
    for code, value in zip(codes.tolist(), values.tolist(), strict=True):
        width = _width(code, value)
        inner = items[at : at + width]
        at += width
        if width < 0 or len(inner) < width or any(row >= len(objects) for row in inner):
            raise RecordingError(f"Objects of {name} hold what is not there.", hint=DAMAGED)
        objects.append(_made(name, code, value, [objects[row] for row in inner], texts))
        visits.append(1 + sum(visits[row] for row in inner))
        if visits[-1] > MAX_VISITS:
            raise RecordingError(f"Objects of {name} hold each other without end.", hint=DAMAGED)
    if not objects or at != len(items):
        raise RecordingError(f"Objects of {name} are not complete.", hint=DAMAGED)
    return objects[-1]


def _width(code: int, value: int) -> int:
    """Items that an object has."""
    return {Code.LIST: value, Code.TUPLE: value, Code.DICT: 2 * value}.get(Code(code), 0)


def _made(name: str, code: int, value: int, inner: list[Any], texts: tuple[str, ...]) -> Any:
    if code in (Code.LARGE_INT, Code.TEXT):
        if not 0 <= value < len(texts):
            raise RecordingError(f"Objects of {name} name a text that is not there.", hint=DAMAGED)
        return texts[value] if code == Code.TEXT else _large(name, texts[value])
    if code == Code.DICT:
        return dict(_entries(name, inner))
    containers = {Code.LIST: list, Code.TUPLE: tuple}
    if code in containers:
        return containers[Code(code)](inner)
    if code == Code.FLOAT:
        return float(np.int64(value).view(np.float64))
    return value if code == Code.INT else {Code.NONE: None, Code.FALSE: False, Code.TRUE: True}[Code(code)]


def _large(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise RecordingError(f"Objects of {name} have a number that is none.", hint=DAMAGED) from error


def _entries(name: str, inner: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Keys are texts and numbers, as in every snapshot."""
    for key, value in zip(inner[::2], inner[1::2], strict=True):
        if not isinstance(key, str | int):
            raise RecordingError(f"Objects of {name} have a key that is none.", hint=DAMAGED)
        yield key, value
