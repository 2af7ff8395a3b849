"""The timeline's tools on every kind of page, as people have them: wide and on a phone, light and dark."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from benchmarks.synthetic_snapshot import make_snapshot
from tests.exporters.page.tab import CLIPBOARD, plot_area, settled
from tests.exporters.page.test_diff_page import AFTER, BEFORE
from tests.exporters.page.test_snapshot_page import page_of
from tests.training_steps import Recorded
from tracer.analysis.peak_diff import diff_peaks
from tracer.analysis.profiles.findings import put_together
from tracer.exporters.page.diff_page import diff_pages
from tracer.exporters.page.model import Page, without_times
from tracer.exporters.page.timeline_page import timeline_page
from tracer.snapshot.load import load_snapshot

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(params=["run", "snapshot", "diff", "null GPU"])
def pages(request: pytest.FixtureRequest, recorded: Callable[[str], Recorded], tmp_path: Path) -> list[Page]:
    """A page of each kind."""
    if request.param == "snapshot":
        path = tmp_path / "s.pickle"
        path.write_bytes(pickle.dumps(make_snapshot(20_000)))
        return [page_of(load_snapshot(path))]
    if request.param == "diff":
        return diff_pages([diff_peaks(BEFORE, AFTER)], before="before", after="after")
    findings = put_together(recorded("fno_2d_new_zeros").cycles[:1])
    run = timeline_page(findings, run={"command": "main.py"})
    return [run if request.param == "run" else replace(without_times(run), caveat="Null GPU: nothing was computed.")]


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_the_timeline_is_clicked_through(
    opened: Callable[..., Any], pages: list[Page], width: int, scheme: Literal["light", "dark"]
) -> None:
    with opened(pages, color_scheme=scheme, permissions=CLIPBOARD) as tab:
        tab.set_viewport_size({"width": width, "height": 900})
        # Until the page is drawn anew, rulers stand where they did in the wider window.
        tab.evaluate("document.querySelectorAll('.rule').forEach((rule) => rule.style.left = '1500px')")
        fits_in(tab, width)
        if pages[0].caveat:
            assert tab.locator(".caveat").inner_text() == pages[0].caveat
        if tab.locator("#timeline .frame").count():
            timeline(tab)
        tab.locator("#theme").click()
        assert tab.evaluate("document.documentElement.dataset.theme") != scheme
        fits_in(tab, width)


def fits_in(tab: Any, width: int) -> None:
    """Nothing is wider than the window, and no cell with a text is hidden where a row is a card."""
    assert tab.evaluate(
        "[...document.querySelectorAll('.flows tbody td')].every((cell) => !cell.textContent || cell.offsetHeight > 0)"
    )
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def timeline(tab: Any) -> None:
    """Search, each block with its neighbours, a ruler, a picture, zooming by keys, all keys."""
    readout, frame = tab.locator("#timeline .readout"), tab.locator("#timeline .frame")
    tab.locator("h1").click()
    tab.keyboard.press("/")
    tab.keyboard.type("a")
    assert "groups of blocks have" in readout.inner_text()
    tab.keyboard.press("Enter")
    assert "Moment" in readout.inner_text()
    tab.keyboard.press("Escape")
    tab.get_by_role("button", name="Each block").click()
    frame.focus()
    for key in ("p", "ArrowUp", "Enter"):
        tab.keyboard.press(key)
    tab.locator(".kept:not([hidden])").wait_for()
    tab.keyboard.press("n")
    assert "made by" in tab.locator(".kept").inner_text() or "at the start" in tab.locator(".kept").inner_text()
    before = tab.locator("#timeline .plot").get_attribute("data-view")
    for key in ("0", "w", "d", "r", "m"):
        tab.keyboard.press(key)
    assert tab.locator("#timeline .plot").get_attribute("data-view") != before
    frame.scroll_into_view_if_needed()
    area = plot_area(tab)
    tab.mouse.move(area["x"] + area["width"] * 0.3, area["y"] + area["height"] * 0.6)
    tab.mouse.down()
    tab.mouse.move(area["x"] + area["width"] * 0.7, area["y"] + area["height"] * 0.9, steps=3)
    tab.mouse.up()
    settled(tab)
    assert "came and stayed" in readout.inner_text()
    with tab.expect_download() as download:
        tab.get_by_label("Save the timeline as a picture").select_option("png")
    assert download.value.suggested_filename == "memory_timeline.png"
    frame.focus()
    tab.keyboard.press("?")
    tab.locator("dialog[open]").get_by_role("button", name="Close").click()
