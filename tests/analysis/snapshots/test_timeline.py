"""The curves of a snapshot: by hand, against the replay, and against the plain way to decide kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracer.analysis.snapshots.timeline
from tests.analysis.snapshots.test_findings import (
    BACKWARD,
    BASE,
    FORWARD,
    FREE_BACKWARD,
    FREE_FORWARD,
    IN_STEP,
    MAIN,
    ZERO,
    load,
)
from tests.histories import known_of
from tests.snapshot.dumps import REAL_FILES, Row, block, entry, freed, segment, snapshot
from tests.snapshot.explained import allocated_after
from tracer.analysis.kinds import LAYERS, Kind
from tracer.analysis.profiles.failed_allocation import last_seen
from tracer.analysis.snapshots.findings import ReplayedSnapshot, explain_replayed, replay_snapshot
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.analysis.snapshots.timeline import DeviceTimeline, device_timeline, forward_runs
from tracer.capture.objects.known_storages import Role
from tracer.exporters.page.snapshot_page import snapshot_page
from tracer.snapshot.load import load_snapshot


def timeline_of(replayed: ReplayedSnapshot, one: ReplayedDevice) -> DeviceTimeline:
    return device_timeline(one)


def timeline(path: Path, trace: list[Row], segments: list[Row] | None = None, **more: Any) -> DeviceTimeline:
    replayed = replay_snapshot(load(path, snapshot(trace, segments, **more)))
    (one,) = replayed.devices
    return timeline_of(replayed, one)


def check(replayed: ReplayedSnapshot) -> None:
    """Curves sum to what is in use at every entry, and kinds are those that the rows have one by one."""
    for one in replayed.devices:
        found = timeline_of(replayed, one)
        total = sum(found.levels.values(), np.zeros(len(found.times), np.int64))
        assert np.array_equal(total, one.replay.requested_bytes)
        assert all((level >= 0).all() for level in found.levels.values())
        entries = {-1, one.replay.peak_entry, len(one.state.trace) - 1}
        assert all(found.allocated_bytes[at + 1] == allocated_after(one.replay, at) for at in entries)
        assert (np.diff(found.times) >= 0).all()
        order = list(map(LAYERS.index, found.levels))
        assert order == sorted(order) and len(order) == len(
            set(one.kinds.of(np.arange(len(one.replay.lives))).tolist())
        )


@pytest.mark.parametrize("kind", last_seen(known_of(*((0, int(role), 8, role, "") for role in Role))).values())
def test_what_was_held_is_the_same_in_the_curves_the_peak_and_the_page(kind: Kind, tmp_path: Path) -> None:
    """A run whose first step has no memory left: 512 bytes from before, of which only the program knows what they are.

    Every role that a session observes has a kind and a category.
    """
    made = entry("alloc", BASE + 4096, 100, frames=FORWARD)
    pieces = [block(BASE, 512), block(BASE + 4096, 100)]
    objects = snapshot([made], [segment(piece["address"], piece["size"], [piece]) for piece in pieces])
    loaded = load(tmp_path / "snapshot.pkl", objects)
    replayed = replay_snapshot(loaded, held={BASE: kind, BASE + 4096: Kind.PARAMETER})
    check(replayed)
    (one,), finding = replayed.devices, explain_replayed(replayed)
    curves = {kind.words: level.tolist() for kind, level in timeline_of(replayed, one).levels.items()}
    assert curves == {kind.words: [512, 512], "not known": [0, 100]}  # what was made since lies elsewhere
    kinds = {group.kind.words: group.evidence for group in finding.devices[0].peak.groups}
    assert kinds[kind.words] == "address of a live, named tensor when the recording began"
    page = snapshot_page(replayed, finding, 0, timeline_of(replayed, one), run={})
    assert page.peak is not None
    in_page = {series.name: int(series.values_bytes[-1]) for series in page.series}
    assert in_page == page.peak.breakdown
    assert in_page == {kind.name: 512, "UNKNOWN": 100}


def test_by_hand(tmp_path: Path) -> None:
    # 300 bytes are there before. Forward makes 100, which backward frees after making and freeing 50.
    trace = [
        entry("alloc", BASE, 100, time_us=10, frames=FORWARD),
        entry("alloc", BASE + 512, 50, time_us=12, frames=BACKWARD),
        *freed(BASE + 512, 50, time_us=12, frames=FREE_BACKWARD),
        *freed(BASE, 100, time_us=15, frames=FREE_BACKWARD),
    ]
    found = timeline(tmp_path / "s", trace, [segment(BASE, 4096, [block(BASE + 1024, 300)])])
    assert found.axis == "time"
    # The start, then one row for each of the 6 entries; a free counts when it is completed.
    assert found.times.tolist() == [0, 0, 2000, 2000, 2000, 5000, 5000]
    assert {kind.words: level.tolist() for kind, level in found.levels.items()} == {
        "activation": [0, 100, 100, 100, 100, 100, 0],
        "temporary": [0, 0, 50, 50, 0, 0, 0],
        "before recording": [300] * 7,
    }
    assert found.allocated_bytes.tolist() == [512, 1024, 1536, 1536, 1024, 1024, 512]
    assert found.reserved_bytes.tolist() == [4096] * 7


def test_phases_are_runs_of_entries(tmp_path: Path) -> None:
    trace = [
        entry("alloc", BASE, 1, time_us=0, frames=FORWARD),
        entry("alloc", BASE + 512, 1, time_us=10, frames=BACKWARD),
        entry("alloc", BASE + 1024, 1, time_us=20, frames=IN_STEP),
        entry("alloc", BASE + 1536, 1, time_us=30, frames=FORWARD),
    ]
    path = tmp_path / "s"
    found = timeline(path, trace)
    assert [(one.kind, one.start, one.end) for one in found.stretches] == [
        ("backward", 10_000, 20_000),
        ("optimizer", 20_000, 30_000),
    ]
    (one,) = replay_snapshot(load(path, snapshot(trace))).devices
    assert [one.kinds.phase_at(entry) for entry in range(-1, 4)] == ["", "", "backward", "optimizer", ""]


@pytest.mark.parametrize(
    ("activations", "forward"),
    [
        # Two steps of backward and optimizer, and what the recording ends in.
        ([2, 3, 41, 44, 80, 99], [(2, 10), (41, 50), (80, 100)]),
        # What is made in backward, by checkpointing, is none; nor is what only an optimizer follows.
        ([12, 25, 55], []),
        ([0], [(0, 10)]),
        ([70], [(70, 100)]),
        ([], []),
    ],
)
def test_forward_is_what_leads_to_backward(activations: list[int], forward: list[tuple[int, int]]) -> None:
    backward, optimizer = (np.array([10, 50]), np.array([20, 60])), (np.array([30, 60]), np.array([40, 70]))
    starts, ends = forward_runs(np.array(activations, np.int64), backward, optimizer, end=100)
    assert [*zip(starts.tolist(), ends.tolist(), strict=True)] == forward


def test_more_stretches_than_can_be_drawn_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracer.analysis.snapshots.timeline, "MAX_STRETCHES", 2)
    trace = [
        entry("alloc", BASE + 512 * i, 1, time_us=i, frames=frames)
        for i, frames in enumerate([BACKWARD, IN_STEP, BACKWARD, FORWARD, BACKWARD])
    ]
    found = timeline(tmp_path / "s", trace)
    assert [one.kind for one in found.stretches] == ["optimizer"]
    assert found.left_out == ("backward",)


def test_regions_are_the_outermost_ones_and_end_with_the_recording(tmp_path: Path) -> None:
    def note(stage: str, name: str, time_us: int) -> Row:
        return {"stage": stage, "name": name, "device": 0, "time_us": time_us}

    notes = [
        note("START", "epoch", 5),
        note("START", "step 1", 6),
        note("END", "step 1", 7),
        note("END", "epoch", 12),
        note("START", "Optimizer.step#SGD.step", 13),
        note("END", "Optimizer.step#SGD.step", 14),
        note("START", "later", 90),
        note("END", "later", 95),
    ]
    trace = [entry("alloc", BASE + 512 * i, 1, time_us=10 + i, frames=FORWARD) for i in range(5)]
    found = timeline(tmp_path / "s", trace, external_annotations=notes)
    regions = [(one.name, one.start, one.end) for one in found.stretches if one.kind == "step"]
    assert regions == [("epoch", 0, 2000), ("later", 4000, 4000)]
    assert [one.start for one in found.stretches if one.kind == "optimizer"] == [3000]


@pytest.mark.parametrize("times", [(None, None), (0, 2**62)])
def test_without_times_that_can_be_drawn_the_entries_are_the_axis(
    tmp_path: Path, times: tuple[int | None, int | None]
) -> None:
    trace = [entry("alloc", BASE + 512 * i, 7, time_us=time_us) for i, time_us in enumerate(times)]
    found = timeline(tmp_path / "s", trace)
    assert (found.axis, found.times.tolist(), found.stretches) == ("entry", [-1, 0, 1], ())


def test_the_recordings_own_categories_decide(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, 100, frames=FORWARD) | {"category": "GRADIENT"}, entry("alloc", BASE + 512, 9)]
    found = timeline(tmp_path / "s", trace, [segment(BASE, 1024, [block(BASE, 100), block(BASE + 512, 9)])])
    assert {kind.words: level.tolist() for kind, level in found.levels.items()} == {
        "gradient": [0, 100, 100],
        "not known": [0, 0, 9],
    }


@pytest.mark.skipif(not REAL_FILES, reason="the real recordings are not here")
@pytest.mark.parametrize("path", REAL_FILES, ids=lambda path: path.stem)
def test_real_recordings(path: Path) -> None:
    check(replay_snapshot(load_snapshot(path, isolated=False)))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["alloc", "free", "oom", "segment_alloc", "segment_free"]),
            st.integers(0, 5),
            st.integers(0, 3000),
            st.sampled_from([FORWARD, BACKWARD, IN_STEP, FREE_BACKWARD, FREE_FORWARD, [ZERO, MAIN], []]),
            st.sampled_from([None, "ACTIVATION", "something else"]),
        ),
        max_size=40,
    )
)
def test_any_history(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, int, list[Row], str | None]]
) -> None:
    trace: list[Row] = []
    for action, slot, size, frames, category in rows:
        at = BASE + 4096 * slot
        made = entry(action, at, size, frames=frames) | ({"category": category} if category else {})
        trace += freed(at, size, frames=frames) if action == "free" else [made]
    check(replay_snapshot(load(tmp_path_factory.mktemp("any") / "s", snapshot(trace))))
