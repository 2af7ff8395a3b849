"""Any moment of a recording: by hand, and as laws over recordings that the allocator's model makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.snapshots.test_findings import BASE, FORWARD, IN_STEP, MIB, load
from tests.snapshot.dumps import Row, block, entry, frame, freed, segment, snapshot
from tracer.analysis.kinds import Evidence, Kind
from tracer.analysis.snapshots.findings import ReplayedSnapshot, replay_snapshot
from tracer.analysis.snapshots.kind_finder import HeldNow, ReplayedDevice
from tracer.analysis.snapshots.timeline import (
    StepEnds,
    first_whole_step,
    outlived_groups,
    step_levels,
    steps_of_blocks,
)
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
    assert [column.tolist() for column in device.kinds.kinds_and_evidence(rows)] == [[kind], [evidence]]


def test_what_was_freed_meanwhile_is_not_what_lies_there_now(tmp_path: Path) -> None:
    """The address was another block's before: only the one in use at the end is what the program holds."""
    trace = [entry("alloc", BASE, K), *freed(BASE, K), entry("alloc", BASE, MIB, frames=USUAL)]
    loaded = load(tmp_path / "s", snapshot(trace, [segment(BASE, 64 * MIB, [block(BASE, MIB, frames=USUAL)])]))
    device = replay_snapshot(loaded, held_now={0: HeldNow({BASE: Kind.GRADIENT})}).devices[0]
    lives = device.replay.lives
    kinds = device.kinds.of(np.arange(len(lives))).tolist()
    assert dict(zip(lives.requested_bytes.tolist(), kinds, strict=True)) == {K: Kind.UNKNOWN, MIB: Kind.GRADIENT}
