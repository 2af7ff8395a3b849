"""A JSON document of a file that may be anybody's: every value is checked as it is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from tracer.errors import RecordingError
from tracer.exporters.recording_file.checked_columns import DAMAGED
from tracer.snapshot.printable import printable

_MAX_NUMBER = 1 << 53
_MAX_DOCUMENT_BYTES = 64 << 20
_MAX_RECORDS = 1_000_000
_Record = TypeVar("_Record")


class Document:
    """A JSON object."""

    def __init__(self, data: bytes | dict[str, Any]) -> None:
        self._values = data if isinstance(data, dict) else _parse(data)

    def unchecked(self) -> dict[str, Any]:
        """All of it as it is, for who checks it by other rules."""
        return dict(self._values)

    def check_format(self, name: str, version: int) -> None:
        """Refuse a file of another program or of a later version.

        Raises:
            RecordingError: It is.
        """
        if self._values.get("format") != name:
            raise RecordingError("The file is not a recording of this program.", hint=DAMAGED)
        number = self.number("version")
        if number > version:
            raise RecordingError(
                f"The recording is of format version {number}, and this program reads up to {version}.",
                hint="Use the version of this program that wrote it, or a later one.",
            )

    def _value(self, name: str, kind: type) -> Any:
        value = self._values.get(name)
        if type(value) is not kind:
            raise RecordingError(f"{name} of the recording is not what it should be.", hint=DAMAGED)
        return value

    def number(self, name: str) -> int:
        """A whole number from 0 on."""
        value: int = self._value(name, int)
        if not 0 <= value <= _MAX_NUMBER:
            raise RecordingError(f"{name} of the recording is not a number from 0 to 2**53.", hint=DAMAGED)
        return value

    def number_or_none(self, name: str) -> int | None:
        """A whole number from 0 on, or none."""
        return None if self._values.get(name) is None else self.number(name)

    def truth(self, name: str) -> bool:
        """True or false."""
        return bool(self._value(name, bool))

    def text(self, name: str) -> str:
        """A text, without what a terminal obeys."""
        return printable(self._value(name, str))

    def source(self, name: str) -> str:
        """A source file's text, as it is: it is read and never shown."""
        return str(self._value(name, str))

    def numbers(self, name: str, *, below: int) -> tuple[int, ...]:
        """A list of row numbers, each from 0 to `below` - 1."""
        values = self._value(name, list)
        if not all(type(value) is int and 0 <= value < below for value in values):
            raise RecordingError(f"{name} of the recording are not all rows of what they name.", hint=DAMAGED)
        return tuple(values)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        values = self._value(name, list)
        if not all(type(value) is str for value in values):
            raise RecordingError(f"{name} of the recording are not all texts.", hint=DAMAGED)
        return tuple(map(printable, values))

    def texts_or_none(self, name: str) -> tuple[str, ...] | None:
        """A list of texts, or none."""
        return None if self._values.get(name) is None else self.texts(name)

    def documents(self, name: str, *, at_most: int) -> list[Document]:
        """A list of documents."""
        values = self._value(name, list)
        if len(values) > at_most or not all(type(value) is dict for value in values):
            raise RecordingError(f"{name} of the recording are not what they should be.", hint=DAMAGED)
        return [Document(value) for value in values]

    def document_or_none(self, name: str) -> Document | None:
        """A document inside this one, or none."""
        return None if self._values.get(name) is None else Document(self._value(name, dict))

    def record(self, kind: type[_Record]) -> _Record:
        """The document as a dataclass or named tuple, each field by its own name and read by its own type.

        Raises:
            RecordingError: A field is not there, or is not of its type.
        """
        return kind(**{name: self._field(name, type_) for name, type_ in get_type_hints(kind).items()})

    def _field(self, name: str, type_: Any) -> Any:
        if isinstance(type_, UnionType):
            return None if self._values.get(name) is None else self._field(name, get_args(type_)[0])
        if type_ in _READERS:
            return _READERS[type_](self, name)
        if get_origin(type_) is tuple:
            return tuple(entry.record(get_args(type_)[0]) for entry in self.documents(name, at_most=_MAX_RECORDS))
        return Document(self._value(name, dict)).record(type_)

    def settings(self, name: str) -> dict[str, object]:
        """Texts, numbers and lists of these by name; a list comes back as the tuple that it was."""
        return {printable(key): _setting(value) for key, value in self._value(name, dict).items()}


_READERS: dict[Any, Callable[[Document, str], Any]] = {
    int: Document.number,
    bool: Document.truth,
    str: Document.text,
    tuple[str, ...]: Document.texts,
}


def _setting(value: object) -> object:
    if isinstance(value, list):
        return tuple(_setting(entry) if not isinstance(entry, list) else printable(str(entry)) for entry in value)
    if isinstance(value, dict):
        return printable(str(value))
    return printable(value) if isinstance(value, str) else value


def _parse(data: bytes) -> dict[str, Any]:
    if len(data) > _MAX_DOCUMENT_BYTES:
        raise RecordingError("The recording's own description is larger than any.", hint=DAMAGED)
    try:
        document = json.loads(data)
    # Bad numbers and bad encodings are ValueErrors too; brackets without end are a RecursionError.
    except (ValueError, RecursionError) as error:
        raise RecordingError(
            f"The recording's own description is not JSON ({type(error).__name__}).", hint=DAMAGED
        ) from error
    if not isinstance(document, dict):
        raise RecordingError("The recording's own description is no JSON object.", hint=DAMAGED)
    return document
