"""Which steps are recorded, and who decides: schedule, other profilers, cost, and a first step that may be alone."""

from __future__ import annotations

import pytest

from tracer.sessions.schedule import Schedule
from tracer.sessions.stages import TRANSITIONS, Stage, Stages

PLAN = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=2, num_repeats=2)


def stages_of(stages: Stages, *, records_first: bool = True) -> str:
    """The first letter of the stage of each step, as a program makes them."""
    letters = ""
    for step in range(12):
        letters += stages.of_step(step, records_first=lambda: records_first).name[0]
        stages.num_steps += 1
    return letters


@pytest.mark.parametrize(
    ("num_waited", "may_have_one_step", "records_first", "letters"),
    [
        (0, False, True, "WWRRWWRRWDDD"),
        (2, False, True, "WWWWRRWWRRWD"),  # another profiler was at work in the first two
        (0, True, True, "FWRRWWRRWDDD"),
        (0, True, False, "WWRRWWRRWDDD"),  # such as with DTensor
        (1, True, True, "WWWRRWWRRWDD"),
    ],
)
def test_the_stage_of_each_step(num_waited: int, may_have_one_step: bool, records_first: bool, letters: str) -> None:
    stages = Stages(PLAN, may_have_one_step=may_have_one_step)
    stages.num_steps_waited = num_waited
    assert stages_of(stages, records_first=records_first) == letters


def test_a_recording_that_costs_too_much_is_the_last() -> None:
    stages = Stages(PLAN, may_have_one_step=True)
    stages.cost._ended_by = "it took long"
    assert stages_of(stages) == "D" * 12


ALL = [(before, after) for before in Stage for after in Stage]
LISTED = {(before, after) for before, after, _ in TRANSITIONS}


@pytest.mark.parametrize(("before", "after"), ALL)
def test_the_stage_changes_as_the_table_says(before: Stage, after: Stage) -> None:
    stages = Stages(PLAN, may_have_one_step=False)
    stages.now = before
    if before is after or (before, after) in LISTED:
        stages.go_to(after)
        assert stages.now is after
    else:
        with pytest.raises(AssertionError):
            stages.go_to(after)


def test_nothing_follows_the_end() -> None:
    assert not [after for before, after in LISTED if before is Stage.DONE]
    assert {after for _, after in LISTED} == {*Stage}
