"""Kinds at the peaks of real recordings, against what their programs' sources say."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from benchmarks.snapshot_kinds import MAX_WRONG, MIN_MEAN, MIN_RIGHT, MIN_WITHOUT_CPP, TRUTH, Verdict, find, judge, mean
from tests.snapshot.cutting import cut
from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.snapshot.load import load_snapshot

pytestmark = pytest.mark.skipif(not TRUTH.is_file(), reason="the recordings and their truth are not here")


@pytest.fixture(scope="module")
def verdicts() -> dict[bool, list[Verdict]]:
    truths = json.loads(TRUTH.read_text("utf-8"))
    return {
        bare: [judge(find(name), truth, without_cpp=bare) for name, truth in truths.items()] for bare in (False, True)
    }


def test_three_quarters_are_right_and_next_to_nothing_is_wrong(verdicts: dict[bool, list[Verdict]]) -> None:
    assert mean(verdicts[False]) >= MIN_MEAN
    for one in verdicts[False]:
        assert one.percent(one.right) >= MIN_RIGHT and one.percent(one.wrong) < MAX_WRONG, one.name


@pytest.mark.parametrize(("percent", "min_named"), [(55, 0.4), (85, 0.9)])
def test_what_an_out_of_memory_in_backward_leaves_is_what_the_whole_says(percent: int, min_named: float) -> None:
    """Cut in its backward, at the moment of the cut: nothing of weight is another kind than in the whole."""
    snapshot = load_snapshot(find("train_full_step_50GiB.pickle"))
    (whole,) = replay_snapshot(snapshot).devices
    entry = len(whole.state.trace) * percent // 100
    (part,) = replay_snapshot(cut(snapshot, entry)).devices
    sizes: Counter[bool | None] = Counter()
    of_whole, of_part = (
        dict(zip(device.replay.lives.addr[rows].tolist(), device.kinds.of(rows).tolist(), strict=True))
        for device in (whole, part)
        for rows in [device.replay.lives.alive_after(entry - 1)]
    )
    rows = whole.replay.lives.alive_after(entry - 1)
    for address, size in zip(
        whole.replay.lives.addr[rows].tolist(), whole.replay.lives.requested_bytes[rows].tolist(), strict=True
    ):
        kind = of_part[address]
        sizes[None if kind in (Kind.UNKNOWN, Kind.BEFORE_RECORDING) else kind == of_whole[address]] += size
    total = sizes.total()
    assert sizes[False] < 0.005 * total and sizes[True] > min_named * total


def test_without_cpp_frames_no_more_than_a_third_is_lost(verdicts: dict[bool, list[Verdict]]) -> None:
    for bare, whole in zip(verdicts[True], verdicts[False], strict=True):
        assert bare.percent(bare.right) >= MIN_WITHOUT_CPP * whole.percent(whole.right), bare.name
        assert bare.percent(bare.wrong) < MAX_WRONG, bare.name
