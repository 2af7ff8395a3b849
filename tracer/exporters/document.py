"""A JSON document of a file that may be anybody's: every value is checked as it is taken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from tracer.errors import TracerError
from tracer.snapshot.text import printable

_MAX_NUMBER = 1 << 53
MAX_BYTES: Final = 64 << 20
_MAX_RECORDS = 1_000_000
_WORDS: Final[dict[type, str]] = {
    int: "a whole number from 0 to 2**53",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
# Fields in which -1 stands for a missing value.
_CAN_LACK = {"module_id", "num_outputs", "shapes", "time_us"}
_Record = TypeVar("_Record")


class Source(NamedTuple):
    """The name of what a document is read from, and the error that refuses it."""

    name: str
    error: type[TracerError]
    hint: str

    def refusal(self, complaint: str) -> TracerError:
        """The error for a complaint, which goes on behind the name: ` is damaged.`."""
        return self.error(f"{self.name}{complaint}", hint=self.hint)


def read_document(path: Path, source: Source, *, at_most: int = MAX_BYTES, hint: str) -> Document:
    """Read a file of no more than some bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(at_most + 1)
    except OSError as error:
        raise source.error(f"Cannot read {path}: {error.strerror or error}.", hint=hint) from error
    return Document(data, source, at_most=at_most)


def plain_values(value: Any, at: str = "", columns: dict[str, np.ndarray[Any, Any]] | None = None) -> Any:
    """Return a value as JSON has it, with null for each array, which joins the columns under the path to it.

    `Document.record` reads it back.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, np.ndarray):
        assert columns is not None  # a document alone has no place for arrays
        columns[at] = value
        return None
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, Mapping):
        prefix = f"{at}." if at else ""
        return {str(key): plain_values(entry, f"{prefix}{key}", columns) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain_values(entry, f"{at}.{row}", columns) for row, entry in enumerate(value)]
    return value


class Document:
    """A JSON object, read from a file or already parsed."""

    def __init__(
        self,
        data: bytes | dict[str, Any],
        source: Source,
        *,
        at_most: int = MAX_BYTES,
        columns: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> None:
        """Take a document.

        Args:
            columns: Arrays beside it: one that a field holds has the path to it as its name, such as `known.time_ns`.
        """
        self._source = source
        self._columns = columns or {}
        self._values = data if isinstance(data, dict) else _parse(data, source, at_most)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def check_format(self, name: str, version: int, what: str) -> int:
        """Refuse a file of another program or of a later version; return its version.

        Args:
            what: What it has to be, for people: `a recording of this program`.
        """
        if self._values.get("format") != name:
            raise self._source.refusal(f" is not {what}.")
        number: int = self.read("version", int)
        if number > version:
            raise self._source.error(
                f"{self._source.name} is of format version {number}, and this program reads up to {version}.",
                hint="Use the version of this program that wrote it, or a later one.",
            )
        return number

    def refusal(self, complaint: str) -> TracerError:
        """The error that refuses the document; the complaint goes on behind its name."""
        return self._source.refusal(complaint)

    def read(self, name: str, kind: Any) -> Any:
        """Return the value of a name, which has to be of a type such as `str | None` or `tuple[Row, ...]`.

        Texts lose what a terminal obeys, but for the source in a field `text`, which is read and never shown.
        """
        return self._value(name, self._values.get(name), kind)

    def record(self, kind: type[_Record]) -> _Record:
        """The document as a dataclass or named tuple, each field by its own name and read by its own type.

        A field with a default may be missing: files of an earlier version do not have what came later.
        """
        record: _Record = self._record("", self._values, kind)
        return record

    def _record(self, at: str, values: Mapping[str, Any], kind: Any) -> Any:
        read = {
            name: self._value(f"{at}{name}", values.get(name), type_)
            for name, type_, is_needed in _fields(kind)
            if is_needed or name in values
        }
        try:
            return kind(**read)
        except ValueError as error:  # of a table whose columns differ in length
            raise self._source.refusal(f": {at}{error}.") from error

    def _value(self, at: str, value: Any, kind: Any) -> Any:
        """Return a value as its type; `at` is the path to it, such as `cycles.0.is_whole`."""
        if kind in _WORDS:
            return self._plain(at, value, kind)
        if isinstance(kind, UnionType):
            return None if value is None else self._value(at, value, get_args(kind)[0])
        origin, inner = get_origin(kind) or kind, get_args(kind)
        if origin is np.ndarray:
            return self._column(at, *get_args(inner[1]))
        if origin in (object, Any):
            return _setting(value)
        if origin is Literal:
            if value not in inner:
                raise self._source.refusal(f": {at} is none of {', '.join(map(str, inner))}.")
            return value
        if origin in (tuple, frozenset):
            entries = self._checked(at, value, list)
            if len(entries) > _MAX_RECORDS:
                raise self._source.refusal(f": {at} is not a list of {_MAX_RECORDS:,} entries at most.")
            return origin(self._value(f"{at}.{row}", entry, inner[0]) for row, entry in enumerate(entries))
        if inner:
            return {
                self._key(at, key, inner[0]): self._value(f"{at}.{key}", entry, inner[1])
                for key, entry in self._checked(at, value, dict).items()
            }
        return self._record(f"{at}.", self._checked(at, value, dict), kind)

    def _plain(self, at: str, value: Any, kind: type) -> Any:
        value = self._checked(at, value, kind)
        if kind is str:
            return value if at.endswith(".text") else printable(value)
        if kind is int and not 0 <= value <= _MAX_NUMBER and (value != -1 or _CAN_LACK.isdisjoint(at.split("."))):
            raise self._source.refusal(f": {at} is not {_WORDS[int]}.")
        return value

    def _checked(self, at: str, value: Any, kind: type) -> Any:
        if type(value) is not kind:
            raise self._source.refusal(f": {at} is not {_WORDS[kind]}.")
        return value

    def _key(self, at: str, key: str, kind: type) -> Any:
        if kind is str:
            return printable(key)
        if not key.isdecimal() or len(key) > len(str(_MAX_NUMBER)):
            raise self._source.refusal(f": {at} has a key that is no number.")
        return int(key)

    def _column(self, at: str, kind: type[np.generic]) -> np.ndarray[Any, Any]:
        column = self._columns.get(at)
        if column is None or column.dtype != kind:
            found = "missing" if column is None else f"of {column.dtype}"
            raise self._source.refusal(f": column {at}, of {np.dtype(kind)}, is {found}.")
        return column


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    parameters, types = signature(kind).parameters, get_type_hints(kind)
    return tuple((name, types[name], each.default is Parameter.empty) for name, each in parameters.items())


def _setting(value: object) -> object:
    """Return a setting as it was, with a tuple in place of a JSON list, and texts that are safe to print."""
    if isinstance(value, list):
        return tuple(_setting(entry) if not isinstance(entry, list) else printable(str(entry)) for entry in value)
    if isinstance(value, dict):
        return printable(str(value))
    return printable(value) if isinstance(value, str) else value


def _parse(data: bytes, source: Source, at_most: int) -> dict[str, Any]:
    if len(data) > at_most:
        raise source.refusal(" is larger than any.")
    try:
        document = json.loads(data)
    # Bad numbers and bad encodings are ValueErrors too; brackets without end are a RecursionError.
    except (ValueError, RecursionError) as error:
        raise source.refusal(f" is not JSON that can be read ({type(error).__name__}).") from error
    if not isinstance(document, dict):
        raise source.refusal(f" holds a {type(document).__name__}, not an object.")
    return document
