"""Kinds at the peaks of real recordings, against what their programs' sources say."""

from __future__ import annotations

import json

import pytest

from benchmarks.snapshot_kinds import MAX_WRONG, MIN_MEAN, MIN_RIGHT, MIN_WITHOUT_CPP, TRUTH, Verdict, find, judge, mean

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


def test_without_cpp_frames_no_more_than_a_third_is_lost(verdicts: dict[bool, list[Verdict]]) -> None:
    for bare, whole in zip(verdicts[True], verdicts[False], strict=True):
        assert bare.percent(bare.right) >= MIN_WITHOUT_CPP * whole.percent(whole.right), bare.name
        assert bare.percent(bare.wrong) < MAX_WRONG, bare.name
