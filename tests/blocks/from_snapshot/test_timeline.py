"""Curves, phases and steps of a device, and what outlives its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracer.blocks.from_snapshot.timeline
from tests.answers.test_snapshot_findings import (
    BACKWARD,
    BASE,
    FORWARD,
    FREE_BACKWARD,
    FREE_FORWARD,
    IN_STEP,
    MAIN,
    MIB,
    ZERO,
    load,
)
from tests.histories import known_of
from tests.snapshot.dumps import Row, block, each_real_file, entry, frame, freed, segment, snapshot
from tests.snapshot.explained import allocated_after, real_replayed
from tracer.answers.failed_allocation import last_seen
from tracer.answers.snapshot_findings import ReplayedSnapshot, explain_replayed, replay_snapshot
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.kind_finder import HeldNow
from tracer.blocks.from_snapshot.timeline import (
    DeviceTimeline,
    StepEnds,
    device_timeline,
    first_whole_step,
    forward_runs,
    outlived_groups,
    step_levels,
    steps_of_blocks,
)
from tracer.blocks.kinds import Evidence, Kind
from tracer.capture.objects.known_storages import Role
from tracer.exporters.page.snapshot_page import snapshot_page
from tracer.snapshot.load import snapshot_in_memory


# ---- The curves of a snapshot: by hand, against the replay, and against the plain way to decide kinds.
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
        order = list(map([*Kind].index, found.levels))
        assert order == sorted(order) and {*found.levels} <= {*one.blocks.kind.tolist()}


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
    kinds = {group.kind.words: group.evidence for group in finding.parts[0].peak.rows}
    assert kinds[kind.words] == "address of a live, named tensor when the recording began"
    page = snapshot_page(finding.parts[0], run={})
    in_page = {name: int(values[-1]) for name, values in page.series.items()}
    assert in_page == page.breakdown
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
    monkeypatch.setattr(tracer.blocks.from_snapshot.timeline, "MAX_STRETCHES", 2)
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


@each_real_file
def test_real_recordings(path: Path) -> None:
    check(real_replayed(path))


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


# ---- Any moment of a recording: by hand, and as laws over recordings that the allocator's model makes.
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


LEAK, USUAL = [frame("remember", "/home/me/train.py", 7)], [frame("forward", "/home/me/train.py", 20)]
K = 1 << 10


def ends(pairs: list[tuple[int, int]], now: int) -> StepEnds:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return StepEnds(table[:, 0], table[:, 1], now)


def run(path: Path, held_now: HeldNow | None = None) -> ReplayedSnapshot:
    """Steps of two requests: one is freed, one is kept. The ring has lost the first two of five steps.

    Requests 1 to 10 were served in steps 1 to 5, and an eleventh in the sixth, which has not ended. The ring has those
    from the fifth on: steps 3 to 5 and what came of the sixth.
    """
    kept = {step: BASE + 64 * K * step for step in range(1, 6)}
    trace: list[Row] = []
    for step in (3, 4, 5):
        other = BASE + 8 * MIB
        trace += [entry("alloc", kept[step], 4 * K, frames=LEAK), entry("alloc", other, 2 * K, frames=USUAL)]
        trace += freed(other, 2 * K)
    trace.append(entry("alloc", BASE + 9 * MIB, 512, frames=USUAL))
    blocks = [block(address, 4 * K, frames=LEAK) for address in kept.values()]
    blocks.append(block(BASE + 9 * MIB, 512, frames=USUAL))
    loaded = load(path, snapshot(trace, [segment(BASE, 64 * MIB, blocks)]))
    return replay_snapshot(loaded, held_now={0: held_now} if held_now is not None else None)


FIVE = [(1, 2), (2, 4), (3, 6), (4, 8), (5, 10)]


def test_what_a_line_leaves_behind_in_each_step(tmp_path: Path) -> None:
    """Of 5 kept blocks that of step 5, the last whole one, may still be needed; steps 3 and 4 are judged."""
    found = run(tmp_path / "s")
    (group,) = outlived_groups(found.devices[0], ends(FIVE, 11))
    assert (group.site.frame, group.site.line, group.kind.words) == ("remember", 7, "not known")
    assert (group.count, group.bytes, group.bytes_per_step) == (4, 16 * K, 4 * K)
    assert group.addresses == tuple(BASE + 64 * K * step for step in range(1, 5))


def test_the_step_of_each_block(tmp_path: Path) -> None:
    device = run(tmp_path / "s").devices[0]
    steps = steps_of_blocks(device, ends(FIVE, 11))
    of = dict(zip(device.replay.lives.addr.tolist(), steps.tolist(), strict=True))
    assert [of[BASE + 64 * K * step] for step in range(1, 6)] == [0, 0, 3, 4, 5]
    assert of[BASE + 9 * MIB] == 6
    assert first_whole_step(device, ends(FIVE, 11)) == 3


def test_what_is_of_a_kind_that_stays_is_not_among_them(tmp_path: Path) -> None:
    kept = {BASE + 64 * K * step: Kind.OPTIMIZER_STATE for step in range(1, 6)}
    found = run(tmp_path / "s", HeldNow(kept))
    assert outlived_groups(found.devices[0], ends(FIVE, 11)) == ()


def test_the_same_number_in_every_step_is_no_growth(tmp_path: Path) -> None:
    """All that is kept was made in one step of those that are judged: a batch that is drawn anew now and then."""
    blocks = [block(BASE, MIB, frames=LEAK), block(BASE + 2 * MIB, MIB, frames=LEAK)]
    trace = [entry("alloc", BASE, MIB, frames=LEAK), entry("alloc", BASE + 2 * MIB, MIB, frames=LEAK)]
    trace += [entry("alloc", BASE + 4 * MIB, 512), *freed(BASE + 4 * MIB, 512)] * 3
    found = replay_snapshot(load(tmp_path / "s", snapshot(trace, [segment(BASE, 64 * MIB, blocks)])))
    (group,) = outlived_groups(found.devices[0], ends([(1, 2), (2, 3), (3, 4), (4, 5)], 5))
    assert (group.bytes, group.bytes_per_step) == (2 * MIB, 0)


def test_before_the_first_step_has_ended_nothing_is_old(tmp_path: Path) -> None:
    found = run(tmp_path / "s")
    assert outlived_groups(found.devices[0], ends([], 11)) == ()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=60), st.integers(0, 20))
def test_steps_agree_with_a_plain_loop(requests: list[tuple[bool, int]], lost: int) -> None:
    """Requests that are kept or freed, steps that end between them, and a ring that has lost some of the first."""
    trace: list[Row] = []
    blocks: list[Row] = []
    made: dict[int, int] = {}
    pairs: list[tuple[int, int]] = []
    step = 0
    for number, (is_kept, ended) in enumerate(requests):
        address = BASE + number * K
        if number >= lost:
            trace.append(entry("alloc", address, 512, frames=LEAK))
            trace += [] if is_kept else freed(address, 512)
        if is_kept:
            blocks.append(block(address, 512, frames=LEAK))
            made[address] = step + 1 if number >= lost else 0
        for _ in range(ended):
            step += 1
            pairs.append((step, number + 1))
    if not blocks or not pairs:
        return
    loaded = snapshot_in_memory(snapshot(trace, [segment(BASE, MIB, blocks)]))
    device = replay_snapshot(loaded).devices[0]
    found = steps_of_blocks(device, ends(pairs, len(requests)))
    lives = device.replay.lives
    at_end = np.flatnonzero(lives.end == len(device.state.trace))
    assert dict(zip(lives.addr[at_end].tolist(), found[at_end].tolist(), strict=True)) == made


# ---- what the program holds at that moment ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "kind", "evidence"),
    [
        (HeldNow({BASE: Kind.GRADIENT}, {BASE}, {BASE}), Kind.GRADIENT, Evidence.HELD_OBJECT),
        (HeldNow({}, {BASE}, {BASE}), Kind.ACTIVATION, Evidence.KEPT_BY_GRAPH),
        (HeldNow({}, frozenset(), {BASE}), Kind.HELD, Evidence.REACHED),
        (HeldNow({BASE + 1: Kind.GRADIENT}), Kind.UNKNOWN, Evidence.UNPROVED),
    ],
)
def test_what_the_program_holds_when_the_snapshot_is_taken(
    tmp_path: Path, held: HeldNow, kind: Kind, evidence: Evidence
) -> None:
    trace = [entry("alloc", BASE, MIB, frames=USUAL)]
    loaded = load(tmp_path / "s", snapshot(trace, [segment(BASE, 64 * MIB, [block(BASE, MIB, frames=USUAL)])]))
    device = replay_snapshot(loaded, held_now={0: held}).devices[0]
    rows = np.array([0])
    assert [column[rows].tolist() for column in device.kinds.kinds_and_evidence] == [[kind], [evidence]]


def test_what_was_freed_meanwhile_is_not_what_lies_there_now(tmp_path: Path) -> None:
    """The address was another block's before: only the one in use at the end is what the program holds."""
    trace = [entry("alloc", BASE, K), *freed(BASE, K), entry("alloc", BASE, MIB, frames=USUAL)]
    loaded = load(tmp_path / "s", snapshot(trace, [segment(BASE, 64 * MIB, [block(BASE, MIB, frames=USUAL)])]))
    device = replay_snapshot(loaded, held_now={0: HeldNow({BASE: Kind.GRADIENT})}).devices[0]
    lives = device.replay.lives
    kinds = device.blocks.kind.tolist()
    assert dict(zip(lives.requested_bytes.tolist(), kinds, strict=True)) == {K: Kind.UNKNOWN, MIB: Kind.GRADIENT}
