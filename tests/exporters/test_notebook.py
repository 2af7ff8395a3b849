"""What a notebook shows, and the rows for other programs."""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from tests.pieces import tiny_fno
from tracer.errors import MissingPackageError
from tracer.exporters import notebook
from tracer.sessions.schedule import Schedule
from tracer.sessions.session_results import ShownResults
from tracer.sessions.workload_run import run_profile


@cache
def results() -> ShownResults:
    return run_profile(tiny_fno(), schedule=Schedule(0, 1, 2, 1), timing=False)


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
    rows = Cells(results()._repr_html_()).rows
    ends = [at for at, row in enumerate(rows) if row[0] == "sum"]
    assert len(ends) == 2
    for first, end in ((1, ends[0]), (ends[0] + 2, ends[1])):  # below the names of the columns
        numbers = (next(cell for cell in row[1:] if cell.replace(",", "").isdigit()) for row in rows[first:end])
        assert sum(int(number.replace(",", "")) for number in numbers) == peak.peak_bytes
        assert int(rows[end][1].replace(",", "")) == peak.peak_bytes


def test_text_of_a_recording_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.answers.answer_tables.line_name", lambda *row: "<script>alert(1)</script>")
    text = results()._repr_html_()
    assert "script" not in Cells(text).tags
    assert "&lt;script&gt;" in text


def test_without_a_recording_it_says_so() -> None:
    assert notebook.notebook_html(None) == "<p>Nothing was recorded.</p>"


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
