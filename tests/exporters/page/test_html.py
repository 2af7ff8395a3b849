"""memory_timeline.html as text and data; `test_page_browser.py` opens it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from benchmarks.synthetic_page import synthetic_page
from tests.exporters.page import page_samples as samples
from tracer.exporters.page.blocks import Packed, pack, unpacked
from tracer.exporters.page.data import MAX_TIMELINE_CHARS, headline, page_data, relative_paths
from tracer.exporters.page.html import write_pages
from tracer.exporters.page.model import Curve, Page, PagePeak, Series

PAGES: dict[str, Callable[[], Page]] = {
    "empty": samples.empty_page,
    "one event": samples.one_event_page,
    "small": samples.small_page,
    "entries": samples.entries_page,
    "hostile": samples.hostile_page,
}


def data_in(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def scripts_in(text: str) -> list[str]:
    return re.findall(r"<script>(.*?)</script>", text, re.DOTALL)


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> Page:
    return PAGES[request.param]()


# ------------------------------------------------------------------------------------------------------- the file
def test_every_page_is_whole_and_small(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "memory_timeline.html"
    path.write_text("an older page")
    write_pages([page], path)
    text = path.read_text("utf-8")
    assert text.endswith("</html>\n")
    assert path.stat().st_size < 5_000_000
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    # JSON says what Python said, surrogates and all.
    shown = {"shown": 0, "up": None, "pages": relative_paths([page_data(page)])}
    assert data_in(text) == json.loads(json.dumps(shown))


def test_two_script_elements_and_nothing_to_load(page: Page) -> None:
    text = samples.html_of([page])
    for script in (*scripts_in(text), json.dumps(data_in(text))):
        text = text.replace(script, "")
    text = re.sub(r'(id="data">).*?</script>', r"\1</script>", text, flags=re.DOTALL)
    assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 2
    assert not re.search(r"https?:|@import|url\(|<[^>]*\ssrc=", text)
    assert "default-src 'none'" in text


def test_the_policy_names_exactly_our_script() -> None:
    text = samples.html_of([samples.hostile_page()])
    (script,) = scripts_in(text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    directive = next(part for part in policy[1].split("; ") if part.startswith("script-src "))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert directive.split()[1:] == [f"'sha256-{digest}'"]


def test_the_data_cannot_end_its_element() -> None:
    text = samples.html_of([samples.hostile_page()])
    data = re.search(r'id="data">(.*?)</script>\n<script>', text, re.DOTALL)
    assert data is not None
    assert not re.search("[<>&\u2028\u2029]", data[1])
    assert data_in(text)["pages"][0]["title"] == samples.SCRIPT
    assert "<title>&lt;/script&gt;" in text


def test_our_scripts_make_no_html_from_text() -> None:
    ours = scripts_in(samples.html_of([samples.empty_page()]))[0]
    assert "showAnswer" in ours
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|fetch\(", ours)


# -------------------------------------------------------------------------------------------------------- the data
def test_the_timeline_is_in_the_page_row_by_row() -> None:
    page = samples.small_page()
    timeline = page_data(page)["timeline"]
    number, times, *values = unpacked(timeline["stack"])
    assert number.tolist() == [0, 1, 2, 3, 4, 5]
    assert times.tolist() == [0, 10_000, 20_000, 30_000, 40_000, 50_000]
    assert [series["name"] for series in timeline["series"]] == ["parameter", "activation", "UNTAGGED"]
    assert [column.tolist() for column in values] == [series.values_bytes.tolist() for series in page.series]
    assert [mark["time"] for mark in page_data(page)["marks"]] == [30_000, 20_000]


def test_a_long_timeline_keeps_its_peaks_and_exact_rows() -> None:
    page = synthetic_page(200_000)
    table = page_data(page)["timeline"]["stack"]
    assert table["total"] == 200_000
    assert table["rows"] < 200_000
    assert len(table["packed"]) <= MAX_TIMELINE_CHARS
    number, times, *values = unpacked(table)
    assert (times + page.times[0] == page.times[number]).all()
    whole = np.array([series.values_bytes for series in page.series])
    assert (np.array(values) == whole[:, number]).all()
    assert np.array(values).sum(axis=0).max() == whole.sum(axis=0).max()
    assert (np.array(values).max(axis=1) == whole.max(axis=1)).all()


def test_noise_does_not_burst_the_page() -> None:
    random = np.random.default_rng(0)
    times = np.cumsum(random.integers(1, 1 << 30, 60_000))
    page = Page(
        "Noise",
        "cpu",
        times=times,
        series=tuple(Series(f"s{i}", random.integers(0, 1 << 45, 60_000)) for i in range(8)),
    )
    assert len(page_data(page)["timeline"]["stack"]["packed"]) <= MAX_TIMELINE_CHARS


@given(hnp.arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(0, 30)), elements=st.integers(-(2**53), 2**53)))
def test_packing_and_unpacking_are_inverse(columns: np.ndarray) -> None:
    num_columns, num_rows = columns.shape
    packed = Packed(packed=pack(list(columns)), columns=num_columns, rows=num_rows, total=num_rows)
    assert (unpacked(packed) == columns).all()


def test_rows_without_room_still_count() -> None:
    rows = tuple(samples.peak_row(10, count=2) for _ in range(1200))
    peak = page_data(Page("Many", "cpu", peak=PagePeak(bytes=12_000, rows=rows)))["peak"]
    assert peak is not None
    assert len(peak["rows"]) == 1000
    assert peak["rest"] == {"groups": 200, "count": 400, "bytes": 2000}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Curve("x", np.zeros(2, np.int64), np.zeros(1, np.int64)),
        lambda: Page("x", "cpu", series=(Series("x", np.zeros(1, np.int64)),)),
    ],
)
def test_refuses_columns_that_do_not_fit(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        wrong()


# ------------------------------------------------------------------------------------------------------- the words
def test_the_answer_in_words() -> None:
    assert headline(samples.small_page()) == (
        "Peak: 8.79 KiB on cpu in backward of step 5.",
        "It is 44 % activation, 33 % UNTAGGED and 22 % parameter.",
        "The line that holds most is net.py:7: 3.42 KiB, 39 %, made by aten::gelu in net.0.",
    )


def test_the_answer_adds_up_a_line_over_modules() -> None:
    rows = (
        samples.peak_row(50, file=None, op=None, module=None, name="weight", category="PARAMETER"),
        *(samples.peak_row(20, module=f"net.{i}", op="aten::add") for i in range(4)),
    )
    page = Page("x", "cuda:1", peak=PagePeak(bytes=130, breakdown={"NEW": 130}, rows=rows))
    assert headline(page) == (
        "Peak: 130 B on cuda:1.",
        "It is 100 % NEW.",
        "The line that holds most is net.py:7: 80 B, 62 %, made by aten::add in net.0, net.1 and 2 more.",
    )


def test_the_answer_without_lines_and_without_memory() -> None:
    row = samples.peak_row(50, count=3, file=None, op=None, module=None, category="OPTIMIZER_STATE")
    assert headline(Page("x", "cpu", peak=PagePeak(bytes=50, rows=(row,))))[-1] == (
        "The largest piece: 50 B in 3 blocks, optimizer state."
    )
    assert headline(samples.empty_page()) == ("Nothing was allocated on cpu while it was recorded.",)
