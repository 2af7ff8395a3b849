"""Two peaks compared, as a page and as JSON: by hand, and through the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from tests.answers.test_snapshot_findings import BASE, load
from tests.exporters.page.page_samples import peak_row
from tests.exporters.page.tab import hover
from tests.snapshot.dumps import block, segment, write
from tracer.answers.aligned_curves import MemoryCurve, align
from tracer.answers.difference import PeakChange, SavedPeak, diff_peaks, diff_snapshots
from tracer.answers.tables import cell_text
from tracer.blocks.from_snapshot.timeline import Band
from tracer.commands.app import app
from tracer.exporters.diff import changes_tables
from tracer.exporters.json_documents.peak import peak_diffs_json
from tracer.exporters.page.diff_page import diff_pages

BEFORE = SavedPeak("cpu", 1000, "backward", (peak_row(900), peak_row(100, category="PARAMETER", module="net.1")))
AFTER = SavedPeak("cpu", 1500, "optimizer", (peak_row(1450, line=9), peak_row(50, category="GRADIENT", module="net.1")))


def test_by_hand() -> None:
    (page,) = diff_pages([diff_peaks(BEFORE, AFTER)], before="a", after="b")
    assert page.answer.happened == (
        "cpu: peak 1000 B -> 1.46 KiB, +500 B (+500 B, +50.0 %).",
        "The peak was in backward and is now in the optimizer, where other memory is in use.",
        "What changed most: activation +550 B, parameter -100 B, gradient +50 B.",
    )
    (section,) = page.sections
    for table in section.tables:
        assert sum(int(row[0]) for row in table.rows if isinstance(row[0], int)) == 500
        assert [column.name for column in table.columns[:4]] == ["change", "before", "after", "blocks"]
    assert section.tables[0].rows[0] == (550, 900, 1450, "1", "activation")


def test_what_growth_is_of_is_said_where_the_sizes_do_not_say_it() -> None:
    names = {False: (), True: ("Growth compares the most that each row had in use at once",)}
    for own in (False, True):
        change = PeakChange(("activation",), 1 << 20, 4 << 20, 1, 1, own_peaks=(1 << 20, 2 << 20) if own else None)
        diff = replace(diff_peaks(BEFORE, AFTER), changes={"kind": (change,)})
        (page,) = diff_pages([diff], before="a", after="b")
        assert [sentence.partition(", which")[0] for sentence in page.sections[0].sentences] == list(names[own])


def test_growth_is_a_column_of_what_is_large_enough() -> None:
    """Of runs, by the bytes at both peaks."""
    sides = [
        SavedPeak("cpu", size + 9, "backward", (peak_row(size), peak_row(9, module="b"))) for size in (2**16, 3 << 16)
    ]
    diff = diff_peaks(*sides)
    (page,) = diff_pages([diff], before="a", after="b")
    assert [row[3] for row in page.sections[0].tables[0].rows] == ["x3"]
    found = json.loads(json.dumps(peak_diffs_json([diff], before="a", after="b")))["devices"][0]
    assert [row["growth"] for row in found["by_module"]] == [3, None]
    assert "before_own_peak_bytes" not in found["by_module"][0]


def test_stacks_are_told_apart_by_more_than_two_frames() -> None:
    changes = (
        PeakChange(("activation", "mm", "forward (m.py)", "encode (m.py)", "main"), 0, 4, 0, 1, became="mm"),
        PeakChange(("activation", "mm", "forward (m.py)", "decode (m.py)"), 0, 3, 0, 1),
    )
    (table,) = changes_tables(replace(diff_peaks(BEFORE, AFTER), changes={"stack": changes}))
    assert [cell_text(row[-1], table.columns[-1]) for row in table.rows] == [
        "mm < forward (m.py) < encode (m.py) < ...\n  (a frame differs: none -> mm)",
        "mm < forward (m.py) < decode (m.py)",
    ]


def test_equal_peaks_are_the_same() -> None:
    (page,) = diff_pages([diff_peaks(BEFORE, BEFORE)], before="a", after="b")
    assert page.answer.happened == (
        "No change. cpu: peak 1000 B (1,000 B) in both, "
        "with the same bytes of every category, module, operator and line.",
    )
    assert page.sections == ()


def test_every_device_of_snapshots_has_a_page(tmp_path: Path) -> None:
    sides = [
        load(tmp_path / str(size), [segment(BASE, 4096, [block(BASE, size)], device=device) for device in (0, 2)])
        for size in (100, 300)
    ]
    pages = diff_pages(diff_snapshots(*sides), before="a", after="b")
    assert [page.device for page in pages] == ["device 0", "device 2"]
    assert pages[0].answer.happened[0] == "Device 0: peak 100 B -> 300 B, +200 B (+200 B, +200.0 %)."
    assert "no device" in diff_pages((), before="a", after="b")[0].device


def test_the_command_writes_a_page_and_prints_json(tmp_path: Path) -> None:
    first, last = (write(tmp_path / str(size), [segment(BASE, 4096, [block(BASE, size)])]) for size in (100, 300))
    page = tmp_path / "page.html"
    words = ["diff", str(first), str(last), "--json", "--html"]
    assert json.loads(CliRunner().invoke(app, [*words, str(page)]).stdout)["devices"][0]["bytes"] == 200
    assert "+200 B (+200 B, +200.0 %)" in page.read_text("utf-8")
    for wrong in (tmp_path, first):
        assert CliRunner().invoke(app, [*words, str(wrong)]).exit_code == 1


def test_both_curves_lie_on_one_axis(opened: Callable[..., Any]) -> None:
    """Step 1's backward takes three events before and two after; both begin and end at the same place of the axis."""
    ticks = np.arange(6)
    old = MemoryCurve(ticks, {"activation": np.array([0, 4, 8, 6, 2, 0])}, (Band("backward", "backward", 2, 5),))
    new = MemoryCurve(ticks[:4], {"activation": np.array([0, 9, 1, 0])}, (Band("backward", "backward", 1, 3),))
    curves = align(old, new)
    assert curves.stretches == (Band("backward", "backward", 2, 5),)
    assert [side.tolist() for side in curves.totals()] == [[0, 4, 8, 6, 2, 0], [0, 0, 9, 1, 1, 0]]
    diff = diff_peaks(SavedPeak("cpu", 8, None), SavedPeak("cpu", 9, None))
    (page,) = diff_pages([diff], before="a", after="b", curves={"cpu": curves})
    assert [(mark.label, mark.time, mark.bytes, mark.detail) for mark in page.marks] == [
        ("before", 2, 8, ""),
        ("after", 2, 9, "activation +1 B"),
    ]
    assert page.sections[0].tables[0].rows == ((1, 8, 9, "", "backward", "activation +1 B"),)
    with opened(page) as tab:
        assert "in both" in tab.locator("#timeline").inner_text()
        assert "8 B" in (tip := hover(tab, 0.5)) and "9 B" in tip and "+1 B" in tip
