"""memory_timeline.html in a real browser without a network: what a person sees, clicks and reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.answers.test_snapshot_findings import BASE, load
from tests.exporters.page import page_samples as samples
from tests.exporters.page.tab import (
    column,
    hover,
    labels,
    picture,
    plot_area,
    rows_text,
    settled,
    sum_of_rows,
    until,
    view,
)
from tests.exporters.page.test_snapshot_page import page_of
from tests.snapshot.dumps import block, entry, segment, snapshot
from tests.training_steps import Recorded
from tracer.answers.answer import Answer
from tracer.answers.recording_findings import combine_cycles
from tracer.answers.tables import Section, Table, columns
from tracer.exporters.page.model import Page
from tracer.exporters.page.timeline_page import timeline_page

pytestmark = pytest.mark.browser


def test_hover_reads_the_peak(opened: Callable[..., Any]) -> None:
    with opened(samples.small_page()) as tab:
        # The axis goes from 0 to 50 us with 0.4 % at each side; the peak holds from 30 to 40 us.
        tip = hover(tab, 0.7)
        assert "30.000 µs, event 4 of 6" in tip
        assert re.search(r"activation\s+3.91 KiB\s+4,000 B", tip)
        assert re.search(r"total\s+8.79 KiB\s+9,000 B", tip)
        assert "9,000 B" in tab.locator(".readout").inner_text()
        assert "20.000 µs" in hover(tab, 0.5)
        assert {"True peak 8.79 KiB", "Tagged peak 6.84 KiB", "step 5", "forward", "backward"} <= set(labels(tab))


def test_categories_go_and_come_back_by_mouse_and_keyboard(opened: Callable[..., Any]) -> None:
    with opened(samples.small_page()) as tab:
        before = picture(tab)
        chip = tab.get_by_role("button", name="activation")
        assert chip.get_attribute("aria-pressed") == "true"
        chip.click()
        tab.wait_for_selector(".chip[aria-pressed=false]")
        tip = hover(tab, 0.7)
        assert "activation" not in tip
        assert re.search(r"shown\s+4.88 KiB\s+5,000 B", tip)
        assert picture(tab) != before
        chip.focus()
        tab.keyboard.press("Enter")
        tab.wait_for_selector(".chip[aria-pressed=false]", state="detached")
        tab.mouse.move(0, 0)
        settled(tab)
        assert picture(tab) == before


def test_the_cursor_moves_by_keyboard(opened: Callable[..., Any]) -> None:
    with opened(samples.small_page()) as tab:
        tab.locator(".frame").focus()
        tab.keyboard.press("ArrowRight")
        assert "event 5 of 6: 2.93 KiB (3,000 B)" in tab.locator(".readout").inner_text()
        tab.keyboard.press("ArrowLeft")
        tab.keyboard.press("ArrowLeft")
        assert "event 3 of 6: 6.84 KiB (7,000 B)" in tab.locator(".readout").inner_text()
        tab.keyboard.press("p")
        until(tab, "document.querySelector('.readout').textContent.includes('event 4 of 6')")
        low, high = view(tab)
        assert low < 30 < high
        assert high - low < 2
        tab.keyboard.press("0")
        assert view(tab)[0] < 0


def test_a_drag_zooms_and_the_view_by_event_has_all_events(opened: Callable[..., Any]) -> None:
    with opened(samples.small_page()) as tab:
        box = plot_area(tab)
        middle = box["y"] + box["height"] / 2
        tab.mouse.move(box["x"] + box["width"] * 0.5, middle)
        tab.mouse.down()
        tab.mouse.move(box["x"] + box["width"] * 0.9, middle, steps=5)
        tab.mouse.up()
        assert view(tab)[0] > 20
        tab.get_by_role("button", name="Show all").click()
        tab.get_by_role("button", name="By event").click()
        assert "event, in the order of the allocator" in labels(tab)
        assert view(tab) == pytest.approx((0.98, 6.02))
        assert "event 4 of 6" in hover(tab, 0.65)


def test_the_table_sorts_filters_and_sums(opened: Callable[..., Any]) -> None:
    with opened(samples.small_page()) as tab:
        assert column(tab, 1) == ["3.42 KiB", "2.93 KiB", "1.95 KiB", "500 B"]
        header = tab.locator(".blocks th:visible").first
        assert header.get_attribute("aria-sort") == "descending"
        tab.get_by_role("button", name="Size", exact=True).click()
        assert header.get_attribute("aria-sort") == "ascending"
        assert column(tab, 1) == ["500 B", "1.95 KiB", "2.93 KiB", "3.42 KiB"]
        tab.get_by_role("button", name="Operator").focus()
        tab.keyboard.press("Enter")
        # What is not known comes last.
        assert column(tab, 6) == ["aten::add", "aten::gelu", "aten::mm", "-"]
        tab.get_by_label("Filter rows by category").select_option("activation")
        assert column(tab, 1) == ["3.42 KiB", "500 B"]
        tab.get_by_label("Filter rows by text").fill("net.2 aten")
        assert column(tab, 5) == ["net.2"]
        assert "1 of 4 rows, 1 block, 500 B (500 B), 5.6\u00a0% of the peak." in tab.locator(".filters p").inner_text()
        checks = tab.locator(".check").all_inner_texts()
        assert checks == [
            "✓ The categories sum to the peak, 9,000 B.",
            "✓ The rows, with the 3 that the filter hides, sum to the peak, 9,000 B.",
        ]
        link = tab.locator(".blocks a.place").first
        assert link.get_attribute("href") is None
        tab.get_by_label("Open lines in").select_option("vscode")
        assert link.get_attribute("href") == "vscode://file/srv/project/models/net.py:123"
        tab.get_by_label("Open lines in").select_option("pycharm")
        assert link.get_attribute("href") == "pycharm://open?file=/srv/project/models/net.py&line=123"


def test_lines_open_in_the_folder_that_the_reader_names(
    opened: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tuple(
        samples.peak_row(9, file=file, line=3) for file in ("src/net.py", "~/net.py", "/usr/site-packages/a.py")
    )
    page = samples.with_blocks(Page("x", "cpu", samples.SAID, breakdown={"ACTIVATION": 27}), rows)

    def links(tab: Any) -> set[str | None]:
        return {link.get_attribute("href") for link in tab.locator(".blocks a.place").all()}

    with opened(page) as tab:
        tab.get_by_label("Open lines in").select_option("vscode")
        assert links(tab) == {None}
        tab.get_by_label("Folder of the sources").fill("/home/me/my project")
        assert links(tab) == {"vscode://file/home/me/my%20project/src/net.py:3", None}
    # Written below the folder where the program ran, the page finds it by itself.
    monkeypatch.chdir(tmp_path.parent)
    with opened(page) as tab:
        tab.get_by_label("Open lines in").select_option("pycharm")
        assert links(tab) == {f"pycharm://open?file={tmp_path.parent}/src/net.py&line=3", None}


def test_any_moment_by_click_key_and_address(opened: Callable[..., Any], recorded: Callable[[str], Recorded]) -> None:
    cycle = recorded("fno_2d_new_zeros").cycles[0]
    counted = cycle.source.lifetimes.allocator_bytes
    with opened(timeline_page(combine_cycles([cycle]), run={})) as tab:
        assert tab.locator(".when strong").inner_text() == "At the peak"
        assert sum_of_rows(tab) == cycle.peak.peak_bytes
        for share in (0.15, 0.5, 0.85):
            area = plot_area(tab)
            tab.mouse.click(area["x"] + area["width"] * share, area["y"] + area["height"] / 2)
            event = chosen_event(tab)
            alive = cycle.source.lifetimes.alive_at(event - 1)
            assert sum_of_rows(tab) == counted[event - 1] == cycle.source.lifetimes.size_bytes[alive].sum()
            assert f"{len(alive):,} block" in rows_text(tab)
            assert tab.locator(".check.bad").count() == 0
        tab.locator(".frame").focus()
        tab.keyboard.press("ArrowLeft")
        assert chosen_event(tab) == event - 1
        assert sum_of_rows(tab) == counted[event - 2]
        # What the address says is shown again.
        tab.reload()
        tab.wait_for_selector("html[data-drawn]")
        assert sum_of_rows(tab) == counted[event - 2]
        tab.get_by_role("button", name="Back to the peak").click()
        until(tab, "location.hash === ''")
        assert sum_of_rows(tab) == cycle.peak.peak_bytes


def chosen_event(tab: Any) -> int:
    """The event that is shown; the address has it too, unless it is the peak."""
    found = re.search(r"event ([\d,]+) of", tab.locator(".when").inner_text())
    assert found is not None
    event = int(found[1].replace(",", ""))
    is_peak = tab.locator(".when strong").inner_text() == "At the peak"
    wanted = "" if is_peak else f"#t={event}"
    until(tab, f"location.hash === '{wanted}'")  # written after the picture
    return event


def test_two_moments_are_compared(opened: Callable[..., Any], recorded: Callable[[str], Recorded]) -> None:
    cycle = recorded("fno_2d_new_zeros").cycles[0]
    counted, lifetimes = cycle.source.lifetimes.allocator_bytes, cycle.source.lifetimes
    first, last = len(counted) // 4, len(counted) // 2
    with opened(timeline_page(combine_cycles([cycle]), run={})) as tab:
        tab.evaluate(f"location.hash = '#t={last + 1}&with={first + 1}'")
        until(tab, "document.querySelector('.when').textContent.startsWith('From')")
        was = (lifetimes.made_at <= first) & (lifetimes.freed_at > first)
        stays = (lifetimes.made_at <= last) & (lifetimes.freed_at > last)
        came, went = (int(lifetimes.size_bytes[rows].sum()) for rows in (stays & ~was, was & ~stays))
        titles = [cell.get_attribute("title") for cell in tab.locator(".breakdown tfoot td").all()]
        assert titles == [f"{came:,} B", f"{went:,} B", f"{came - went:,} B"]
        assert tab.locator(".blocks h3").inner_text() == "What came and what went"
        check = tab.locator(".blocks .check").inner_text()
        assert check == f"✓ What came less what went is the change, {counted[last] - counted[first]:,} B."
        tab.get_by_role("button", name="Stop comparing").click()
        assert sum_of_rows(tab) == counted[last]
        tab.locator(".frame").focus()
        tab.keyboard.press("c")
        tab.keyboard.press("ArrowRight")
        assert tab.locator(".when").inner_text().startswith("From")


STACKS = (
    ("gelu (/srv/net.py:3)", "call (/opt/lib/python3.11/site-packages/torch/nn.py:9)", "main (/srv/train.py:70)"),
    ("add (/srv/net.py:9)", "main (/srv/train.py:70)"),
    ("c10::alloc", "torch::run"),
    ("gelu (/srv/net.py:3)", "check (/srv/train.py:90)"),
)


def tiles(tab: Any) -> list[str]:
    """Names and sizes of the tree's tiles, top down, without kinds."""
    named = tab.locator(".icicle [role=treeitem]").all()
    return [", ".join(tile.get_attribute("aria-label").split(", ")[:2]) for tile in named]


def test_the_tree_is_a_flame_graph_by_caller_and_inverted(opened: Callable[..., Any]) -> None:
    page = samples.small_page()
    groups = tuple(replace(row, stack=stack) for row, stack in zip(page.groups, STACKS, strict=True))
    with opened(replace(page, groups=groups)) as tab:
        assert tab.locator(".icicle").bounding_box()["width"] > 1000
        tab.get_by_role("button", name="By caller").click()
        assert tiles(tab)[1:] == [
            "main (srv/train.py:70), 6.35 KiB",
            "call (torch/nn.py:9), 3.42 KiB",
            "gelu (srv/net.py:3), 3.42 KiB",
            "add (srv/net.py:9), 2.93 KiB",
            "torch::run, 1.95 KiB",
            "c10::alloc, 1.95 KiB",
            "check (srv/train.py:90), 500 B",
            "gelu (srv/net.py:3), 500 B",
        ]
        tab.get_by_label("Hide library frames").check()
        assert not any("torch" in tile for tile in tiles(tab))
        assert "c10::alloc, 1.95 KiB" in tiles(tab)
        tab.get_by_label("Search in the tree").fill("gelu")
        assert tab.locator(".tile.is-found").count() == 2
        assert tab.locator(".map-side [role=status]").inner_text().startswith("Found 3.91 KiB (4,000 B)")
        tab.get_by_role("button", name="By allocating line").click()
        assert "gelu (srv/net.py:3), 3.91 KiB" in tiles(tab)
        tab.get_by_role("treeitem", name="gelu", exact=False).first.click()
        assert rows_text(tab).startswith("2 of 4 rows, 3 blocks, 3.91 KiB (4,000 B)")


def test_on_a_phone_rows_of_a_comparison_stand_in_columns(opened: Callable[..., Any]) -> None:
    rows = tuple((1000 * number, number, 1001 * number, "1 -> 2", f"module.{number}") for number in range(-9, 9))
    sizes = (*columns("change", "change"), *columns("bytes", "before", "after"))
    table = Table("By module", (*sizes, *columns("text", "blocks", "module")), rows)
    page = replace(samples.empty_page(), sections=(Section("What changed", (), (table,)),))
    with opened(page) as tab:
        tab.set_viewport_size({"width": 390, "height": 844})
        tab.reload()
        tab.wait_for_selector("html[data-drawn]")
        assert tab.locator(".flows tbody tr").count() == 4
        lefts = [
            {round(cell.bounding_box()["x"]) for cell in tab.locator(f".flows tbody td:nth-child({place})").all()}
            for place in range(1, 6)
        ]
        assert [len(places) for places in lefts] == [1] * 5
        tops = [tab.locator(".flows tbody tr:first-child td").nth(place).bounding_box()["y"] for place in range(5)]
        # Short words stand side by side, as numbers do.
        assert tops[0] < tops[1] == tops[2] < tops[3] == tops[4]


def test_a_number_of_a_finding_is_never_broken_and_an_empty_cell_takes_no_room(opened: Callable[..., Any]) -> None:
    row = (457_000, 12, "", "net." * 60, "kernel." * 60)
    heads = (*columns("duration", "a"), *columns("count", "b"), *columns("text", "c", "d", "e"))
    page = replace(samples.empty_page(), sections=(Section("Time", (), (Table("", heads, (row,)),)),))
    with opened(page) as tab:
        cells = tab.locator(".flows tbody td")
        breaks = [cells.nth(place).locator("wbr").count() for place in (0, 1, 3)]
        assert breaks == [0, 0, 59]
        assert cells.first.evaluate("(cell) => getComputedStyle(cell).textAlign") == "right"
        tab.set_viewport_size({"width": 390, "height": 844})
        assert [cell.is_visible() for cell in cells.all()] == [True, True, False, True, True]


def test_the_tree_opens_by_mouse_and_keyboard_and_chooses_for_all(opened: Callable[..., Any]) -> None:
    with opened(samples.small_page()) as tab:
        tile = tab.get_by_role("treeitem", name="net", exact=False)
        names = [one.get_attribute("aria-label") for one in tile.all()]
        assert "net, 8.79 KiB, 100.0\u00a0%" in names
        tab.get_by_role("treeitem", name="1, 2.93 KiB").click()
        assert rows_text(tab).startswith("1 of 4 rows, 1 block, 2.93 KiB (3,000 B)")
        assert tab.locator(".chip.only").inner_text() == "only 1 \u00d7"
        tab.keyboard.press("Escape")
        assert rows_text(tab).startswith("4 of 4 rows")
        tab.mouse.move(0, 0)
        tab.locator(".icicle button[tabindex='0']").focus()
        tab.keyboard.press("Home")
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("ArrowDown")
        assert "net \u203a 0: 5.37 KiB (5,500 B)" in tab.locator(".map-side [role=status]").inner_text()
        tab.keyboard.press("Enter")
        assert rows_text(tab).startswith("2 of 4 rows, 3 blocks, 5.37 KiB (5,500 B)")
        # A row chooses too.
        tab.get_by_role("button", name="Show all again").click()
        tab.locator("button.bar-cell").first.click()
        assert tab.locator("tr.is-chosen").count() == 1


def test_each_block_is_drawn_and_read(opened: Callable[..., Any], recorded: Callable[[str], Recorded]) -> None:
    cycle = recorded("fno_2d_new_zeros").cycles[0]
    with opened(timeline_page(combine_cycles([cycle]), run={})) as tab:
        kinds = picture(tab)
        tab.get_by_role("button", name="Each block").click()
        assert picture(tab) != kinds
        tab.get_by_role("button", name="By event").click()  # by the clock other blocks meet the pointer in every run
        tab.get_by_label("Colour of the blocks").select_option("line")
        assert tab.locator(".lane-key span").count() > 3
        area = plot_area(tab)
        tab.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] * 0.8)
        settled(tab)
        tip = tab.locator(".frame .tip").inner_text()
        size = re.search(r"\(([\d,]+) B\)", tip)
        assert size is not None
        assert int(size[1].replace(",", "")) in cycle.source.lifetimes.size_bytes
        assert "step" in tip or "event" in tip or "start of what is shown" in tip
        # Five frames in passing; a click keeps the block, Enter does too, with all of them.
        kept = tab.locator(".kept")
        tab.mouse.click(area["x"] + area["width"] / 2, area["y"] + area["height"] * 0.8)
        kept.wait_for()
        assert size[0] in kept.inner_text()
        tab.get_by_role("button", name="Close the block").click()
        assert not kept.is_visible()
        tab.locator(".frame").focus()
        frames: list[str] = []
        for _ in range(200):
            tab.keyboard.press("ArrowUp")
            tip = tab.locator(".frame .tip").inner_text()
            frames = re.findall(r"\(.*\.py:\d+\)$", tip, re.MULTILINE)
            if "more frames" in tip:
                break
        assert len(frames) == 5
        tab.keyboard.press("Enter")
        kept.wait_for()
        assert kept.inner_text().count(".py:") > 5
        assert all(frame in kept.inner_text() for frame in frames)


def shown_bytes(tab: Any) -> tuple[float, float]:
    """What of the vertical axis is shown."""
    low, top = tab.evaluate("(({ low, top }) => [low, top])(document.querySelector('.plot').dataset)")
    return float(low), float(top)


def sizes_seen(tab: Any) -> list[str]:
    """Of the blocks under twenty points from top to bottom; empty where none is."""
    area, sizes = plot_area(tab), []
    for step in range(20):
        tab.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] * step / 24)
        settled(tab)
        size = re.search(r"\(([\d,]+ B)\)", tab.locator(".frame .tip").inner_text())
        sizes.append(size[1] if size else "")
    return sizes


@pytest.mark.slow
def test_small_blocks_appear_as_the_bytes_are_zoomed(opened: Callable[..., Any], tmp_path: Path) -> None:
    """A block of 64 KiB on top of one of 1 GiB is less than a pixel high: a drag frames the edge, again and again."""
    edge = BASE + (1 << 30)
    trace = [entry("alloc", BASE, 1 << 30), entry("alloc", edge, 1 << 16)]
    values = snapshot(trace, [segment(BASE, 2 << 30, [block(BASE, 1 << 30), block(edge, 1 << 16)])])
    with opened(page_of(load(tmp_path / "s", values))) as tab:
        tab.get_by_role("button", name="Each block").click()
        tab.locator(".frame").focus()
        whole = shown_bytes(tab)
        for _ in range(4):
            seen = sizes_seen(tab)
            first = next(step for step, size in enumerate(seen) if size)
            area = plot_area(tab)
            tab.mouse.move(area["x"] + 1, area["y"] + area["height"] * max(0, first - 1.5) / 24)
            tab.mouse.down()
            tab.mouse.move(area["x"] + area["width"] - 1, area["y"] + area["height"] * (first + 1) / 24, steps=3)
            tab.mouse.up()
            settled(tab)
        low, top = shown_bytes(tab)
        assert 0 < low < 1 << 30 < top and top - low < 1 << 20
        assert "65,536 B" in sizes_seen(tab)
        tab.keyboard.press("t")
        raised = shown_bytes(tab)
        assert raised[0] > low
        tab.keyboard.press("r")
        assert raised[0] < shown_bytes(tab)[0] and shown_bytes(tab)[1] < raised[1]
        tab.keyboard.press("0")
        assert shown_bytes(tab) == whole


def test_keys_move_and_zoom_and_are_listed(opened: Callable[..., Any], recorded: Callable[[str], Recorded]) -> None:
    cycle = recorded("fno_2d_new_zeros").cycles[0]
    with opened(timeline_page(combine_cycles([cycle]), run={})) as tab:
        tab.locator(".frame").focus()
        whole = view(tab)
        tab.keyboard.press("w")
        near = view(tab)
        assert whole[0] < near[0] and near[1] < whole[1]
        tab.keyboard.press("d")
        assert view(tab)[0] > near[0]
        tab.keyboard.press("a")
        assert view(tab) == pytest.approx(near)
        tab.keyboard.press("s")
        assert view(tab) == pytest.approx(whole)
        tab.keyboard.press("?")
        keys = tab.get_by_role("dialog", name="Keys of the timeline")
        assert "zoom the bytes" in keys.inner_text()
        keys.get_by_role("button", name="Close").click()
        assert not keys.is_visible()


def test_what_ended_the_program_stands_before_other_findings_and_what_is_drawn_has_no_section(
    opened: Callable[..., Any],
) -> None:
    sections = (
        Section("Reserved memory", ("9 GiB",)),
        Section("Out of memory", ("Recompute.",), is_alarming=True),
        Section("The peak", is_drawn=True),
    )
    with opened(replace(samples.small_page(), answer=Answer(("It ended.",), sections=sections))) as tab:
        shown = [title for title in tab.locator("main h2").all_inner_texts() if title]
        assert shown.index("Out of memory") < shown.index("Reserved memory") and "The peak" not in shown


def test_everything_is_reached_and_seen_with_the_tab_key(opened: Callable[..., Any]) -> None:
    """Every stop has a name and shows that it has the focus, and the order is that of the page from top to bottom."""
    with opened(samples.small_page()) as tab:
        stops = []
        for _ in range(80):
            tab.keyboard.press("Tab")
            stop = tab.evaluate(
                """(() => {
                    const one = document.activeElement, style = getComputedStyle(one);
                    const box = one.getBoundingClientRect();
                    const name = one.getAttribute('aria-label') || one.textContent.trim() || one.placeholder || '';
                    return [one.tagName, name, style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1,
                            !one.closest('.bar, .skip') && box.top + scrollY, style.opacity];
                })()"""
            )
            if stop[0] == "BODY":
                break
            stops.append(stop)
        names = [name for _, name, *_ in stops]
        assert names[0] == "Skip to the answer"
        for name in ("Switch to dark colours", "Zoom to peak", "activation3.91 KiB", "Size", "Filter rows by text"):
            assert name in names, names
        assert all(name and outlined and opacity == "1" for _, name, outlined, _, opacity in stops), stops
        tops = [top for *_, top, _ in stops if top is not False]
        assert all(later > earlier - 60 for earlier, later in pairwise(tops))


def test_markup_is_text_everywhere(opened: Callable[..., Any]) -> None:
    with opened(samples.hostile_page()) as tab:
        hover(tab, 0.8)
        shown = tab.evaluate("document.querySelector('main').textContent + document.querySelector('.bar').textContent")
        drawn = "\n".join(labels(tab) + tab.locator(".tile").all_inner_texts())
        for text in (samples.SCRIPT, samples.IMAGE, samples.MARKUP):
            assert shown.count(text) > 3
            assert text in drawn
        assert tab.evaluate("document.scripts.length") == 2
        assert tab.evaluate("document.querySelectorAll('img, iframe, object, main b, main i').length") == 0
        tab.get_by_label("Open lines in").select_option("vscode")
        tab.get_by_label("Folder of the sources").fill("javascript:alert(1)//")
        links = tab.evaluate("[...document.querySelectorAll('main a[href]')].map((one) => one.getAttribute('href'))")
        assert links
        assert all(re.fullmatch(r"vscode://file/[\w/%.():'!*~-]+", link) for link in links), links
        assert tab.title() == f"{samples.SCRIPT} - memory on {samples.IMAGE}"


@pytest.mark.parametrize("page", [samples.empty_page, samples.one_event_page, samples.entries_page])
def test_little_is_shown_as_little(opened: Callable[..., Any], page: Callable[[], Page]) -> None:
    with opened(page()) as tab:
        assert tab.locator("h1").inner_text()
        assert (tab.locator(".plot").count() == 0) == (page is samples.empty_page)
        assert "undefined" not in tab.locator("body").inner_text()
        assert "NaN" not in tab.locator("body").inner_text()


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_themes_and_widths(opened: Callable[..., Any], width: int) -> None:
    with opened(samples.long_page(), color_scheme="dark") as tab:
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
        dark = tab.evaluate("getComputedStyle(document.body).color")
        tab.get_by_role("button", name="Switch to light colours").click()
        assert tab.evaluate("document.documentElement.dataset.theme") == "light"
        assert tab.evaluate("getComputedStyle(document.body).color") != dark
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        # Nothing is cut or has to be scrolled for: not the shares, and not a row's line of source.
        cut = "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('.breakdown'))"
        assert tab.evaluate(cut) <= 0
        row = ".blocks tbody tr:first-child td"
        cells = f"[...document.querySelectorAll('{row}')].map((one) => one.getBoundingClientRect())"
        assert tab.evaluate(f"Math.max(...{cells}.map((box) => box.right))") <= width
        assert tab.evaluate(f"Math.min(...{cells}.map((box) => box.width))") > 20


@pytest.mark.slow
def test_paper_has_all_rows_and_no_controls(opened: Callable[..., Any]) -> None:
    with opened(samples.long_page(), color_scheme="dark") as tab:
        tab.set_viewport_size({"width": 1280, "height": 900})
        assert tab.locator(".blocks tbody tr").count() == 25
        tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        tab.emulate_media(media="print")
        assert tab.locator(".blocks tbody tr").count() > 40
        assert tab.evaluate("document.documentElement.dataset.theme") == "light"
        # What is drawn before the printer's rules hold is as large as they say, however wide the screen or the paper.
        drawn = tab.evaluate("(({ width, height }) => [width, height])(document.querySelector('.plot canvas'))")
        assert drawn == [680, 430]
        assert tab.locator(".icicle").bounding_box()["width"] == 680
        # A footer group would be repeated where a page ends, above rows that it sums.
        assert tab.evaluate("getComputedStyle(document.querySelector('tfoot')).display") == "table-row-group"
        assert not tab.locator(".tools:visible").count()
        assert not tab.locator("nav").is_visible()
