"""Decide which steps of a program are recorded: the stage of each, and every change of it with its reason."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from torch.profiler import ProfilerAction

from tracer.sessions.recording_cost import RecordingCost
from tracer.sessions.schedule import Schedule

RECORDING: Final = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


class Stage(Enum):
    """Recording state of the current step."""

    WAITING = "not recorded; a later step may be"
    FIRST = "recorded, as the program's first step, although the schedule skips it"
    RECORDING = "recorded by the schedule"
    READING = "the recording has ended, and is read while the program waits"
    DONE = "not recorded, and no later step is"


TRANSITIONS: Final = (
    (Stage.WAITING, Stage.FIRST, "The program begins, and may have this step alone."),
    (Stage.WAITING, Stage.RECORDING, "The schedule records the step that begins."),
    (Stage.FIRST, Stage.READING, "The first step has ended, or the block."),
    (Stage.RECORDING, Stage.READING, "The last step of a cycle has ended, or the block, or it costs too much."),
    (Stage.READING, Stage.WAITING, "The schedule skips the step that begins, or has still to begin."),
    (Stage.READING, Stage.RECORDING, "The schedule records the step that begins."),
    (Stage.FIRST, Stage.WAITING, "Dropped: a compilation, torch.func, another profiler or another thread began."),
    (Stage.RECORDING, Stage.WAITING, "Dropped: another profiler or thread began, or it cost too much for one step."),
    (Stage.WAITING, Stage.DONE, "The schedule has ended, or the block, or the session by a fault of its own."),
    (Stage.FIRST, Stage.DONE, "The block has ended in another thread, or in a forked child."),
    (Stage.RECORDING, Stage.DONE, "The block has ended in another thread, or in a forked child."),
    (Stage.READING, Stage.DONE, "The block has ended, or recording costs too much."),
)
"""Every change of the stage, from one to another, with its reason."""


class Stages:
    """The stage of a program's steps under a schedule.

    Attributes:
        schedule: Which steps are recorded.
        now: The stage of the step that is under way.
        cost: What recording has cost; it may end the recording before the schedule does.
        num_steps: Steps that have ended.
        num_steps_waited: Steps before the schedule's first one.
        may_have_one_step: Whether the program may have one step alone.
    """

    def __init__(self, schedule: Schedule, *, may_have_one_step: bool, num_updates: int = 0) -> None:
        self.schedule, self.may_have_one_step = schedule, may_have_one_step
        self.now, self.cost = Stage.WAITING, RecordingCost(schedule, num_updates=num_updates)
        self.num_steps = self.num_steps_waited = 0
        self._schedule_of_torch = schedule.for_torch()

    def of_step(self, step: int, *, records_first: Callable[[], bool]) -> Stage:
        """Return the stage of a step, which begins now: the one place that decides when recording begins.

        1. Once recording has cost too much, no step is recorded: `RecordingCost` says so when a step or a cycle ends.
        2. The schedule decides, whose first step is the program's step `num_steps_waited`: later where another
           profiler was at work when it would have begun, where the loop changed threads, or a recording was dropped.
        3. The first step of a program that may have no second one is recorded although the schedule skips it.
        """
        if self.is_complete:
            return Stage.DONE
        if self.action(step) in RECORDING:
            return Stage.RECORDING
        is_alone = step == 0 and self.may_have_one_step and not self.num_steps_waited
        return Stage.FIRST if is_alone and records_first() else Stage.WAITING

    def action(self, step: int) -> ProfilerAction:
        """Return what the schedule has torch's profiler do in a step, from 0."""
        own = step - self.num_steps_waited
        if self.cost.has_ended or own < 0:
            return ProfilerAction.NONE
        return ProfilerAction(self._schedule_of_torch(own))

    def go_to(self, stage: Stage) -> None:
        """Change the stage."""
        is_one = any((before, after) == (self.now, stage) for before, after, _ in TRANSITIONS)
        assert stage is self.now or is_one, (self.now, stage)
        self.now = stage

    @property
    def is_recording(self) -> bool:
        """True if the current step is recorded."""
        return self.now in (Stage.FIRST, Stage.RECORDING)

    @property
    def is_complete(self) -> bool:
        """True if all steps that the schedule asks for are recorded; more steps would not be looked at."""
        return self.cost.has_ended or self.num_steps - self.num_steps_waited >= self.schedule.num_steps
