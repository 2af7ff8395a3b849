"""Which steps are recorded, and who decides: the schedule, and what ends it early."""

from __future__ import annotations

import pytest

from tracer.sessions.schedule import Schedule
from tracer.sessions.stages import TRANSITIONS, Stage, Stages

PLAN = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=2, num_repeats=2)


def stages_of(stages: Stages) -> str:
    """The first letter of the stage of each step, as a program makes them."""
    letters = ""
    for step in range(12):
        letters += stages.of_step(step).name[0]
        stages.num_steps += 1
    return letters


def test_the_stage_of_each_step() -> None:
    assert stages_of(Stages(PLAN)) == "WWRRWWRRWDDD"
    stages = Stages(PLAN)
    stages.num_steps_waited = 2  # a recording was dropped in the second one
    assert stages_of(stages) == "WWWWRRWWRRWD"
    stages = Stages(PLAN)
    stages.ended_by = "It took long."
    assert stages_of(stages) == "D" * 12


ALL = [(before, after) for before in Stage for after in Stage]
LISTED = {(before, after) for before, after, _ in TRANSITIONS}


@pytest.mark.parametrize(("before", "after"), ALL)
def test_the_stage_changes_as_the_table_says(before: Stage, after: Stage) -> None:
    stages = Stages(PLAN)
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
