"""peak.json read back, and two of them compared: by hand, to the byte, and with whatever a file may hold instead."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answer_screens import answer_screen
from tests.exporters.page.page_samples import peak_row
from tracer.answers.difference import PeakDiff, SavedPeak, diff_peaks
from tracer.answers.rows import Row
from tracer.errors import SnapshotError
from tracer.exporters.diff import answer_of_diffs
from tracer.exporters.json_documents.peak import read_peak_json


def saved(*rows: Row, device: str = "cuda:0", phase: str | None = "backward") -> SavedPeak:
    return SavedPeak(device, sum(row.bytes for row in rows), phase, rows)


def document(*rows: Row, **more: Any) -> dict[str, Any]:
    peak = {"device": "cpu", "peak_bytes": sum(row.bytes for row in rows), "phase": "backward", "step": None}
    return peak | {"rows": [asdict(row) for row in rows]} | more


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def printed(diff: PeakDiff, *, width: int = 100, top: int = 10) -> str:
    return answer_screen(answer_of_diffs([diff], before="a[red]", after="b"), width=width, top=top)


def check_sums(diff: PeakDiff) -> None:
    for changes in diff.changes.values():
        assert sum(change.bytes for change in changes) == diff.bytes
        assert sum(change.before_bytes for change in changes) == diff.before.bytes
        assert sum(change.after_count for change in changes) == sum(row.count for row in diff.after.rows)


def test_a_row_with_all_its_fields_is_read_back(tmp_path: Path) -> None:
    row = peak_row(100, requested_bytes=97, shape=(5, 5), dtype="float32", is_compiled=True, caller_line=3, name="w")
    assert read_peak_json(write(tmp_path / "peak.json", document(row))).rows == (row,)


def test_by_hand() -> None:
    before = saved(
        peak_row(100, module="net.0", op="aten::mm", line=7),
        peak_row(40, category="PARAMETER", module="net.1", op=None, file=None, line=None),
    )
    after = saved(
        # The line has moved, and the checkout is another one.
        peak_row(250, module="net.0", op="aten::mm", file="/elsewhere/models/net.py", line=9, count=2),
        peak_row(10, category="WORKSPACE", module=None, op="aten::add", line=3),
        peak_row(1, category="WORKSPACE", module=None, op="aten::add", line=2),
    )
    diff = diff_peaks(before, after)
    check_sums(diff)
    assert (diff.before_bytes, diff.bytes) == (140, 121)
    assert [(c.name, c.before_bytes, c.after_bytes) for c in diff.changes["category"]] == [
        (("ACTIVATION",), 100, 250),
        (("PARAMETER",), 40, 0),
        (("WORKSPACE",), 0, 11),
    ]
    assert [c.name[0] for c in diff.changes["module"]] == ["net.0", "net.1", "outside modules"]
    assert [c.name[0] for c in diff.changes["operator"]] == ["aten::mm", "no operator", "aten::add"]
    assert [(c.name, c.bytes) for c in diff.changes["line"]] == [
        (("ACTIVATION", "net.0", "aten::mm", "models/net.py:7 -> 9"), 150),
        (("PARAMETER", "net.1", "no operator", "no Python frame"), -40),
        (("WORKSPACE", "outside modules", "aten::add", "models/net.py:2, 3"), 11),
    ]


def test_rows_of_compiled_code_are_matched_by_line_and_not_by_operator() -> None:
    """Two lines of one file are two places, and a kernel is no other operator; by hand."""
    eager = saved(
        peak_row(100, module="net.0", op="aten::gelu", line=7),
        peak_row(30, module="net.0", op="aten::mul", line=7),
        peak_row(40, module="net.0", op="aten::linear", line=8),
    )
    compiled = saved(
        peak_row(60, module="net.0", op="cpp_fused_gelu_0, buf1", line=7, file="/b/models/net.py", is_compiled=True),
        peak_row(40, module="net.0", op="extern_kernels.addmm, buf0", line=8, is_compiled=True),
        peak_row(5, module="net.1", op="buf2", file=None, line=None, is_compiled=True),
    )
    diff = diff_peaks(eager, compiled)
    check_sums(diff)
    assert [(c.name, c.before_bytes, c.after_bytes) for c in diff.changes["line"]] == [
        (("ACTIVATION", "net.0", "aten::gelu, 1 more -> cpp_fused_gelu_0, buf1", "models/net.py:7"), 130, 60),
        (("ACTIVATION", "net.1", "buf2", "no Python frame"), 0, 5),
        (("ACTIVATION", "net.0", "aten::linear -> extern_kernels.addmm, buf0", "models/net.py:8"), 40, 40),
    ]


def test_the_screen_says_the_change_the_phases_and_the_rest() -> None:
    rows = [peak_row(10 + i, module=f"[bold]net.{i}") for i in range(5)]
    text = printed(diff_peaks(saved(peak_row(7), phase="forward"), saved(*rows, device="cpu")), top=2)
    assert "a[red] -> b" in text
    assert "cuda:0 -> cpu: peak 7 B -> 60 B, +53 B (+53 B, +757.1 %)" in text
    assert "The peak was in forward and is now in backward" in text
    assert "[bold]net.4" in text and "[bold]net.1" not in text
    assert "4 more" in text  # net.0 to net.2, and what was there before


def test_rows_that_did_not_change_are_left_out_and_counted() -> None:
    same, old, new = peak_row(9, module="same"), peak_row(5, module="other"), peak_row(6, module="other")
    text = printed(diff_peaks(saved(same, old), saved(same, new)))
    assert "By module (1 row without a change left out)" in text
    assert "same" not in text.replace("the same", "")


rows = st.lists(
    st.builds(
        peak_row,
        st.integers(0, 2**40),
        count=st.integers(1, 9),
        category=st.sampled_from(["ACTIVATION", "PARAMETER"]),
        module=st.sampled_from([None, "a", "a.b"]),
        op=st.sampled_from([None, "aten::mm"]),
        file=st.sampled_from([None, "/x/a.py", "/y/x/a.py", "C:\\x\\a.py"]),
        line=st.sampled_from([None, 1, 2]),
        is_compiled=st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=25)
@given(before=rows, after=rows)
def test_any_two_peaks_sum(before: list[Row], after: list[Row]) -> None:
    diff = diff_peaks(saved(*before), saved(*after))
    check_sums(diff)
    printed(diff)
    back = diff_peaks(saved(*after), saved(*before))
    assert {c.name: c.bytes for c in back.changes["module"]} == {c.name: -c.bytes for c in diff.changes["module"]}
    assert all(change.bytes == 0 for change in diff_peaks(saved(*before), saved(*before)).changes["line"])


# ----------------------------------------------------------------------------------------------------------- the reader
def test_what_was_written_comes_back(tmp_path: Path) -> None:
    one = peak_row(5, name="weight", step="ProfilerStep#3")
    read = read_peak_json(write(tmp_path / "peak.json", document(one, peak_row(6))))
    assert read == SavedPeak("cpu", 11, "backward", (one, peak_row(6)))


def test_another_version_may_lack_fields_and_have_more(tmp_path: Path) -> None:
    row = {name: value for name, value in asdict(peak_row(5)).items() if name not in ("name", "step")}
    content = document(peak_row(5), rows=[row | {"new": [1]}], newer={"x": 1})
    assert read_peak_json(write(tmp_path / "peak.json", content)).rows == (peak_row(5),)


def test_text_is_made_safe(tmp_path: Path) -> None:
    read = read_peak_json(write(tmp_path / "peak.json", document(peak_row(5, module="a\x1b[2J\ud800\n"))))
    assert read.rows[0].module == "a\\x1b[2J\\ud800\\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "holds a list"),
        (b"{}", "rows is not a list"),
        (b'{"rows": [3]}', "rows.0 is not an object"),
        (b'{"rows": [], "peak_bytes": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"rows": [], "peak_bytes": -1}', "peak_bytes"),
        (b'{"rows": [], "peak_bytes": true}', "peak_bytes"),
        (b'{"rows": [], "peak_bytes": 1e3}', "peak_bytes"),
        (b'{"rows": [], "peak_bytes": NaN}', "peak_bytes"),
        (b'{"rows": [], "peak_bytes": 1, "device": "cpu"}', "sum to 0 B, its peak is 1 B"),
        (b'{"rows": [], "peak_bytes": 0, "device": 0}', "device is not a text"),
        (b'{"format": "torch-timeline recording", "version": 1}', "not a peak.json of this program"),
        (b'{"format": "torch-timeline peak", "version": 2}', "of format version 2, and this program reads up to 1"),
        (b'{"format": "torch-timeline peak", "version": "1"}', "version is not a whole number"),
    ],
)
def test_what_is_no_peak_is_one_sentence(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "peak.json"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=complaint) as caught:
        read_peak_json(path)
    assert caught.value.hint


def test_a_file_without_a_version_is_one_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "peak.json"
    for content in (document(peak_row(5)), document(peak_row(5), format="torch-timeline peak", version=1)):
        assert read_peak_json(write(path, content)).bytes == 5


@pytest.mark.parametrize(
    ("field", "value"),
    [("bytes", -5), ("bytes", 2**60), ("bytes", "5"), ("count", None), ("category", 3), ("line", 1.5), ("file", ["x"])],
)
def test_a_row_with_something_else_in_it_is_refused(tmp_path: Path, field: str, value: object) -> None:
    row = asdict(peak_row(5)) | {field: value}
    path = write(tmp_path / "peak.json", document(peak_row(5), rows=[row]))
    with pytest.raises(SnapshotError, match=field):
        read_peak_json(path)
