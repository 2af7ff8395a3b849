"""memory_timeline.html as text and data, its paths and colours; `test_page_browser.py` opens it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.exporters.page import page_samples as samples
from tracer.answers.answer import Answer
from tracer.answers.tables import Place, Section, Table, columns
from tracer.blocks.kinds import Kind
from tracer.exporters.page.blocks import Packed, pack, unpacked
from tracer.exporters.page.data import (
    MAX_TIMELINE_CHARS,
    OTHER_LAYERS,
    folders_up,
    page_data,
    readable_text,
    relative_paths,
)
from tracer.exporters.page.html import data_of_html, write_pages
from tracer.exporters.page.model import Curve, Page

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


def test_the_data_cannot_end_its_element() -> None:
    text = samples.html_of([samples.hostile_page()])
    data = re.search(r'id="data">(.*?)</script>\n<script>', text, re.DOTALL)
    assert data is not None
    assert not re.search("[<>&\u2028\u2029]", data[1])
    assert data_in(text)["pages"][0]["title"] == samples.SCRIPT
    assert "<title>&lt;/script&gt;" in text


# -------------------------------------------------------------------------------------------------------- the data
def test_the_timeline_is_in_the_page_row_by_row() -> None:
    page = samples.small_page()
    timeline = page_data(page)["timeline"]
    number, times, *values = unpacked(timeline["stack"])
    assert number.tolist() == [0, 1, 2, 3, 4, 5]
    assert times.tolist() == [0, 10_000, 20_000, 30_000, 40_000, 50_000]
    assert [series["name"] for series in timeline["series"]] == ["parameter", "activation", "UNTAGGED"]
    assert [column.tolist() for column in values] == [values.tolist() for values in page.series.values()]
    assert [mark["time"] for mark in page_data(page)["marks"]] == [30_000, 20_000]


def test_a_long_timeline_keeps_its_peaks_and_exact_rows() -> None:
    chance, steps = np.random.default_rng(0), np.arange(200_000) // 70_000
    walks = {kind: np.abs(np.cumsum(chance.integers(-9, 10, 200_000))) * 512 for kind in ("ACTIVATION", "TEMPORARY")}
    times = 1_700_000_000_000_000_000 + np.cumsum(chance.integers(0, 4000, 200_000))
    page = Page("Long run", "cpu", samples.SAID, times=times, series={"PARAMETER": steps * 4096, **walks})
    table = page_data(page)["timeline"]["stack"]
    assert table["total"] == 200_000
    assert table["rows"] < 200_000
    assert len(table["packed"]) <= MAX_TIMELINE_CHARS
    number, times, *values = unpacked(table)
    assert (times + page.times[0] == page.times[number]).all()
    whole = np.array(list(page.series.values()))
    assert (np.array(values) == whole[:, number]).all()
    assert np.array(values).sum(axis=0).max() == whole.sum(axis=0).max()
    assert (np.array(values).max(axis=1) == whole.max(axis=1)).all()


def test_noise_does_not_burst_the_page() -> None:
    random = np.random.default_rng(0)
    times = np.cumsum(random.integers(1, 1 << 30, 60_000))
    page = Page(
        "Noise",
        "cpu",
        samples.SAID,
        times=times,
        series={f"s{i}": random.integers(0, 1 << 45, 60_000) for i in range(8)},
    )
    assert len(page_data(page)["timeline"]["stack"]["packed"]) <= MAX_TIMELINE_CHARS


@given(hnp.arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(0, 30)), elements=st.integers(-(2**53), 2**53)))
def test_packing_and_unpacking_are_inverse(columns: np.ndarray) -> None:
    num_columns, num_rows = columns.shape
    packed = Packed(packed=pack(list(columns)), columns=num_columns, rows=num_rows, total=num_rows)
    assert (unpacked(packed) == columns).all()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Curve("x", np.zeros(2, np.int64), np.zeros(1, np.int64)),
        lambda: Page("x", "cpu", samples.SAID, series={"x": np.zeros(1, np.int64)}),
    ],
)
def test_refuses_columns_that_do_not_fit(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        wrong()


# ---- paths -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "readable"),
    [
        ("/home/ann/net/train.py", "~/net/train.py"),
        ("C:\\Users\\ann\\net\\train.py", "~\\net\\train.py"),
        ("/home/ann/my nets/train.py", "~/my nets/train.py"),
        ("/opt/v/lib/python3.11/site-packages/torch/nn/linear.py", "site-packages/torch/nn/linear.py"),
        ("run (/home/ann/envs/secret/lib/python3.11/threading.py:9)", "run (lib/python3.11/threading.py:9)"),
        ("/usr/lib/python3/dist-packages/a.py", "site-packages/a.py"),
        ("torch/nn/linear.py", "site-packages/torch/nn/linear.py"),
        ("forward (torch/nn/linear.py:7)", "forward (site-packages/torch/nn/linear.py:7)"),
        ("forward (/home/ann/my nets/train.py:7)", "forward (~/my nets/train.py:7)"),
        ("Look at /home/ann/net/train.py:7, and/or at 1/2 of it.", "Look at ~/net/train.py:7, and/or at 1/2 of it."),
        ("main.py --save-dir /home/ann/out/x", "main.py --save-dir ~/out/x"),
        ("/srv/net/train.py", "/srv/net/train.py"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("aten::add", "aten::add"),
    ],
)
def test_a_text_loses_homes_and_package_folders(text: str, readable: str) -> None:
    assert readable_text(text) == readable


def test_below_the_working_directory_paths_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert readable_text(str(tmp_path / "src" / "train.py")) == "src/train.py"
    assert readable_text(f"step ({tmp_path / 'src' / 'train.py'}:3)") == "step (src/train.py:3)"


def test_what_the_project_calls_a_file_and_not_its_folders() -> None:
    names = {"/srv/net/a.py": "a.py", "/srv/net/out": "out"}.get
    said = readable_text("Run /srv/net/a.py:3 --save-dir /srv/net/out", names)
    assert said == "Run a.py:3 --save-dir /srv/net/out"
    assert readable_text("f (/srv/net/a.py:3)", names) == "f (a.py:3)"


def test_packed_columns_are_not_texts() -> None:
    packed = {"packed": "/home/ann/x", "rows": 1}
    assert relative_paths([packed, {"file": "/home/ann/x.py"}]) == [packed, {"file": "~/x.py"}]


@pytest.mark.parametrize(("page", "up"), [("out/run/page.html", 2), ("page.html", 0), ("../page.html", None)])
def test_how_far_the_sources_are_above_the_page(
    page: str, up: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert folders_up(work / page, Path.cwd()) == up


def test_a_page_names_no_home(tmp_path: Path) -> None:
    home = "/home/ann/net.py"
    table = Table("t", columns("text", "line"), ((Place("f", home, 3),), (f"{home}:3",)))
    page = Page(
        "x",
        "cpu",
        Answer((f"It ended at {home}:3.",), sections=(Section("s", (f"See {home}.",), (table,)),), is_alarming=True),
        breakdown={"ACTIVATION": 9},
        run={"command": f"python {home}"},
    )
    row = samples.peak_row(9, file=home, caller_file=home)
    path = tmp_path / "page.html"
    write_pages([samples.with_blocks(page, (row,))], path)
    text = path.read_text()
    assert "/home/ann" not in text
    assert text.count("~/net.py") == 6
    assert data_of_html(text)["pages"][0]["sections"][0]["tables"][0]["rows"][0][0]["file"] == "~/net.py"


# ---- colours ---------------------------------------------------------------------------------------------------------
# Linear red, green and blue as people see them. Source: Machado, Oliveira and Fernandes 2009, severity 1.0.
VISIONS = {
    "all colours": np.eye(3),
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
# Of CIELAB; a difference of 2 is just seen side by side.
LEAST_DIFFERENCE = 17
GROUNDS = ("#ffffff", "#16191e")  # As `--paper` of page.css
LEAST_CONTRAST = 1.25  # Of WCAG's ratio; layers lie beside each other and have a legend


LAYERS = {kind.name: kind.colors for kind in Kind} | {"UNTAGGED": OTHER_LAYERS["UNTAGGED"]}


def linear(color: str) -> np.ndarray:
    shares = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB, of linear sRGB under D65."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    x, y, z = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    fx, fy, fz = (np.cbrt(one) if one > 216 / 24389 else (24389 / 27 * one + 16) / 116 for one in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("ground", [0, 1], ids=["on white", "on black"])
def test_any_two_categories_can_be_told_apart(ground: int, vision: str) -> None:
    seen = {name: lab(VISIONS[vision] @ linear(colors[ground])) for name, colors in LAYERS.items()}
    close = [
        (first, second)
        for first, second in combinations(seen, 2)
        if np.linalg.norm(seen[first] - seen[second]) < LEAST_DIFFERENCE
    ]
    # A page has one of these two: torch's own word, or ours.
    assert close in ([], [("UNKNOWN", "UNTAGGED")])


@pytest.mark.parametrize("ground", [0, 1], ids=["on white", "on black"])
def test_every_category_is_seen_on_its_ground(ground: int) -> None:
    luminance = {name: float(linear(colors[ground]) @ LUMINANCE) for name, colors in LAYERS.items()}
    paper = float(linear(GROUNDS[ground]) @ LUMINANCE)
    contrast = {name: (max(one, paper) + 0.05) / (min(one, paper) + 0.05) for name, one in luminance.items()}
    assert {name: ratio for name, ratio in contrast.items() if ratio < LEAST_CONTRAST} == {}
