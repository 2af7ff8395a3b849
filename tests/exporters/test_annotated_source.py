"""Source with bytes beside it: lines around those that allocated, and a word where the text is not the one that ran."""

from __future__ import annotations

from typing import Any

from tracer.answers.line_memory import LineMemory
from tracer.capture.sources.source_line import SourceLine
from tracer.exporters.annotated_source import annotate, annotated_files, freed_words

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
