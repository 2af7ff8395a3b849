"""Steps that asked for the same, and steps that each leave more, over made-up counters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tracer.sessions.trials import step_requests
from tracer.sessions.trials.step_requests import StepRequests


def counted(monkeypatch: pytest.MonkeyPatch, in_use: Sequence[int], *, totals: int = 7) -> StepRequests:
    """After steps that each asked for `totals` more, with a peak 10 above what was left in use."""
    steps = StepRequests()
    for number, left in enumerate(in_use):
        values = {
            step_requests._TOTALS: (totals * number,),
            step_requests._PEAKS: (max(in_use[: number + 1]) + 10,),
            step_requests._IN_USE: (left // 2, left - left // 2),  # of two devices
        }
        monkeypatch.setattr(step_requests, "_counted", values.__getitem__)
        steps.next()
    return steps


@pytest.mark.parametrize(
    ("in_use", "growth"),
    [
        ([5, 5, 5, 5, 5, 5, 5], 0),
        ([9, 10, 20, 30, 40, 50, 60], 10),
        ([90, 10, 20, 30, 40, 50, 60], 10),  # the last five count
        ([10, 20, 30, 40, 50], 0),  # four are too few
        ([10, 20, 30, 30, 40, 50, 60], 0),
        ([10, 20, 32, 41, 55, 66], 11),
        ([10, 20, 30, 40, 50, 500], 0),  # one step has made something that lasts
    ],
)
def test_memory_grows_where_each_step_leaves_about_as_much_more(
    in_use: list[int], growth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = counted(monkeypatch, in_use)
    assert (steps.growth_bytes, steps.num_steps) == (growth, len(in_use))
