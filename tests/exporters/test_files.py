"""Files that appear whole or not at all, documents read as dataclasses, annotated source and notebooks."""

from __future__ import annotations

import json
import os
import stat
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.blocks.from_snapshot.recorded_program import objects_of
from tests.pieces import tiny_fno
from tracer.answers.line_memory import LineMemory
from tracer.answers.run_results import RunResults
from tracer.capture.objects.at_failure import Holder, Operand
from tracer.capture.objects.later_uses import LargeBlocks, LaterUses, Making, NextUse, SecondRun, Sized
from tracer.capture.sources.source_line import SourceLine
from tracer.errors import MissingPackageError, OutputError, RecordingError
from tracer.exporters import notebook
from tracer.exporters.annotated_source import annotate, annotated_files, freed_words
from tracer.exporters.document import Document
from tracer.exporters.facts_file import FailureFactsFile, facts_path, read_facts, write_facts
from tracer.exporters.files import check_folder, remove, replacing, write_atomically
from tracer.exporters.recording_file.kept_run_file import RECORDING
from tracer.sessions.schedule import Schedule
from tracer.sessions.workload_run import run_profile

# ---- Files appear whole or not at all.


def everything_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize(("content", "data"), [("grün\n", "grün\n".encode()), (b"\x00\xff", b"\x00\xff"), ("", b"")])
def test_a_file_and_its_folder_are_made(tmp_path: Path, content: str | bytes, data: bytes) -> None:
    path = tmp_path / "a" / "b" / "out.txt"
    write_atomically(path, content)
    assert path.read_bytes() == data
    assert everything_below(tmp_path) == ["a", "a/b", "a/b/out.txt"]


def test_a_report_is_as_readable_as_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "out.txt", "")
    finally:
        after = os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.txt").stat().st_mode) == 0o640
    assert after == 0o027, "the process keeps its mask"


def test_until_the_end_the_old_file_is_there(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent, "so that moving is one step of the file system"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [KeyError("bug"), KeyboardInterrupt()])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(type(error)), replacing(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert everything_below(tmp_path) == ["out.txt"]


def test_an_error_of_the_system_becomes_a_sentence_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    full = pytest.raises(OutputError, match=r"out\.txt cannot be written: No space left on device\.")
    with full as caught, replacing(path):
        raise OSError(28, "No space left on device")
    assert "--save-dir" in caught.value.hint
    assert everything_below(tmp_path) == []


def test_a_folder_in_the_files_place_stays(tmp_path: Path) -> None:
    (tmp_path / "out.txt").mkdir()
    with pytest.raises(OutputError, match=r"out\.txt cannot be written"):
        write_atomically(tmp_path / "out.txt", "x")
    assert everything_below(tmp_path) == ["out.txt"]


def test_a_file_in_the_folders_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "out.txt", "x")
    assert everything_below(tmp_path) == ["file"]


# ---- before anything runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [".", "new", "new/and/deeper"])
def test_a_folder_is_checked_and_not_made(tmp_path: Path, folder: str) -> None:
    check_folder(tmp_path / folder)
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize("folder", ["file", "file/below", "file/far/below"])
def test_a_folder_that_would_have_to_be_a_file_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OutputError, match=r"file is a file, not a folder\.") as caught:
        check_folder(tmp_path / folder)
    assert "--save-dir" in caught.value.hint
    assert (tmp_path / "file").read_text() == "precious"


def test_a_relative_folder_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    check_folder(Path("new"))
    with pytest.raises(OutputError):
        check_folder(Path("file"))


def test_a_folder_that_does_not_let_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root nothing is forbidden, so the system's answer is made up."""

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(OutputError, match=r"new cannot be written: Permission denied\."):
        check_folder(tmp_path / "new")


def test_what_is_removed_is_gone_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    remove(tmp_path / "file")
    remove(tmp_path / "file")
    with pytest.raises(OutputError, match="folder cannot be written"):
        remove(tmp_path / "folder")
    assert everything_below(tmp_path) == ["folder"]


# ---- A document read as a dataclass: each field by its name and type, and nothing else is taken.


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


# ---- Source with bytes beside it: lines around those that allocated, and a word where the text is another one.

TEXT = "".join(f"line {number}\n" for number in range(1, 41))


def memory(line: int, size: int = 100, file: str = "/srv/net.py", **given: Any) -> LineMemory:
    usual: dict[str, Any] = {"backward_bytes": 0, "own_peak_bytes": size, "freed_in": "backward", "freed_at": None}
    return LineMemory(SourceLine(file, line), size, **(usual | given))


def test_three_lines_around_each_and_the_gap_between_them() -> None:
    file = annotate("/srv/net.py", [memory(2), memory(30, 50)], TEXT)
    assert [line.number for line in file.lines] == [1, 2, 3, 4, 5, *range(27, 34)]
    assert (file.peak_bytes, file.note) == (150, "")
    assert [line.text for line in file.lines if line.memory] == ["line 2", "line 30"]


def test_a_file_that_changed_or_is_missing_says_so() -> None:
    assert "fewer lines" in annotate("/srv/net.py", [memory(41)], TEXT).note
    assert "not in the recording" in annotate("/srv/net.py", [memory(2)], None).note


def test_a_page_has_the_files_with_a_thousandth_of_the_peak_and_asks_for_no_other() -> None:
    asked: list[str] = []

    def text_of(file: str) -> str | None:
        asked.append(file)
        return None if file == "/lib.py" else TEXT

    lines = [memory(2, 9000), memory(3, 500, "/lib.py"), memory(3, 8, "/small.py")]
    (file,) = annotated_files(lines, text_of, 10_000)
    assert (file.file, set(asked)) == ("/srv/net.py", {"/srv/net.py", "/lib.py", "/small.py"})


def test_where_it_was_freed_in_words() -> None:
    here, there = SourceLine("/srv/net.py", 9), SourceLine("/srv/train.py", 4)
    words = [
        freed_words(memory(2, **given))
        for given in ({"freed_in": None}, {"freed_at": here}, {"freed_in": "other", "freed_at": there}, {})
    ]
    assert words == ["not freed", "backward, line 9", "train.py:4", "backward"]


# ---- What a notebook shows, and the rows for other programs.


@cache
def results() -> RunResults:
    return run_profile(tiny_fno(), schedule=Schedule(0, 1, 2, 1), timing=False)


def html() -> str:
    return notebook.notebook_html(results().answer, results().findings.worst.peak.by_category())


class Cells(HTMLParser):
    """The tables' cells; that it parses without entities left is part of the test."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1].append(data)


def test_tables_sum_to_the_peak() -> None:
    peak = results().findings.worst.peak
    rows = Cells(html()).rows
    ends = [at for at, row in enumerate(rows) if row[0] == "sum"]
    assert len(ends) == 3
    for first, end in zip((1, ends[0] + 2, ends[1] + 2), ends, strict=True):  # below the names of the columns
        numbers = (next(cell for cell in row[1:] if cell.replace(",", "").isdigit()) for row in rows[first:end])
        assert sum(int(number.replace(",", "")) for number in numbers) == peak.peak_bytes
        assert int(rows[end][1].replace(",", "")) == peak.peak_bytes


def test_text_of_a_recording_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.answers.answer_tables.line_name", lambda *row: "<script>alert(1)</script>")
    results().__dict__.pop("answer", None)
    text = html()
    results().__dict__.pop("answer", None)
    assert "script" not in Cells(text).tags
    assert "&lt;script&gt;" in text


def test_without_a_recording_it_says_so() -> None:
    nothing = replace(results(), findings=None)
    assert notebook.notebook_html(nothing.answer, {}).startswith("<p><strong>Nothing was recorded.</strong></p>")


def test_rows_are_the_peaks_and_go_to_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pandas' own `DataFrame(records, columns=...)` takes them."""
    assert results().rows == results().findings.worst.peak.rows
    made: list[tuple[list[dict[str, object]], list[str]]] = []
    pandas = SimpleNamespace(DataFrame=lambda records, columns: made.append((records, columns)))
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    results().to_pandas()
    ((records, columns),) = made
    assert [list(record) for record in records] == [columns] * len(results().rows)
    assert [record["category"] for record in records] == [row.category for row in results().rows]


def test_that_pandas_is_missing_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="needs pandas"):
        results().to_pandas()


# ---- Facts beside a snapshot: read back as they were, refused in a sentence where they are damaged. ------------------


USES = LaterUses(
    (2, 1),
    (8, 9),
    (0, 1),
    (True, False),
    (0, 3),
    (8, 1),
    (0, 1),
    (NextUse("a.py", 1, "aten::mm", True, False, False, True, 0),),
    (Making("aten::mm", (Sized((2, 1), "int8", 2),), Sized((2, 2), "int8", 4)),),
    1,
    is_to_the_end=True,
    request=3,
    large=LargeBlocks((1,), (0,), (8,), (0,), (8,)),
)
FACTS = FailureFactsFile(
    1,
    1_700_000_000_000_000,
    1 << 30,
    replace(
        objects_of(in_graphs=frozenset({4096, 8192})),
        holders=(Holder("history[...]", "global variable of train.py", (4096,)),),
        operands=(Operand("self.weight", "train.py", 3, 64, (4, 4), "float32"),),
        second_run=SecondRun(("It needs more.",), 5, USES),
    ),
)


def test_it_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = facts_path(tmp_path / "oom_rank0.pickle")
    assert path.name == "oom_rank0.facts.json"
    write_facts(FACTS, path)
    assert read_facts(path) == FACTS


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"format": "else"}, "is not a file of facts of this program"),
        ({"version": 9}, "is of format version 9"),
        ({"device": -1}, "device is not a whole number"),
        ({"objects": None}, "objects is not an object"),
    ],
)
def test_a_damaged_file_is_one_sentence(damage: dict[str, object], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "oom.facts.json"
    write_facts(FACTS, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(RecordingError, match=sentence):
        read_facts(path)


def test_columns_of_different_lengths_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "oom.facts.json"
    write_facts(FACTS, path)
    values = json.loads(path.read_text())
    values["objects"]["second_run"]["uses"]["large"]["made"] = []
    path.write_text(json.dumps(values))
    with pytest.raises(RecordingError, match=r"large\.columns differ in length"):
        read_facts(path)


def test_a_file_that_is_no_json_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "oom.facts.json"
    path.write_bytes(b"\x80\x04.")
    with pytest.raises(RecordingError, match="is not JSON that can be read"):
        read_facts(path)
