"""A document read as a dataclass: each field by its name and type, and nothing else is taken."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pytest

from tracer.capture.sources.source_line import SourceLine
from tracer.errors import RecordingError
from tracer.exporters.document import Document
from tracer.exporters.recording_file.kept_run_file import RECORDING


@dataclass(frozen=True)
class Part:
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Later:
    name: str
    count: int = 7


@dataclass(frozen=True)
class Whole:
    title: str
    is_open: bool
    words: tuple[str, ...]
    line: SourceLine | None
    first: Part
    rest: tuple[Part, ...]


WHOLE = Whole("a", True, ("b", "c"), SourceLine("train.py", 3), Part("d", 1), (Part("e", 2), Part("f", 3)))
AS_JSON = asdict(WHOLE) | {"words": ["b", "c"], "line": {"file": "train.py", "line": 3}, "rest": [
    {"name": "e", "count": 2}, {"name": "f", "count": 3}
]}  # fmt: skip


def test_every_field_is_read_by_its_type() -> None:
    assert Document(AS_JSON, RECORDING).record(Whole) == WHOLE
    without = Document({**AS_JSON, "line": None, "rest": []}, RECORDING).record(Whole)
    assert (without.line, without.rest) == (None, ())


@pytest.mark.parametrize(
    "changed",
    [
        {"title": 1},
        {"title": None},
        {"is_open": 1},
        {"words": ["b", 1]},
        {"line": {"file": "train.py"}},
        {"line": {"file": "train.py", "line": -1}},
        {"first": {"name": "d", "count": True}},
        {"first": None},
        {"rest": [{"name": "e"}]},
        {"rest": [1]},
    ],
)
def test_what_is_not_of_the_fields_type_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(RecordingError):
        Document({**AS_JSON, **changed}, RECORDING).record(Whole)


def test_a_field_with_a_default_may_be_missing_and_not_be_something_else() -> None:
    assert Document({"name": "a"}, RECORDING).record(Later) == Later("a", 7)
    with pytest.raises(RecordingError, match="count is not a whole number"):
        Document({"name": "a", "count": "8"}, RECORDING).record(Later)


def test_texts_are_printable_and_what_nobody_asked_for_is_left() -> None:
    document = Document({"name": "a\x1b[2J", "count": 1, "other": "x"}, RECORDING)
    assert "\x1b" not in document.record(Part).name
