"""Decide which steps of a program are recorded: the stage of each, and every change of it with its reason."""

from __future__ import annotations

from enum import Enum
from typing import Final

from torch.profiler import ProfilerAction

from tracer.sessions.recording_cost import RecordingCost
from tracer.sessions.schedule import Schedule

RECORDING: Final = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


class Stage(Enum):
    """Recording state of the current step."""

    WAITING = "not recorded; a later step may be"
    RECORDING = "recorded by the schedule"
    READING = "the recording has ended, and is read while the program waits"
    DONE = "not recorded, and no later step is"


TRANSITIONS: Final = (
    (Stage.WAITING, Stage.RECORDING, "The schedule records the step that begins."),
    (
        Stage.RECORDING,
        Stage.READING,
        "The last step of a cycle has ended, or the block, or something has ended recording.",
    ),
    (Stage.READING, Stage.WAITING, "The schedule skips the step that begins."),
    (Stage.READING, Stage.RECORDING, "The schedule records the step that begins."),
    (Stage.RECORDING, Stage.WAITING, "Dropped: torch.func or a compilation began, or an evaluation took long."),
    (Stage.WAITING, Stage.DONE, "The schedule has ended, or the block, or the session by a fault of its own."),
    (Stage.RECORDING, Stage.DONE, "The loop went on in another thread, or in a forked child."),
    (Stage.READING, Stage.DONE, "The block has ended, another profiler begins, or recording costs too much."),
)
"""Every change of the stage, from one to another, with its reason."""


class Stages:
    """The stage of a program's steps under a schedule.

    Attributes:
        schedule: Which steps are recorded.
        now: The stage of the step that is under way.
        cost: Counts of what was recorded; a recording with too many events ends.
        ended_by: A sentence on what has ended recording before the schedule: its cost, another profiler, another
            thread. Empty where nothing has.
        num_steps: Steps that have ended.
        num_steps_waited: Steps before the schedule's first one.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.now, self.cost, self.ended_by = Stage.WAITING, RecordingCost(schedule), ""
        self.num_steps = self.num_steps_waited = 0
        self._schedule_of_torch = schedule.for_torch()

    def of_step(self, step: int) -> Stage:
        """Return the stage of a step, which begins now: the one place that decides when recording begins.

        1. Once something has ended recording before the schedule, no step is recorded: see `ended_by`.
        2. The schedule decides, whose first step is the program's step `num_steps_waited`: later where a recording was
           dropped.
        """
        if self.is_complete:
            return Stage.DONE
        return Stage.RECORDING if self.action(step) in RECORDING else Stage.WAITING

    def action(self, step: int) -> ProfilerAction:
        """Return what the schedule has torch's profiler do in a step, from 0."""
        own = step - self.num_steps_waited
        if self.ended_by or own < 0:
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
        return self.now is Stage.RECORDING

    @property
    def is_complete(self) -> bool:
        """True if all steps that the schedule asks for are recorded; more steps would not be looked at."""
        return bool(self.ended_by) or self.num_steps - self.num_steps_waited >= self.schedule.num_steps
