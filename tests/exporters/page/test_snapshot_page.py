"""The page of an allocator snapshot as content; `test_snapshot_browser.py` opens it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.answers.test_snapshot_findings import BACKWARD, BASE, FORWARD, FREE_BACKWARD, MIB, load
from tests.exporters.snapshot_samples import out_of_memory
from tests.snapshot.dumps import Row, block, entry, frame, freed, segment, snapshot
from tracer.answers.allocator.allocator_finding import AllocatorFinding
from tracer.answers.allocator.reserved import Reserved
from tracer.answers.answer_of_snapshot import answer_of_device
from tracer.answers.paths import shorten_paths
from tracer.answers.snapshot_findings import ReplayedSnapshot, explain_replayed, replay_snapshot
from tracer.answers.tables import Place, Section
from tracer.answers.why.first_changes import FirstChange, FirstChanges
from tracer.blocks.from_snapshot.sites import Site
from tracer.exporters.page.data import page_data
from tracer.exporters.page.html import data_of_html
from tracer.exporters.page.model import Page
from tracer.exporters.page.snapshot_page import snapshot_page, write_snapshot_page
from tracer.snapshot.columns import Snapshot


def page_of(loaded: Snapshot, *, device: int | None = None, first: FirstChanges | None = None) -> Page:
    return page_of_replayed(replay_snapshot(loaded, device=device), first)


def page_of_replayed(replayed: ReplayedSnapshot, first: FirstChanges | None = None) -> Page:
    """The page of the worst device, of which only these changes are known from a replay."""
    finding = explain_replayed(replayed)
    tried = AllocatorFinding(None, (), None, Reserved(0, 0, ()), None, first)
    device = replace(finding.worst, allocator=tried)
    return snapshot_page(device, answer_of_device(device, notes=finding.notes), run={"file": "s.pickle"})


def sections_of(page: Page) -> list[Section]:
    """The sections that are not drawn."""
    return [section for section in page.answer.sections if not section.is_drawn]


def said_on(page: Page) -> list[str]:
    return page_data(page)["said"]


def page(path: Path, trace: list[Row], segments: list[Row] | None = None, **more: Any) -> Page:
    return page_of(load(path, snapshot(trace, segments, **more)))


def check_sums(shown: Page) -> None:
    peak_bytes = sum(shown.breakdown.values())
    if shown.series:
        total = np.sum(list(shown.series.values()), axis=0)
        assert total.max() == peak_bytes
        assert shown.peak_row is not None and total[shown.peak_row] == peak_bytes


def test_by_hand(tmp_path: Path) -> None:
    trace = [
        entry("alloc", BASE, 3 * MIB, time_us=10, frames=FORWARD),
        entry("alloc", BASE + 8 * MIB, MIB, time_us=14, frames=BACKWARD),
        *freed(BASE + 8 * MIB, MIB, time_us=15, frames=FREE_BACKWARD),
        *freed(BASE, 3 * MIB, time_us=16, frames=FREE_BACKWARD),
    ]
    shown = page(tmp_path / "s", trace, [segment(BASE, 16 * MIB, [block(BASE + 12 * MIB, 2 * MIB)])])
    check_sums(shown)
    assert sum(shown.breakdown.values()) == 6 * MIB
    # Lowest layer first; memory from before without a stack has a layer of its own.
    assert list(shown.series) == ["BEFORE_RECORDING", "TEMPORARY", "ACTIVATION"]
    assert [(line.name, int(line.values_bytes.max())) for line in shown.lines] == [
        ("allocated", 6 * MIB),
        ("reserved", 16 * MIB),
    ]
    assert [(mark.kind, mark.time, mark.bytes) for mark in shown.marks] == [("peak", 4000, 6 * MIB)]
    assert said_on(shown) == [
        "Peak of device 0: 6.00 MiB requested, 6.00 MiB allocated and 16.00 MiB reserved, after entry 1, 0.000 s after "
        "the first, in backward; 2.00 MiB are from before the recording."
    ]
    assert [section.title for section in sections_of(shown)] == [
        *("The peak", "Reserved memory", "Growth"),
    ]


def test_stacks_are_in_the_data_once_each(tmp_path: Path) -> None:
    trace = [
        entry("alloc", BASE, 3 * MIB, frames=FORWARD),
        entry("alloc", BASE + 8 * MIB, MIB, frames=[frame("deep", f"/d{i}.py", i) for i in range(50)]),
    ]
    blocks = [block(BASE, 3 * MIB), block(BASE + 8 * MIB, MIB)]
    found = page_data(page(tmp_path / "s", trace, [segment(BASE, 16 * MIB, blocks)]))["blocks"]
    assert found is not None
    frames, (first, second) = found["stacks"]["frames"], found["stacks"]["rows"]
    # What is no line of Python is what the text says of it.
    assert [frame for frame, is_python in zip(frames, found["stacks"]["python"], strict=True) if not is_python] == [
        "at::_ops::mul_Tensor::call(at::Tensor const&, at::Tensor const&)"
    ]
    assert [frames[number] for number in first][-2:] == ["forward (/home/me/model.py:7)", "main (/home/me/train.py:70)"]
    assert [frames[number] for number in second] == [f"deep (/d{i}.py:{i})" for i in range(40)]
    assert found["stacks"]["cut"] == [0, 10]
    assert len(set(frames)) == len(frames)


def test_out_of_memory_comes_first(tmp_path: Path) -> None:
    shown = page_of(load(tmp_path / "s", out_of_memory()))
    check_sums(shown)
    first, again, *others = sections_of(shown)
    assert first.is_alarming and first.title.startswith("Out of memory at forward  ~/model.py:7, entry 4")
    # Both failures are of one line. What was in use is the peak, which is shown already.
    assert first.sentences == ("The peak was at that moment: its tables show what was in use then.",)
    assert again.sentences == ("1 more failure, most at lines that had failed before; --json has all of them.",)
    assert shown.answer.is_alarming and shorten_paths(shown.answer.happened[0]) == (
        "Out of memory on device 0 at ~/model.py:7 (forward): 48.00 MiB were asked for with 5.00 MiB in use and "
        "8.00 MiB reserved of 9.00 MiB; with all that is free in one piece, 44.00 MiB are still missing. It is "
        "the last of 2 failed requests."
    )
    (request,) = first.tables
    assert {row[0]: row[2] for row in request.rows} == {
        "requested": 48 * MIB,
        "free on the device": MIB,
        "in use": 5 * MIB,
        "reserved": 8 * MIB,
        "reserved but unallocated": 3 * MIB,
        "largest free block": 2 * MIB,
        "free for this request": 3 * MIB,
    }
    assert not any(section.is_alarming for section in others)
    assert [mark.label for mark in shown.marks if mark.kind == "oom"] == [
        "out of memory, asked for 64.00 MiB at",
        "out of memory, asked for 48.00 MiB at",
    ]


def test_what_was_in_use_at_a_failure_below_the_peak_is_shown(tmp_path: Path) -> None:
    objects = out_of_memory()
    temporary = BASE + 5 * MIB
    larger = [entry("alloc", temporary, MIB, time_us=31, frames=FORWARD), *freed(temporary, MIB, time_us=32)]
    objects["device_traces"][0][3:3] = larger
    (section, *_) = sections_of(page_of(load(tmp_path / "s", objects)))
    _, in_use = section.tables
    assert (section.sentences, in_use.title) == ((), "What was in use then")
    assert sum(int(row[0]) for row in in_use.rows if isinstance(row[0], int)) == 5 * MIB


CHANGES = FirstChanges(
    (
        FirstChange("use a smaller batch", Site("forward", "/home/me/model.py", 7), 9, 4, 10, 5, num_served=1),
        FirstChange("empty the cache", None, 9, 9, 10, 8, num_served=1),
        FirstChange("free it sooner", Site("MmBackward0", None, None), 9, 8, 10, 9, num_served=1),
    ),
    num_failed=2,
)


def test_what_to_try_first_stands_with_the_failure(tmp_path: Path) -> None:
    loaded = load(tmp_path / "s", out_of_memory())
    tried = sections_of(page_of(loaded, first=CHANGES))[2]
    assert (tried.title, tried.is_alarming) == ("What to try first", True)
    (table,) = tried.tables
    assert [column.name for column in table.columns] == [
        *("allocated", "with it", "reserved", "with it"),
        *("requests that then fit", "change"),
    ]
    assert table.rows == (
        (9, 4, 10, 5, "1 of 2", Place("use a smaller batch (forward)", "/home/me/model.py", 7)),
        (9, 9, 10, 8, "1 of 2", Place("empty the cache")),
        (9, 8, 10, 9, "1 of 2", Place("free it sooner (MmBackward0  (no Python frame))")),
    )
    nothing = page_of(loaded, first=FirstChanges((), 2))
    assert "None that was tried in a replay serves the failed request" in " ".join(said_on(nothing))


def test_what_to_try_first_is_a_section_where_nothing_failed(tmp_path: Path) -> None:
    loaded = load(tmp_path / "s", snapshot([entry("alloc", BASE, MIB)], [segment(BASE, MIB, [block(BASE, MIB)])]))
    (section, *_) = sections_of(page_of(loaded, first=replace(CHANGES, num_failed=0)))
    assert (section.title, section.is_alarming) == ("What to try first", False)
    (tried,) = section.tables
    assert tried.columns[-2].name == "with it" and len(tried.rows) == 3
    assert sections_of(page_of(loaded, first=FirstChanges((), 0)))[0].sentences == (
        "None that was tried in a replay lowers the peak by 1 %.",
    )


def test_the_worst_device_is_shown_first(tmp_path: Path) -> None:
    """One that ran out of memory is worse than a larger one."""
    segments = [segment(BASE, MIB, [block(BASE, 512 * (device + 1))], device=device) for device in (0, 3, 1)]
    objects = out_of_memory()
    objects["segments"].append(segment(BASE, 64 * MIB, [block(BASE, 60 * MIB)], device=1))
    for each, device in ((segments, "device 3"), (objects, "device 0")):
        loaded = load(tmp_path / "s", each)
        assert page_of(loaded).device == device
        write_snapshot_page(explain_replayed(replay_snapshot(loaded)), tmp_path / "page.html", run={})
        data = data_of_html((tmp_path / "page.html").read_text("utf-8"))
        assert data["pages"][data["shown"]]["device"] == device and len(data["pages"]) == len(loaded.devices)
        assert page_of(loaded, device=1).device == "device 1"


def test_without_history_there_is_no_timeline_and_nothing_was_before_it(tmp_path: Path) -> None:
    shown = page_of(load(tmp_path / "s", [segment(BASE, MIB, [block(BASE, 700)])]))
    assert (len(shown.times), shown.series, shown.lines, shown.marks) == (1, {}, (), ())
    assert said_on(shown) == [
        "Peak of device 0: 700 B requested, 1.00 KiB allocated and 1.00 MiB reserved, as the snapshot was taken."
    ]
