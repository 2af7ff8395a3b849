"""What was in use at any moment: the page's data, added up as the page does, against the recordings themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.snapshots.test_findings import load
from tests.exporters.page.page_samples import peak_row
from tests.exporters.page.test_snapshot_page import page_of
from tests.exporters.snapshot_samples import out_of_memory
from tests.snapshot.dumps import REAL_FILES
from tests.training_steps import Recorded
from tracer.analysis.profiles.findings import put_together
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.moments import held_at
from tracer.arrays import Ints
from tracer.exporters.page.blocks import unpacked
from tracer.exporters.page.data import page_data
from tracer.exporters.page.model import Page, PageBlocks, PagePeak, Series
from tracer.exporters.page.timeline_page import timeline_page
from tracer.snapshot.load import load_snapshot


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
    page = timeline_page(put_together([cycle]), run={})
    data = page_data(page)
    rows = kept_rows(data)
    assert data["timeline"]["counted"] is not None
    (counted,) = unpacked(data["timeline"]["counted"])
    assert data["peak"] is not None and data["peak"]["row"] is not None
    for position in [*some(rows), data["peak"]["row"]]:
        bytes_, count = sums_in(data, position)
        row = int(rows[position])
        alive = cycle.lifetimes.alive_at(row)
        assert bytes_.sum() == counted[position] == cycle.lifetimes.allocator_bytes[row]
        assert (bytes_.sum(), count.sum()) == (cycle.lifetimes.size_bytes[alive].sum(), len(alive))
    assert sums_in(data, data["peak"]["row"])[0].sum() == cycle.peak.peak_bytes


def test_at_any_moment_of_a_snapshot_the_rows_are_those_of_the_command(tmp_path: Path) -> None:
    check_snapshot(tmp_path / "s", out_of_memory())


def check_snapshot(path: Path, objects: object | None = None) -> None:
    loaded = load(path, objects) if objects is not None else load_snapshot(path, isolated=False)
    page = page_of(loaded)
    data = page_data(page)
    if not len(page.times):
        assert data["blocks"] is None
        return
    replayed = replay_snapshot(loaded)
    one = next(each for each in replayed.devices if f"device {each.state.device}" == page.device)
    rows = kept_rows(data)
    assert data["timeline"]["counted"] is not None
    (counted,) = unpacked(data["timeline"]["counted"])
    for position in some(rows, 6):
        held = held_at(one, int(rows[position]) - 1)
        bytes_, count = sums_in(data, position)
        assert bytes_.sum() == counted[position] == held.requested_bytes
        assert sorted(bytes_[count > 0].tolist()) == sorted(group.bytes for group in held.groups)


@pytest.mark.skipif(not REAL_FILES, reason="the real recordings are not here")
@pytest.mark.parametrize("path", REAL_FILES, ids=lambda path: path.stem)
def test_at_any_moment_of_real_recordings(path: Path) -> None:
    check_snapshot(path)


def test_groups_say_what_their_rows_say() -> None:
    rows = (
        peak_row(10, shape=(2, 3), dtype="float32", caller_file="/a.py", caller_line=4),
        peak_row(5, module=None, op=None, file=None, line=None, name="weight", shape=()),
    )
    times = np.arange(2, dtype=np.int64)
    blocks = PageBlocks(rows, np.array([0, 1]), np.array([10, 5]), np.array([0, 0]), np.array([2, 2]))
    page = Page(
        "x",
        "cpu",
        times=times,
        series=(Series("s", times * 0 + 15),),
        blocks=blocks,
        peak=PagePeak(15, row=0, rows=rows),
    )
    data = page_data(page)
    found = data["blocks"]
    assert found is not None
    texts = [None, *found["texts"]]
    first, second = unpacked(found["groups"]).T.tolist()
    assert [texts[number] for number in first[:12]] == [
        "activation", "activation", "torch's data flow", "forward", "net.0", "aten::mm",
        "/srv/project/models/net.py", None, "/a.py", None, "float32", "2 x 3",
    ]  # fmt: skip
    assert first[12:] == [7, 4]
    assert [texts[number] for number in second[4:8]] == [None, None, None, "weight"]
    assert (texts[second[11]], second[12:]) == ("scalar", [0, 0])
    # The rows come from the blocks, and are not sent twice.
    assert data["peak"] is not None and data["peak"]["rows"] == []


def test_columns_of_different_lengths_are_refused() -> None:
    none = np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="different lengths"):
        PageBlocks((), np.zeros(1, np.int64), none, none, none)
    with pytest.raises(ValueError, match="stacks"):
        PageBlocks((), none, none, none, none, stacks=((),))
