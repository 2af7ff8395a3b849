"""What was in use at any moment: the page's data, added up as the page does, against the recordings themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.answers.test_snapshot_findings import load
from tests.exporters.page.page_samples import blocks_of, empty_page, html_of, peak_row, small_page
from tests.exporters.page.test_snapshot_page import check_sums, page_of_replayed
from tests.exporters.snapshot_samples import out_of_memory
from tests.snapshot.dumps import each_real_file
from tests.snapshot.explained import real_replayed
from tests.training_steps import Recorded
from tracer.answers.answer import Answer
from tracer.answers.recording_findings import combine_cycles
from tracer.answers.rows import rows_of_lines
from tracer.answers.snapshot_findings import ReplayedSnapshot, replay_snapshot
from tracer.arrays import Ints
from tracer.exporters.page.blocks import KeptBlocks, keep_blocks, unpacked
from tracer.exporters.page.data import page_data
from tracer.exporters.page.model import Page, without_times
from tracer.exporters.page.timeline_page import timeline_page


def sums_in(data: dict[str, Any], position: int) -> tuple[Ints, Ints]:
    """Bytes and count of each group at a kept row, as `moments.js` adds them up."""
    found = data["blocks"]
    assert found is not None
    first, lasting, size, group = unpacked(found["blocks"])
    at, of_change, grown, more = unpacked(found["changes"])
    alive = (first <= position) & (first + lasting > position)
    bytes_, count = (np.zeros(found["groups"]["rows"], np.int64) for _ in range(2))
    np.add.at(bytes_, group[alive], size[alive])
    np.add.at(count, group[alive], 1)
    np.add.at(bytes_, of_change[at <= position], grown[at <= position])
    np.add.at(count, of_change[at <= position], more[at <= position])
    return bytes_, count


def kept_rows(data: dict[str, Any]) -> Ints:
    return np.asarray(unpacked(data["timeline"]["stack"])[0], np.int64)


def some(rows: Ints, many: int = 25) -> list[int]:
    """Positions over the whole recording, the first and the last among them."""
    return np.unique(np.linspace(0, len(rows) - 1, many).astype(int)).tolist()


@pytest.mark.parametrize("workload", ["fno_2d_new_zeros", "convnet"])
def test_at_any_moment_of_a_run_the_rows_sum_to_the_allocators_count(
    workload: str, recorded: Callable[[str], Recorded]
) -> None:
    cycle = recorded(workload).cycles[0]
    page = timeline_page(combine_cycles([cycle]), run={})
    data = page_data(page)
    rows = kept_rows(data)
    assert data["timeline"]["counted"] is not None
    (counted,) = unpacked(data["timeline"]["counted"])
    assert data["peak"] is not None and data["peak"]["row"] is not None
    for position in [*some(rows), data["peak"]["row"]]:
        bytes_, count = sums_in(data, position)
        row = int(rows[position])
        alive = cycle.source.lifetimes.alive_at(row)
        assert bytes_.sum() == counted[position] == cycle.source.lifetimes.allocator_bytes[row]
        assert (bytes_.sum(), count.sum()) == (cycle.source.lifetimes.size_bytes[alive].sum(), len(alive))
    assert sums_in(data, data["peak"]["row"])[0].sum() == cycle.peak.peak_bytes


def test_at_any_moment_of_a_snapshot_the_rows_are_those_of_the_command(tmp_path: Path) -> None:
    check_snapshot(replay_snapshot(load(tmp_path / "s", out_of_memory())))


def check_snapshot(replayed: ReplayedSnapshot) -> None:
    page = page_of_replayed(replayed)
    check_sums(page)
    assert len(html_of([page])) < 3_000_000
    data = page_data(page)
    assert bool(page.series) == bool(page.lines)
    one = next(each for each in replayed.devices if f"device {each.state.device}" == page.device)
    rows = kept_rows(data)
    assert data["timeline"]["counted"] is not None
    (counted,) = unpacked(data["timeline"]["counted"])
    for position in some(rows, 6):
        entry = int(rows[position]) - 1
        groups = rows_of_lines(one.blocks.take(one.replay.lives.alive_after(entry)))
        bytes_, count = sums_in(data, position)
        assert bytes_.sum() == counted[position] == one.replay.requested_bytes[entry + 1]
        assert sorted(bytes_[count > 0].tolist()) == sorted(group.bytes for group in groups)


@each_real_file
def test_at_any_moment_of_real_recordings(path: Path) -> None:
    check_snapshot(real_replayed(path))


def test_groups_say_what_their_rows_say() -> None:
    rows = (
        peak_row(10, shape=(2, 3), dtype="float32", caller_file="/a.py", caller_line=4),
        peak_row(5, module=None, op=None, file=None, line=None, name="weight", shape=()),
    )
    times = np.arange(2, dtype=np.int64)
    blocks = blocks_of(np.array([10, 5]), np.array([0, 0]), np.array([2, 2]))
    page = Page(
        "x",
        "cpu",
        Answer(("Peak: so much.",)),
        times=times,
        series={"s": times * 0 + 15},
        blocks=blocks,
        groups=rows,
        group=np.array([0, 1]),
        breakdown={"s": 15},
        peak_row=0,
    )
    data = page_data(page)
    found = data["blocks"]
    assert found is not None
    texts = [None, *found["texts"]]
    first, second = unpacked(found["groups"]).T.tolist()
    assert [texts[number] for number in first[:12]] == [
        "activation", "activation", "torch's data flow", "forward", "net.0", "aten::mm", None,
        "/srv/project/models/net.py", None, "/a.py", "float32", "2 x 3",
    ]  # fmt: skip
    assert first[12:] == [7, 4]
    assert [texts[number] for number in second[4:9]] == [None, None, None, None, "weight"]
    assert (texts[second[11]], second[12:]) == ("scalar", [0, 0])


# ---------------------------------------------------------------------------------------------------------- kept blocks
NUM_ROWS = 12


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


@pytest.mark.parametrize(("most", "limit"), [(0, 512), (1, 512), (2, 256), (4, 2), (5, 0), (9, 0)])
def test_the_limit_is_the_least_power_of_two_that_is_enough(most: int, limit: int) -> None:
    sizes = ints(1, 100, 200, 300, 511)
    kept = keep_blocks(
        ints(0), made_at=sizes * 0, freed_at=sizes * 0 + 1, size_bytes=sizes, group=sizes * 0, most_blocks=most
    )
    assert kept.smaller_than_bytes == limit
    assert len(kept.block) == int((sizes >= limit).sum()) <= most


BLOCK = st.tuples(
    st.integers(-1, NUM_ROWS - 1), st.integers(0, NUM_ROWS), st.sampled_from([0, 1, 8, 300, 4096]), st.integers(0, 3)
)


@given(st.lists(BLOCK, max_size=25), st.sets(st.integers(0, NUM_ROWS - 1), min_size=1), st.integers(0, 12))
def test_at_every_kept_row_each_group_has_what_its_blocks_have(
    blocks: list[tuple[int, int, int, int]], rows: set[int], most: int
) -> None:
    made, life, size, group = (
        (np.array(column, np.int64) for column in zip(*blocks, strict=True)) if blocks else [ints()] * 4
    )
    freed = np.minimum(np.maximum(made, 0) + life, NUM_ROWS)
    kept_rows = np.array(sorted(rows), np.int64)
    kept = keep_blocks(kept_rows, made_at=made, freed_at=freed, size_bytes=size, group=group, most_blocks=most)
    assert len(kept.block) <= most or kept.smaller_than_bytes == 0
    for position, row in enumerate(kept_rows.tolist()):
        alive = (made <= row) & (freed > row)
        for one in range(4):
            mine = alive & (group == one)
            assert held(kept, position, one, size, group) == (int(size[mine].sum()), int(mine.sum()))


def held(kept: KeptBlocks, position: int, group: int, size: Ints, of_block: Ints) -> tuple[int, int]:
    """Bytes and count of one group, as the page adds them up."""
    large = (kept.first <= position) & (kept.last > position) & (of_block[kept.block] == group)
    small = (kept.change_at <= position) & (kept.change_group == group)
    bytes_ = size[kept.block[large]].sum() + kept.change_bytes[small].sum()
    return int(bytes_), int(large.sum() + kept.change_count[small].sum())


# -------------------------------------------------------------------------------------------------------------- untimed
def test_everything_stands_at_its_position() -> None:
    page = without_times(small_page())
    assert page.axis == "entry" and page.times.tolist() == [0, 1, 2, 3, 4, 5]
    assert [mark.time for mark in page.marks] == [3, 2]
    assert [(band.name, band.start, band.end) for band in page.bands] == [
        ("ProfilerStep#4", 0, 5),
        ("forward", 0, 3),
        ("backward", 3, 5),
    ]


def test_two_runs_of_another_speed_are_the_same_page() -> None:
    fast = small_page()
    origin = int(fast.times[0])
    slow = replace(
        fast,
        times=origin + 3 * (fast.times - origin),
        marks=tuple(replace(mark, time=origin + 3 * (mark.time - origin)) for mark in fast.marks),
        bands=tuple(
            replace(band, start=origin + 3 * (band.start - origin), end=origin + 3 * (band.end - origin))
            for band in fast.bands
        ),
    )
    one, other = (json.dumps(page_data(without_times(page))) for page in (fast, slow))
    assert one == other and str(origin)[:6] not in one


def test_of_events_that_tie_the_row_decides_where_it_is_known() -> None:
    page = small_page()
    tied = replace(page, times=np.zeros(6, np.int64), marks=tuple(replace(mark, time=0, row=4) for mark in page.marks))
    assert [mark.time for mark in without_times(tied).marks] == [4, 4]


def test_nothing_is_a_page_too() -> None:
    assert without_times(empty_page()).axis == "entry"
