"""Drive torch's profiler through the stages of a program: begin and end recordings, and make way for others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from tracer.capture.device import devices
from tracer.capture.torch_private import torch_profiler
from tracer.sessions.recorded_cycles import RecordedCycles
from tracer.sessions.recording_cost import MOST_BACKWARDS
from tracer.sessions.stages import RECORDING, Stage, Stages

_ANOTHER_PROFILER: Final = (
    "A torch.profiler of the program's own records, and only one can at a time: recording ended where that one began. "
    "Leave it out, or use `run --watch`, which needs none."
)
_ANOTHER_THREAD: Final = (
    "The loop went on, or ended, in another thread. torch records one thread, and ends a recording in that thread "
    "alone: what was being recorded is left out."
)


class Recorder:
    """Follows a schedule with torch's profiler, and hands each recording over to be read.

    `Stages.of_step` decides what is recorded.

    Attributes:
        thread: The number of the thread that is recorded.
    """

    def __init__(
        self, stages: Stages, cycles: RecordedCycles, *, guarded: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Prepare; in the block `guarded` an error ends the session, and never reaches the program."""
        self.thread = threading.get_ident()
        self._stages, self._cycles, self._guarded = stages, cycles, guarded
        self._forget_others: Callable[[], object] = lambda: None
        self._profiler: Any = None  # torch's profiler; None where there is none

    # ------------------------------------------------------------------------------------------------ step by step
    def start(self) -> None:
        """Begin the program's first step."""
        stages, self.thread = self._stages, threading.get_ident()
        if torch_profiler.is_any_prepared():
            stages.ended_by = _ANOTHER_PROFILER
        self._forget_others = torch_profiler.on_preparing(self._another_begins)
        stage = stages.of_step(0)
        self._cycles.begin(0, is_recorded=stage is Stage.RECORDING)
        stages.go_to(stage)
        if stage is not Stage.DONE:
            self._profiler = self._new_profiler()
            self._profiler.__enter__()
        stages.cost.begin_step()

    def step_ended(self) -> None:
        """Note what a step has cost that has ended, and been counted."""
        stages = self._stages
        if threading.get_ident() != self.thread:
            self._end()
        elif stages.is_recording:
            stages.cost.num_recorded += 1

    def begin_next(self) -> None:
        """Begin the step that comes next."""
        stages, profiler = self._stages, self._profiler
        if stages.now is Stage.DONE:
            return
        if stages.action(profiler.step_num + 1) in RECORDING and not stages.is_recording:
            self._cycles.begin(stages.num_steps, is_recorded=True)
            stages.go_to(Stage.RECORDING)
        profiler.step()
        stage = stages.of_step(profiler.step_num)
        if stage is Stage.DONE:
            self._end()
        else:
            stages.go_to(stage)
            stages.cost.begin_step()

    def stop(self, error: BaseException | None = None) -> None:
        """End for good; what is being recorded is read, unless it belongs to another thread."""
        self._forget_others()
        self._end(error)

    def _end(self, error: BaseException | None = None) -> None:
        profiler, self._profiler = self._profiler, None
        try:
            if profiler is not None and threading.get_ident() != self.thread:
                self._stages.ended_by = _ANOTHER_THREAD
                torch_profiler.abandon(profiler)
            elif profiler is not None:
                torch_profiler.end(profiler, error)
        finally:
            self._stages.go_to(Stage.DONE)

    def leave_to_parent(self) -> object:
        """Drop all in a forked child; return the profiler, which is to be kept, since it must not be stopped here."""
        profiler, self._profiler = self._profiler, None
        self.stop()
        return profiler

    # --------------------------------------------------------------------------------------------- torch's profiler
    def _new_profiler(self) -> Any:
        activities, has_shapes = devices.profiler_activities(self._cycles.device), self._cycles.has_shapes
        return torch_profiler.memory_profiler(
            activities, self._stages.action, has_shapes=has_shapes, ended=self._cycle_ended
        )

    def _cycle_ended(self, profiler: Any) -> None:
        """The profiler has stopped recording, for now or for good."""
        self._stages.go_to(Stage.READING)
        stages, num_events, goes_on = self._stages, self._cycles.read(profiler), self._profiler is not None
        if goes_on and not self._cycles.are_all(stages):
            stages.ended_by = stages.cost.after_cycle(stages.num_steps, num_events)
        self._cycles.look(is_walk=goes_on and stages.action(profiler.step_num) in RECORDING)
        # With steps that are found one more comes, which may fail.
        self._cycles.keep_history(is_last=self._cycles.are_all(stages) and not stages.schedule.is_apart)

    def record_no_shapes(self) -> None:
        """Record no shapes from now on: what is being recorded has begun with them, and is dropped."""
        if self._cycles.has_shapes:
            self._cycles.has_shapes = False
            if self._stages.is_recording:
                self._begin_again()
            elif self._profiler is not None:
                torch_profiler.record_no_shapes(self._profiler)

    # ------------------------------------------------------------------------------- what ends a recording early
    def end_endless_step(self) -> None:
        """End the recording, where ends of steps are not found."""
        if self._stages.is_recording:
            self._end_early(
                f"No end of a step was found within {MOST_BACKWARDS} backward passes. Recording ended there: what is "
                "explained is the program until then."
            )

    def end_long_evaluation(self) -> bool:
        """End or drop the recording within a step that evaluates for long; asked at calls without gradients."""
        stages = self._stages
        if not stages.is_recording or not stages.cost.has_long_evaluation():
            return False
        if stages.cost.may_drop:
            self._begin_again()
        else:
            self._end_early(stages.cost.within_evaluation(stages.num_steps + 1))
        return True

    def _another_begins(self) -> None:
        """The program's own profiler prepares to record: make way, or the loop would get torch's error."""
        if self._profiler is not None:
            self._end_early(_ANOTHER_PROFILER)

    def _end_early(self, why: str) -> None:
        with self._guarded():
            self._stages.ended_by = why
            self._end()

    def leave_compilation_out(self) -> None:
        """Drop a recording in whose first step something is compiled, as it would have all that the compiler does."""
        if self._stages.is_recording and self._stages.cost.may_drop:
            with self._guarded():
                self._begin_again()

    def _begin_again(self) -> None:
        """Drop what is being recorded, and begin the schedule anew behind this step."""
        profiler, self._profiler = self._profiler, None
        self._stages.cost.num_dropped += 1
        step, profiler.on_trace_ready = profiler.step_num, None
        torch_profiler.end(profiler)
        # What is open here, such as an optimizer's step with a closure, may end behind this step: see `is_apart`.
        self._stages.num_steps_waited = step + 1 + self._stages.schedule.is_apart
        self._profiler = self._new_profiler()
        torch_profiler.begin_at(self._profiler, step)
        self._stages.go_to(Stage.WAITING)
        self._profiler.__enter__()
