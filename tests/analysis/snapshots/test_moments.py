"""Any moment of a recording: by hand, and as laws over recordings that the allocator's model makes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.allocator.recorded import Program
from tests.analysis.snapshots.test_findings import BASE, FORWARD, IN_STEP, MIB, load
from tests.snapshot.dumps import Row, block, entry, freed, segment, snapshot
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.analysis.snapshots.moments import (
    Moments,
    between,
    entries_between,
    entry_at,
    entry_words,
    held_at,
    last_before,
    step_levels,
)
from tracer.errors import SnapshotError, UsageError
from tracer.exporters.json_documents.snapshot import moments_values
from tracer.exporters.screen.snapshot import print_moments
from tracer.snapshot.load import snapshot_in_memory


def replayed(path: Path, trace: list[Row], blocks: list[Row] | None = None) -> ReplayedDevice:
    (device,) = replay_snapshot(load(path, snapshot(trace, [segment(BASE, 64 * MIB, blocks or [])]))).devices
    return device


def five(path: Path) -> ReplayedDevice:
    """A (1 byte) at entry 0, B (2) at 1, A freed at 3, C (4) at 4; out of memory at 5. Times 10, 20, ... us."""
    trace = [
        entry("alloc", BASE, 1, time_us=10, frames=FORWARD),
        entry("alloc", BASE + 512, 2, time_us=20),
        *freed(BASE, 1, time_us=30),
        entry("alloc", BASE + 1024, 4, time_us=50),
        {"action": "oom", "size": 9, "device_free": 0, "stream": 0, "time_us": 60, "frames": []},
    ]
    return replayed(path, trace, [block(BASE + 512, 2), block(BASE + 1024, 4)])


@pytest.mark.parametrize(
    ("moment", "found"),
    [
        ("start", -1), ("end", 5), ("oom", 5), ("peak", 5), ("0", 0), ("4", 4), ("20us", 1), ("29us", 1), ("9us", -1),
        ("30us", 3), ("0s", 0), ("0.00002s", 3), ("0.001s", 5),
    ],
)  # fmt: skip
def test_how_a_person_names_a_moment(tmp_path: Path, moment: str, found: int) -> None:
    device = five(tmp_path / "s")
    assert entry_at(device, moment) == found


@pytest.mark.parametrize("moment", ["6", "1s", "99999s", "9000us", "now", "-1", "1.5", "1.5us", "", "9" * 20])
def test_what_is_no_moment_is_one_sentence(tmp_path: Path, moment: str) -> None:
    device = five(tmp_path / "s")
    with pytest.raises((SnapshotError, UsageError)) as caught:
        entry_at(device, moment)
    assert caught.value.hint


def test_moments_that_a_recording_lacks(tmp_path: Path) -> None:
    device = replayed(tmp_path / "s", [entry("alloc", BASE, 1, time_us=None)])
    for moment in ("oom", "10us", "1s"):
        with pytest.raises(SnapshotError):
            entry_at(device, moment)


def test_what_was_in_use_at_a_moment(tmp_path: Path) -> None:
    device = five(tmp_path / "s")
    held = held_at(device, 1)
    assert (held.requested_bytes, held.time_us, [group.bytes for group in held.groups]) == (3, 20, [2, 1])
    assert held_at(device, -1).groups == ()


def test_what_came_and_what_went(tmp_path: Path) -> None:
    device = five(tmp_path / "s")
    change = between(device, 0, 4)
    assert [group.bytes for group in change.came] == [6]  # both without a stack
    assert [(group.bytes, group.site.frame) for group in change.went] == [(1, "forward")]
    assert change == between(device, 4, 0)


def test_the_last_allocations_before_it_ran_out(tmp_path: Path) -> None:
    device = five(tmp_path / "s")
    assert (last_before(device, 5, 4).bytes, last_before(device, 5, 4).first_entry) == (4, 4)
    assert (last_before(device, 5, 5).bytes, last_before(device, 5, 5).first_entry) == (6, 1)
    assert last_before(device, 5, 1 << 40).bytes == 6


def test_steps_and_what_they_leave(tmp_path: Path) -> None:
    # Two steps, each of which leaves 10 bytes more; a peak of 100 in between.
    first = entry("alloc", BASE, 10, frames=IN_STEP)
    passing = [entry("alloc", BASE + 512, 100, frames=FORWARD), *freed(BASE + 512, 100, frames=FORWARD[1:])]
    second = entry("alloc", BASE + 1024, 10, frames=IN_STEP)
    last = entry("alloc", BASE + 2048, 1, frames=FORWARD)
    blocks = [block(BASE, 10), block(BASE + 1024, 10), block(BASE + 2048, 1)]
    device = replayed(tmp_path / "s", [first, *passing, second, last], blocks)
    assert [(step.entry, step.end_bytes, step.peak_bytes) for step in step_levels(device)] == [
        (1, 10, 10),
        (5, 20, 110),
    ]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_laws_on_any_program(seed: int, data: st.DataObject) -> None:
    found = replay_snapshot(snapshot_in_memory(Program(seed).run(120).snapshot()))
    for device in found.devices:
        last = len(device.state.trace) - 1
        first, second = sorted(data.draw(st.integers(-1, last)) for _ in range(2))
        held = held_at(device, first)
        assert sum(group.bytes for group in held.groups) == held.requested_bytes
        change = between(device, first, second)
        came, went = (sum(group.bytes for group in side) for side in (change.came, change.went))
        assert came - went == change.last_bytes - change.first_bytes
        wanted = data.draw(st.integers(1, 1 << 28))
        latest = last_before(device, second, wanted)
        in_use = int(device.replay.requested_bytes[second + 1])
        assert min(wanted, in_use) <= latest.bytes <= in_use
        assert sum(group.bytes for group in latest.groups) == latest.bytes
        moments = Moments(device.state.device, (held,), change, latest, step_levels(device))
        json.dumps(moments_values(moments))
        print_moments(moments, Console(file=io.StringIO()), top=2)


def test_moments_in_the_wrong_order_are_said(tmp_path: Path) -> None:
    device = five(tmp_path / "s")
    assert entries_between(device, ("start", "peak")) == (-1, 5)
    with pytest.raises(SnapshotError, match="peak is later than start") as caught:
        entries_between(device, ("peak", "start"))
    assert caught.value.hint == "Write --between start peak."
    assert [entry_words(-1), entry_words(4000)] == ["the start of the recording", "after entry 4,000"]
