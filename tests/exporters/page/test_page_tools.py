"""Tools of the page: search, measuring, the allocator step by step, what is taken along; each on every kind of page."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from benchmarks.synthetic_snapshot import make_snapshot
from tests.answers.test_snapshot_findings import BASE, load
from tests.exporters.page import page_samples as samples
from tests.exporters.page.tab import CLIPBOARD, plot_area, settled, until, view
from tests.exporters.page.test_diff_page import AFTER, BEFORE
from tests.exporters.page.test_snapshot_page import page_of
from tests.snapshot.dumps import block, entry, segment, snapshot
from tests.training_steps import Recorded
from tracer.answers.answer_of_findings import answer_of_findings
from tracer.answers.difference import diff_peaks
from tracer.answers.recording_findings import combine_cycles
from tracer.exporters.page.diff_page import diff_pages
from tracer.exporters.page.model import Page, without_times
from tracer.exporters.page.timeline_page import timeline_page
from tracer.snapshot.load import load_snapshot

pytestmark = pytest.mark.browser

MIB = 1024**2
FRAMES = {line: [{"name": "forward", "filename": "/srv/net.py", "line": line}] for line in (7, 8)}


@pytest.fixture
def blocks_page(tmp_path: Path) -> Page:
    """Three blocks of 1, 2 and 3 MiB of line 7 and one of 4 MiB of line 8, one after the other; then two are freed."""
    sizes, lines, starts = (1, 4, 2, 3), (7, 8, 7, 7), (0, 1, 5, 7)
    made = [
        entry("alloc", BASE + start * MIB, size * MIB, time_us=10 * number, frames=FRAMES[line])
        for number, (size, line, start) in enumerate(zip(sizes, lines, starts, strict=True))
    ]
    freed = [
        entry(action, BASE + starts[number] * MIB, sizes[number] * MIB, time_us=50 + 10 * number, frames=[])
        for number in (0, 1)
        for action in ("free_requested", "free_completed")
    ]
    alive = [block(BASE + 5 * MIB, 2 * MIB), block(BASE + 7 * MIB, 3 * MIB)]
    return page_of(load(tmp_path / "s", snapshot(made + freed, [segment(BASE, 10 * MIB, alive)])))


def drag(tab: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """From one point of the plot to another, in shares of its width and height."""
    area = plot_area(tab)
    (x0, y0), (x1, y1) = ((area["x"] + x * area["width"], area["y"] + y * area["height"]) for x, y in (start, end))
    tab.mouse.move(x0, y0)
    tab.mouse.down()
    tab.mouse.move(x1, y1, steps=4)
    tab.mouse.up()
    settled(tab)


def readout(tab: Any) -> str:
    return str(tab.locator(".readout").inner_text())


# --------------------------------------------------------------------------------------------------------- search
def test_a_search_says_what_it_found_and_goes_from_block_to_block(
    opened: Callable[..., Any], blocks_page: Page
) -> None:
    with opened(blocks_page) as tab:
        tab.locator("h1").click()
        tab.keyboard.press("/")
        tab.keyboard.type("net.py 7")
        assert "1 of 2 groups of blocks have \u201cnet.py 7\u201d: 6.00 MiB at the chosen moment" in readout(tab)
        assert "at most 6.00 MiB" in readout(tab)
        # Only those are in the table, and the timeline shows their course.
        assert "1 of 2 rows, 3 blocks, 6.00 MiB" in tab.locator(".filters p").inner_text()
        tab.get_by_role("button", name="Show all again").wait_for()
        seen = []
        for key in ("Shift+Enter", "Shift+Enter", "Shift+Enter", "Enter"):
            tab.keyboard.press(key)
            seen.append(re.findall(r"Moment (\d) of 3.* after entry (\d)", readout(tab)))
        # The peak is the entry of the last one.
        assert seen == [[("2", "2")], [("1", "0")], [("1", "0")], [("2", "2")]]
        tab.keyboard.press("Escape")
        assert "2 of 2 rows" in tab.locator(".filters p").inner_text()
        assert tab.get_by_label("Search blocks").input_value() == ""
        tab.get_by_label("Search blocks").fill("nothing of the kind")
        assert "No block is called" in readout(tab)


@pytest.mark.slow
def test_a_search_finds_frames_of_the_stack(opened: Callable[..., Any], tmp_path: Path) -> None:
    frames: list[dict[str, Any]] = [*FRAMES[7], {"name": "called_from_here", "filename": "/srv/train.py", "line": 3}]
    trace = [
        entry("alloc", BASE, MIB, time_us=0, frames=frames),
        entry("alloc", BASE + MIB, 512, time_us=1, frames=FRAMES[8]),
    ]
    alive = [block(BASE, MIB), block(BASE + MIB, 512)]
    with opened(page_of(load(tmp_path / "s", snapshot(trace, [segment(BASE, 64 * MIB, alive)])))) as tab:
        tab.get_by_label("Search blocks").fill("called_from train.py")
        assert "1 of 2 groups" in readout(tab)


# -------------------------------------------------------------------------------------------------------- measure
def test_a_drag_measures_what_came_and_went(opened: Callable[..., Any], blocks_page: Page) -> None:
    with opened(blocks_page) as tab:
        tab.get_by_role("button", name="Measure").click()
        before = view(tab)
        drag(tab, (0.05, 0.3), (0.95, 0.3))
        assert view(tab) == before
        # From the second block's entry or so to behind the last one: two are left.
        said = readout(tab)
        found = re.search(
            r"([\d.]+) (\S+), (\d+) events, (.*?) came and stayed, (.*?) went, (.*?); at most 10.00 MiB", said
        )
        assert found is not None, said
        assert "What came and what went" in tab.locator(".blocks h3").inner_text()
        when = tab.locator(".when").inner_text()
        assert found[4].lstrip("+") in when


def test_a_frame_sums_its_blocks(opened: Callable[..., Any], blocks_page: Page) -> None:
    with opened(blocks_page) as tab:
        tab.get_by_role("button", name="Each block").click()
        tab.locator(".frame").focus()
        tab.keyboard.press("m")
        drag(tab, (0.3, 0.02), (0.8, 0.98))
        assert "4 blocks in the frame, 10.00 MiB together." in readout(tab)
        # As it was before.
        tab.keyboard.press("m")
        before = view(tab)
        drag(tab, (0.4, 0.3), (0.6, 0.3))
        assert view(tab) != before


# --------------------------------------------------------------------------------------------------- block to block
def test_the_next_block_of_the_line_is_one_key_away(opened: Callable[..., Any], blocks_page: Page) -> None:
    with opened(blocks_page) as tab:
        tab.get_by_role("button", name="Each block").click()
        area = plot_area(tab)
        tab.mouse.click(area["x"] + 0.7 * area["width"], area["y"] + 0.97 * area["height"])
        kept = tab.locator(".kept")
        assert "1.00 MiB" in kept.inner_text()
        assert "Block 1 of 3 of this line, 6.00 MiB together over the recording." in kept.inner_text()
        sizes = []
        for key in ("n", "n", "n", "Shift+N"):
            tab.keyboard.press(key)
            sizes.append((re.search(r"([\d.]+ MiB) \(", kept.inner_text()) or [""])[1])
        assert sizes == ["2.00 MiB", "3.00 MiB", "3.00 MiB", "2.00 MiB"]
        kept.get_by_role("button", name="Next").click()
        assert "Block 3 of 3" in kept.inner_text()


# -------------------------------------------------------------------------------------------------------- allocator
def test_the_allocator_step_by_step(opened: Callable[..., Any], blocks_page: Page) -> None:
    with opened(blocks_page) as tab:

        def changes() -> list[str]:
            return list(tab.locator(".changes li").all_inner_texts())

        def step(name: str) -> list[str]:
            tab.locator(".allocator").get_by_role("button", name=name).click()
            return changes()

        # At the peak, the last of the four blocks fills what was left.
        (filled,) = changes()
        assert re.fullmatch(
            r"Allocated 3.00 MiB \(not known, net.py:7\) at 0x\w+: a free piece of just this size.", filled
        )
        assert step("Before")[0].endswith("split off a free piece of 5.00 MiB, of which 3.00 MiB stay free.")
        step("Next")
        step("Next")
        # The entry that asks for the free changes nothing, the one that completes it does.
        assert step("Next") == ["Freed 1.00 MiB (not known, net.py:7): a free piece of 1.00 MiB."]
        step("Next")
        assert step("Next") == [
            "Freed 4.00 MiB (not known, net.py:8): merged with free memory beside it to a piece of 5.00 MiB."
        ]
        assert "10.00 MiB reserved (10,485,760 B): 5.00 MiB in use" in tab.locator("#space > p").first.inner_text()
        assert "all of it beside blocks" in tab.locator("#space > p").first.inner_text()


def test_whether_a_request_would_fit(opened: Callable[..., Any], blocks_page: Page) -> None:
    with opened(blocks_page) as tab:
        tab.goto(tab.url.split("#")[0] + "#t=7")
        until(tab, "document.querySelector('.when').textContent.includes('entry 7')")
        verdict = tab.locator(".allocator p").last
        answers = {
            "5 MiB": "Yes, in reserved memory: the smallest free piece that is large enough has 5.00 MiB, at",
            "4MiB": "1.00 MiB of it stay free.",
            "5.1 MiB": "of 5.00 MiB that are free there, in 1 piece, the largest piece has 5.00 MiB. A segment of "
            "20.00 MiB is asked of the device, so that 10.00 MiB reserved become 30.00 MiB. If the device has not as "
            "much left, the request fails: no segment is without a block, so that nothing can be given back.",
            "11 MiB": "A segment of 12.00 MiB is asked of the device",
            "much": "A size is a number and a unit: 512 MiB, 1.5 GiB.",
        }
        for size, answer in answers.items():
            tab.get_by_label("Size of a request").fill(size)
            assert answer in verdict.inner_text(), size


def test_segments_that_came_and_went_are_found(opened: Callable[..., Any], tmp_path: Path) -> None:
    trace = [
        entry("segment_alloc", BASE, 2 * MIB, time_us=0),
        *(entry("alloc", BASE + number * 512, 512, time_us=1 + number, frames=FRAMES[7]) for number in range(4)),
        entry("segment_alloc", BASE + 64 * MIB, 20 * MIB, time_us=10),
        entry("alloc", BASE + 64 * MIB, 20 * MIB, time_us=11, frames=FRAMES[8]),
        entry("free_requested", BASE + 64 * MIB, 20 * MIB, time_us=12),
        entry("free_completed", BASE + 64 * MIB, 20 * MIB, time_us=13),
        entry("segment_free", BASE + 64 * MIB, 20 * MIB, time_us=14),
    ]
    alive = [block(BASE + number * 512, 512) for number in range(4)]
    shown = page_of(load(tmp_path / "s", snapshot(trace, [segment(BASE, 2 * MIB, alive)])))
    with opened(shown) as tab:
        steps = tab.locator(".allocator")
        steps.get_by_role("button", name="Segment change →").click()
        assert tab.locator(".changes li").all_inner_texts()[0].startswith("Released to the device: 20.00 MiB")
        steps.get_by_role("button", name="← Segment change").click()
        assert tab.locator(".changes li").all_inner_texts()[0].startswith("Reserved a segment: 20.00 MiB")
        assert (
            "20.00 MiB of it in segments without a block, which empty_cache() gives back"
            in tab.locator("#space > p").first.inner_text()
        )


# ------------------------------------------------------------------------------------------------------ to take along
@pytest.mark.parametrize("mode", [pytest.param("kinds", marks=pytest.mark.slow), "blocks"])
def test_the_timeline_is_saved_as_a_picture(
    opened: Callable[..., Any], blocks_page: Page, mode: str, tmp_path: Path
) -> None:
    with opened(blocks_page) as tab:
        if mode == "blocks":
            tab.get_by_role("button", name="Each block").click()
        drawn = tab.evaluate("document.querySelector('.plot canvas').toDataURL()")
        for kind in ("svg", "png"):
            with tab.expect_download() as download:
                tab.get_by_label("Save the timeline as a picture").select_option(kind)
            download.value.save_as(tmp_path / f"x.{kind}")
        assert tab.evaluate("document.querySelector('.plot canvas').toDataURL()") == drawn
        texts = [text for text in tab.locator(".labels span").all_inner_texts() if text]
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    written = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text and text.startswith("Peak of device 0: 10.00 MiB requested") for text in written)
    assert set(texts) <= set(written)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert (len(list(root.iter("{http://www.w3.org/2000/svg}image"))) == 1) == (mode == "blocks")


@pytest.mark.slow
def test_a_picture_of_an_attackers_page_is_text(opened: Callable[..., Any], tmp_path: Path) -> None:
    with opened(samples.hostile_page()) as tab:
        with tab.expect_download() as download:
            tab.get_by_label("Save the timeline as a picture").select_option("svg")
        download.value.save_as(tmp_path / "x.svg")
    names = {element.tag.rpartition("}")[2] for element in ElementTree.parse(tmp_path / "x.svg").iter()}
    assert names <= {"svg", "g", "rect", "text", "path", "clipPath"}


def test_the_table_is_copied_as_markdown_and_for_a_spreadsheet(opened: Callable[..., Any]) -> None:
    with opened(samples.small_page(), permissions=CLIPBOARD) as tab:
        tab.get_by_label("Filter rows by text").fill("net.1")
        tab.get_by_role("button", name="Copy as table").click()
        tab.get_by_role("button", name="Copied").wait_for()
        lines = tab.evaluate("navigator.clipboard.readText()").splitlines()
        assert lines[0] == "| Size | Blocks | Category | Phase | Module | Operator | Source |"
        assert lines[2:] == ["| 2.93 KiB | 1 | UNTAGGED | forward | net.1 | aten::add | /srv/project/models/net.py:9 |"]
        html = tab.evaluate(
            "navigator.clipboard.read().then(([item]) => item.getType('text/html')).then((blob) => blob.text())"
        )
        assert "<td>3000</td>" in html


def test_the_address_keeps_what_is_shown(opened: Callable[..., Any], blocks_page: Page) -> None:
    with opened(blocks_page, permissions=CLIPBOARD) as tab:
        drag(tab, (0.2, 0.3), (0.6, 0.3))
        shown = view(tab)
        until(tab, "location.hash.includes('view=')")
        tab.get_by_role("button", name="By event").click()
        until(tab, "location.hash.includes('by=event')")
        shown = view(tab)
        tab.get_by_role("button", name="Copy link").click()
        tab.get_by_role("button", name="Copied").wait_for()
        link = tab.evaluate("navigator.clipboard.readText()")
        tab.goto("about:blank")
        tab.goto(link)
        tab.wait_for_selector("html[data-drawn]")
        assert view(tab) == pytest.approx(shown, rel=1e-6)
        assert tab.get_by_role("button", name="By event").get_attribute("aria-pressed") == "true"
        assert "view=" in unquote(link)
        # What is no stretch is not followed.
        tab.goto("about:blank")
        tab.goto(link.split("#")[0] + "#view=7~1")
        tab.wait_for_selector("html[data-drawn]")


# ---- every kind of page, as people have it: wide and on a phone, light and dark --------------------
@pytest.fixture(params=["run", "snapshot", "diff", "null GPU"])
def pages(request: pytest.FixtureRequest, recorded: Callable[[str], Recorded], tmp_path: Path) -> list[Page]:
    """A page of each kind."""
    if request.param == "snapshot":
        path = tmp_path / "s.pickle"
        path.write_bytes(pickle.dumps(make_snapshot(20_000)))
        return [page_of(load_snapshot(path))]
    if request.param == "diff":
        return diff_pages([diff_peaks(BEFORE, AFTER)], before="before", after="after")
    findings = combine_cycles(recorded("fno_2d_new_zeros").cycles[:1])
    if request.param == "run":
        return [timeline_page(findings, run={"command": "main.py"})]
    answer = answer_of_findings(findings, "Null GPU: nothing was computed.")
    return [without_times(timeline_page(findings, answer, run={"command": "main.py"}))]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_the_timeline_is_clicked_through(
    opened: Callable[..., Any], pages: list[Page], width: int, scheme: Literal["light", "dark"]
) -> None:
    with opened(pages, color_scheme=scheme, permissions=CLIPBOARD) as tab:
        tab.set_viewport_size({"width": width, "height": 900})
        # Until the page is drawn anew, rulers stand where they did in the wider window.
        tab.evaluate("document.querySelectorAll('.rule').forEach((rule) => rule.style.left = '1500px')")
        fits_in(tab, width)
        if pages[0].answer.caveat:
            assert tab.locator(".caveat").inner_text() == pages[0].answer.caveat
        if tab.locator("#timeline .frame").count():
            timeline(tab)
        tab.locator("#theme").click()
        assert tab.evaluate("document.documentElement.dataset.theme") != scheme
        fits_in(tab, width)


def fits_in(tab: Any, width: int) -> None:
    """Assert that the page fits into the window, and that no cell with a text is hidden where a row is a card."""
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
