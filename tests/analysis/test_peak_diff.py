"""How much a peak may grow: read, compared, and said."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tracer.analysis.peak_diff import SavedPeak, diff_peaks, parse_threshold
from tracer.analysis.peak_row import PeakRow
from tracer.errors import TracerError


@dataclass(frozen=True)
class Peaks:
    before_bytes: int
    bytes: int


@pytest.mark.parametrize(
    ("text", "after", "exceeded"),
    [
        ("5%", 105, False),
        ("5%", 106, True),
        ("5B", 106, True),
        ("6B", 106, False),
        ("1MiB", 106, False),
        ("0B", 101, True),
        ("0%", 100, False),
    ],
)
def test_thresholds(text: str, after: int, exceeded: bool) -> None:
    assert parse_threshold(text).is_exceeded_by(Peaks(100, after - 100)) is exceeded


@pytest.mark.parametrize("text", ["", "much", "-5%", "5 %%", "1e9", "5TiB"])
def test_what_is_no_threshold(text: str) -> None:
    with pytest.raises(TracerError) as caught:
        parse_threshold(text)
    assert caught.value.hint


def test_a_bare_number_is_refused_with_what_it_could_mean() -> None:
    with pytest.raises(TracerError, match="A threshold of 100 could be percent or bytes") as caught:
        parse_threshold(" 100 ")
    assert caught.value.hint == "Write 100%, 100MiB or 100B."


@pytest.mark.parametrize(
    ("text", "before", "change", "sentence"),
    [
        ("5%", 1000, 507, "cpu: peak grew 50.7 %, the limit is 5 %."),
        ("5%", 1_000_000, 50_001, "cpu: peak grew 5.000100 %, the limit is 5 %."),
        ("2.5%", 0, 2048, "cpu: peak grew from 0 B to 2.00 KiB, the limit is 2.5 %."),
        ("1MiB", 7, 3 << 20, "cpu: peak grew 3.00 MiB, the limit is 1.00 MiB."),
        ("1MiB", 7, (1 << 20) + 1, "cpu: peak grew 1,048,577 B, the limit is 1,048,576 B."),
    ],
)
def test_why_it_is_exceeded(text: str, before: int, change: int, sentence: str) -> None:
    threshold = parse_threshold(text)
    assert threshold.is_exceeded_by(Peaks(before, change))
    assert threshold.sentence("cpu", Peaks(before, change)) == sentence


def test_a_file_is_the_same_in_checkouts_of_other_names() -> None:
    """`main/train.py` and `head/train.py`: unchanged lines are neither gone nor new."""

    def side(root: str, *files: str) -> SavedPeak:
        rows = tuple(PeakRow(4, 1, "INPUT", None, "", "", None, "aten::ones", f"{root}{file}", 3) for file in files)
        return SavedPeak("cpu", sum(row.bytes for row in rows), None, rows)

    for before, after in (("/ci/main/", "/ci/head/"), ("/ci/main/", ""), ("", r"C:\ci\head" + "\\")):
        diff = diff_peaks(side(before, "train.py"), side(after, "train.py"))
        assert [change.bytes for change in diff.changes["line"]] == [0], (before, after)
    diff = diff_peaks(side("/a/", "x/train.py", "y/train.py"), side("/b/", "x/train.py", "z/train.py"))
    assert sorted(change.bytes for change in diff.changes["line"]) == [0, 0]
    diff = diff_peaks(side("/a/", "x/train.py", "y/train.py"), side("/b/", "z/train.py"))
    assert sorted(change.bytes for change in diff.changes["line"]) == [-4, -4, 4], "which of two it is, nobody knows"
