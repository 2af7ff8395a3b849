"""A JSON document of a file that may be anybody's: every value is checked as it is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from tracer.errors import TracerError
from tracer.snapshot.remarks import printable

_MAX_NUMBER = 1 << 53
MAX_BYTES: Final = 64 << 20
_MAX_RECORDS = 1_000_000
_WORDS: Final = {
    int: "a whole number from 0 to 2**53",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
_Record = TypeVar("_Record")
_Value = TypeVar("_Value")


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


class Document:
    """A JSON object, read from a file or already parsed."""

    def __init__(self, data: bytes | dict[str, Any], source: Source, *, at_most: int = MAX_BYTES) -> None:
        self._source = source
        self._values = data if isinstance(data, dict) else _parse(data, source, at_most)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def unchecked(self) -> dict[str, Any]:
        """All of it as it is, for who checks it by other rules."""
        return dict(self._values)

    def check_format(self, name: str, version: int, what: str) -> None:
        """Refuse a file of another program or of a later version.

        Args:
            what: What it has to be, for people: `a recording of this program`.
        """
        if self._values.get("format") != name:
            raise self._source.refusal(f" is not {what}.")
        if (number := self.number("version")) > version:
            raise self._source.error(
                f"{self._source.name} is of format version {number}, and this program reads up to {version}.",
                hint="Use the version of this program that wrote it, or a later one.",
            )

    def refusal(self, complaint: str) -> TracerError:
        """The error that refuses the document; the complaint goes on behind its name."""
        return self._source.refusal(complaint)

    def _value(self, name: str, kind: type) -> Any:
        value = self._values.get(name)
        if type(value) is not kind:
            raise self._source.refusal(f": {name} is not {_WORDS[kind]}.")
        return value

    def number(self, name: str) -> int:
        """A whole number from 0 on."""
        value: int = self._value(name, int)
        if not 0 <= value <= _MAX_NUMBER:
            raise self._source.refusal(f": {name} is not {_WORDS[int]}.")
        return value

    def truth(self, name: str) -> bool:
        """True or false."""
        return bool(self._value(name, bool))

    def text(self, name: str) -> str:
        """A text, without what a terminal obeys."""
        return printable(self._value(name, str))

    def source(self, name: str) -> str:
        """A source file's text, as it is: it is read and never shown."""
        return str(self._value(name, str))

    def numbers(self, name: str, *, below: int = _MAX_NUMBER + 1) -> tuple[int, ...]:
        """A list of numbers, each from 0 to `below` - 1, such as row numbers."""
        values = self._value(name, list)
        if not all(type(value) is int and 0 <= value < below for value in values):
            raise self._source.refusal(f": {name} is not a list of numbers below {below:,}.")
        return tuple(values)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        values = self._value(name, list)
        if not all(type(value) is str for value in values):
            raise self._source.refusal(f": {name} is not a list of texts.")
        return tuple(map(printable, values))

    def documents(self, name: str, *, at_most: int) -> list[Document]:
        """A list of documents."""
        values = self._value(name, list)
        if len(values) > at_most or not all(type(value) is dict for value in values):
            raise self._source.refusal(f": {name} is not a list of {at_most:,} objects at most.")
        return [Document(value, self._source) for value in values]

    def document(self, name: str) -> Document:
        """A document inside this one."""
        return Document(self._value(name, dict), self._source)

    def or_none(self, name: str, read: Callable[[Document, str], _Value]) -> _Value | None:
        """A value that may be missing or null, as in `document.or_none("phase", Document.text)`."""
        return None if self._values.get(name) is None else read(self, name)

    def record(self, kind: type[_Record]) -> _Record:
        """The document as a dataclass or named tuple, each field by its own name and read by its own type.

        A field with a default may be missing: files of an earlier version do not have what came later.
        """
        make: Any = kind  # mypy does not take a class for hashable
        fields = [(name, type_) for name, type_, is_needed in _fields(make) if is_needed or name in self]
        record: _Record = make(**{name: self._field(name, type_) for name, type_ in fields})
        return record

    def _field(self, name: str, type_: Any) -> Any:
        if isinstance(type_, UnionType):
            return None if self._values.get(name) is None else self._field(name, get_args(type_)[0])
        if type_ in _READERS:
            return _READERS[type_](self, name)
        if get_origin(type_) is tuple:
            return tuple(entry.record(get_args(type_)[0]) for entry in self.documents(name, at_most=_MAX_RECORDS))
        return self.document(name).record(type_)

    def settings(self, name: str) -> dict[str, object]:
        """Texts, numbers and lists of these by name; a list comes back as the tuple that it was."""
        return {printable(key): _setting(value) for key, value in self._value(name, dict).items()}


_READERS: dict[Any, Callable[[Document, str], Any]] = {
    int: Document.number,
    bool: Document.truth,
    str: Document.text,
    tuple[str, ...]: Document.texts,
    tuple[int, ...]: Document.numbers,
}


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    parameters, types = signature(kind).parameters, get_type_hints(kind)
    return tuple((name, type_, parameters[name].default is Parameter.empty) for name, type_ in types.items())


def _setting(value: object) -> object:
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
