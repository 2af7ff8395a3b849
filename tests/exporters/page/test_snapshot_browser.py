"""Pages of snapshots in a real browser: devices, segments, moments, source, and why memory ran out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.answers.test_snapshot_findings import BASE, load
from tests.blocks.from_recording.test_allocator_join import WatchedAllocator, joined
from tests.exporters.page import page_samples as samples
from tests.exporters.page.tab import hover, rows_text, sum_of_rows, until
from tests.exporters.page.test_snapshot_page import page_of
from tests.exporters.snapshot_samples import out_of_memory
from tests.snapshot.allocator_model import SEGMENT_BYTES
from tests.snapshot.dumps import REAL_FILES, block, entry, segment, snapshot
from tracer.answers.line_memory import LineMemory
from tracer.answers.rows import rows_of_lines
from tracer.answers.snapshot_findings import ReplayedSnapshot, explain_replayed, replay_snapshot
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.sites import Sites
from tracer.capture.sources.source_line import SourceLine
from tracer.exporters.annotated_source import annotated_files
from tracer.exporters.page.model import Page
from tracer.exporters.page.snapshot_page import snapshot_page
from tracer.exporters.page.timeline_page import timeline_page
from tracer.snapshot.load import load_snapshot
from tracer.units import format_bytes

pytestmark = pytest.mark.browser


def pages_of(replayed: ReplayedSnapshot) -> list[Page]:
    return [snapshot_page(device, run={}) for device in explain_replayed(replayed).parts]


def test_a_device_is_chosen_and_kept_in_the_address(opened: Callable[..., Any], tmp_path: Path) -> None:
    objects = out_of_memory()
    objects["segments"].append(segment(BASE, 64 * 2**20, [block(BASE, 60 * 2**20)], device=1))
    with opened(pages_of(replay_snapshot(load(tmp_path / "s", objects)))) as tab:
        assert "device 0" in tab.locator("h1").inner_text()
        tab.get_by_label("Device", exact=True).select_option(label="device 1, 60.00 MiB")
        until(tab, "document.querySelector('h1').textContent.includes('device 1')")
        until(tab, "location.hash === '#device=device%201'")  # written after the picture
        assert tab.locator(".plot").count() == 0
        tab.reload()
        tab.wait_for_selector("html[data-drawn]")
        assert "Peak of device 1: 60.00 MiB requested" in tab.locator("h1").inner_text()


def test_segments_follow_the_moment(opened: Callable[..., Any], tmp_path: Path) -> None:
    replayed = replay_snapshot(load(tmp_path / "s", out_of_memory()))
    with opened(pages_of(replayed)) as tab:
        check_moments(tab, replayed.devices[0], replayed.sites, [0, 2, 5])


def test_segments_of_a_run_follow_the_moment(opened: Callable[..., Any]) -> None:
    allocator = WatchedAllocator()
    first = allocator.alloc(SEGMENT_BYTES // 2)
    allocator.start_recording()
    allocator.profiling = True
    for size in (SEGMENT_BYTES // 4, SEGMENT_BYTES, 3 * SEGMENT_BYTES):
        allocator.alloc(size)
    allocator.free(first)
    with opened(timeline_page(joined(allocator), run={})) as tab:
        for event, truth in enumerate(allocator.truths, start=1):
            tab.evaluate(f"location.hash = '#t={event}'")
            until(tab, f"document.querySelector('.when').textContent.includes('event {event} of')")
            words = tab.locator("#space p").first.inner_text()
            assert f"reserved ({truth.reserved:,} B)" in words
            assert f"{format_bytes(truth.allocated)} in use" in words


def check_moments(tab: Any, device: ReplayedDevice, sites: Sites, entries: list[int]) -> None:
    """Rows, categories and segments at some entries are what the recording says."""
    for entry_number in entries:
        tab.evaluate(f"location.hash = '#t={entry_number}'")
        words = f"after entry {entry_number:,} of"
        until(tab, f"document.querySelector('.when').textContent.includes('{words}')")
        groups = rows_of_lines(device.blocks.take(device.replay.lives.alive_after(entry_number)))
        assert sum_of_rows(tab) == device.replay.requested_bytes[entry_number + 1]
        blocks = sum(group.count for group in groups)
        assert rows_text(tab).startswith(f"{len(groups):,} of {len(groups):,} rows, {blocks:,} block")
        assert tab.locator(".check.bad").count() == 0
        assert (
            f"reserved ({device.replay.reserved_bytes[entry_number + 1]:,} B)"
            in tab.locator("#space p").first.inner_text()
        )


BROWSED = [path for path in REAL_FILES if path.stem in ("oom_expandable_3gpus", "train_423M_ctx512", "forward_bf16")]


@pytest.mark.slow
@pytest.mark.skipif(not BROWSED, reason="the real recordings are not here")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("path", BROWSED, ids=lambda path: path.stem)
def test_any_moment_of_real_recordings(opened: Callable[..., Any], path: Path, width: int) -> None:
    replayed = replay_snapshot(load_snapshot(path, isolated=False))
    found = explain_replayed(replayed)
    shown = found.parts.index(found.worst)
    device = replayed.devices[shown]
    with opened([pages_of(replayed)[shown]], color_scheme="dark") as tab:
        tab.set_viewport_size({"width": width, "height": 900})
        last = len(device.state.trace) - 1
        # Of a long recording not every entry is kept: those that are, the page says.
        kept = kept_entries(tab, [last // 5, last // 2, last - 1])
        check_moments(tab, device, replayed.sites, kept)
        assert tab.evaluate("document.documentElement.scrollWidth") == width


def kept_entries(tab: Any, entries: list[int]) -> list[int]:
    found = []
    for one in entries:
        tab.evaluate(f"location.hash = '#t={one}'")
        # The address is put right where the page has another moment.
        shown = f"document.querySelector('.when').textContent.includes('after entry {one:,} of')"
        until(tab, f"location.hash !== '#t={one}' || {shown}")
        number = re.search(r"after entry ([\d,]+) of", tab.locator(".when").inner_text())
        assert number is not None
        found.append(int(number[1].replace(",", "")))
    assert len(set(found)) == len(entries)
    return found


def test_a_snapshot_says_why_it_ran_out_and_unfolds_its_stacks(opened: Callable[..., Any], tmp_path: Path) -> None:
    with opened(page_of(load(tmp_path / "s", out_of_memory()))) as tab:
        assert (
            tab.locator("h1")
            .inner_text()
            .startswith("Out of memory on device 0 at ~/model.py:7 (forward): 48.00 MiB were")
        )
        advice = tab.locator("#answer .lead").first
        assert "(~/model.py:7)" in advice.inner_text()
        # Once: below are the numbers.
        assert tab.locator("body").inner_text().count("44.00 MiB are still missing") == 1
        assert "48.00 MiB" in tab.locator("section.alarming").first.inner_text()
        assert tab.locator("nav a").all_inner_texts() == [
            "Timeline",
            "In use",
            "Out of memory",
            "Out of memory",
            "Segments",
            "The peak",
            "Reserved memory",
            "Growth",
            "Recording",
        ]
        assert tab.locator(".blocks thead:visible").inner_text().split() == [
            "Size",
            "Blocks",
            "Category",
            "Made",
            "Function",
            "Source",
        ]
        tab.locator(".blocks summary").first.click()
        # Unfolding is an event of its own, some time after the click; asking for one line waits for it.
        assert tab.locator(".blocks .two > .stack > ol > li").last.inner_text() == "main (~/train.py:70)"
        # Entry 2 makes 5 MiB at 20 of 60 us, and entry 3, the first failure, comes at 30 of 60.
        assert "5.00 MiB" in hover(tab, 0.4)
        assert "after entry 2 of 8" in tab.locator(".readout").inner_text()
        assert tab.locator(".check.bad").count() == 0
        tab.set_viewport_size({"width": 800, "height": 900})
        tab.reload()
        tab.wait_for_selector("html[data-drawn]")
        assert tab.evaluate("document.documentElement.scrollWidth") == 800


def test_a_snapshot_without_times_or_history_is_drawn(opened: Callable[..., Any], tmp_path: Path) -> None:
    trace = [entry("alloc", BASE + 512 * i, 100 * i, time_us=None) for i in range(5)]
    with opened(
        page_of(load(tmp_path / "s", snapshot(trace, [segment(BASE, 4096, [block(BASE + 2048, 400)])])))
    ) as tab:
        assert "after entry 4 of 4" in hover_end(tab)
    with opened(page_of(load(tmp_path / "s", [segment(BASE, 4096, [block(BASE, 400)])]))) as tab:
        assert tab.locator(".plot").count() == 0
        assert "400 B" in tab.locator("h1").inner_text()


def hover_end(tab: Any) -> str:
    tab.locator(".frame").focus()
    for _ in range(9):
        tab.keyboard.press("ArrowRight")
    return str(tab.locator(".readout").inner_text())


def test_code_is_shown_as_text_and_leaves_with_the_names(opened: Callable[..., Any]) -> None:
    code = f"x = 1  # {samples.SCRIPT} {samples.IMAGE}\n"
    (file,) = annotated_files(
        [LineMemory(SourceLine("/srv/net.py", 1), 9000, 0, 9000, "backward", None)], lambda file: code, 9000
    )
    page = replace(samples.small_page(), sources=(file,))
    with opened(page) as tab:
        assert samples.SCRIPT in tab.locator("#source code").first.inner_text()
        assert "8.79 KiB" in tab.locator("#source .has-bytes").inner_text()
