"""Drive torch's profiler through the stages of a program: begin and end recordings, and make way for others."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

from torch.profiler import ProfilerAction

from tracer.capture.device import devices
from tracer.capture.torch_private import torch_profiler
from tracer.capture.torch_private.torch_compile import has_compiled
from tracer.capture.torch_private.torch_graph import running_node
from tracer.capture.torch_private.torch_profiler import Detail
from tracer.loaded_modules import on_import
from tracer.sessions.recorded_cycles import RecordedCycles, Shapes
from tracer.sessions.stages import RECORDING, Stage, Stages


class FirstStep:
    """A profiler of its own for the first step, and when the next one may begin to record."""

    def __init__(self, make_profiler: Callable[[Callable[[int], ProfilerAction]], Any]) -> None:
        self.profiler: Any = make_profiler(only_the_first)  # Records until `end` is called; None from then on
        self.is_kept = False  # Whether its recording is among the session's cycles
        self._regions = torch_profiler.OpenRegions()

    def __enter__(self) -> None:
        self._regions.start()
        self.profiler.__enter__()

    def end(self, *, is_kept: bool) -> None:
        """Stop recording; what was recorded is given to `on_trace_ready` if it is kept."""
        profiler, self.profiler, self.is_kept = self.profiler, None, is_kept
        if is_kept:
            profiler.step()
        else:
            profiler.on_trace_ready = None
        torch_profiler.end(profiler)

    def when_closed(self, begin: Callable[[], None]) -> None:
        """Call back when every region has closed that was opened since the beginning: at once if none is open.

        A region that was recorded writes its end into its recording, whose memory is free by then, if another one
        records. Inside of backward that is never called: an operator of torch's own is open there.
        """
        if running_node() is None:
            self._regions.when_closed(begin)

    def stop(self) -> None:
        """Call nothing back any more."""
        self._regions.stop()


def only_the_first(step: int) -> ProfilerAction:
    """The schedule of a profiler that records the first step."""
    return ProfilerAction.RECORD_AND_SAVE if step == 0 else ProfilerAction.NONE


_MOVED: Final = (
    "The loop went on in another thread. torch records one thread: what was being recorded until then is left out, and "
    "recording began anew there."
)
_LOST_IN_THREAD: Final = (
    "A recording was still under way in one thread when the profile ended in another. torch ends a recording in its "
    "own thread alone: this one is left out."
)


class Recorder:
    """Follows a schedule with torch's profiler, and hands each recording over to be read.

    `Stages` decides; a second profiler records a first step that the schedule skips.

    Attributes:
        thread: The number of the thread that is recorded.
        lost_in_threads: A sentence on recordings that were lost because the loop changed threads.
    """

    def __init__(
        self,
        stages: Stages,
        cycles: RecordedCycles,
        *,
        records_first: Callable[[], bool],
        guarded: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Prepare; in the block `guarded` an error ends the session, and never reaches the program."""
        self.thread, self.lost_in_threads = threading.get_ident(), ""
        self._stages, self._cycles = stages, cycles
        self._records_first, self._guarded = records_first, guarded
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()  # `torch.autograd.profiler.profile` that are not ours
        self._on = ExitStack()
        self._profiler: Any = None  # torch's profiler; None before the schedule begins, and where there is none
        self._first: FirstStep | None = None

    # ------------------------------------------------------------------------------------------------ step by step
    def start(self) -> None:
        """Begin the program's first step."""
        stages, self.thread = self._stages, threading.get_ident()
        self._others.update(torch_profiler.prepared_profilers())
        self._on.callback(torch_profiler.on_preparing(self._another_begins))
        self._on.callback(on_import(self._is_loading_module))
        if self._is_another_at_work and not stages.schedule.num_wait_steps:
            stages.num_steps_waited = 1
        stage = self._stage_of(0)
        if stage is Stage.FIRST:
            self._first = FirstStep(self._profiler_with)
        self._profiler = self._first.profiler if self._first is not None else self._profiler_with(stages.action)
        self._cycles.begin(0, is_recorded=stage is not Stage.WAITING)
        stages.go_to(stage)
        (self._first or self._profiler).__enter__()
        stages.cost.begin_step()

    @property
    def _is_another_at_work(self) -> bool:
        """True if another profiler is active; starting ours would stop it."""
        return torch_profiler.is_recorded_by_profiler() or any(map(torch_profiler.is_prepared, self._others))

    def _stage_of(self, step: int) -> Stage:
        return self._stages.of_step(step, records_first=lambda: not self._is_another_at_work and self._records_first())

    def step_ended(self) -> None:
        """Note what a step has cost that has ended, and been counted."""
        if threading.get_ident() != self.thread and self._profiler is not None:
            self._go_over_to_this_thread()
        if self._stages.now is not Stage.FIRST:
            self._stages.cost.end_step(self._stages.num_steps, is_recorded=self._stages.now is Stage.RECORDING)

    def begin_next(self) -> None:
        """Begin the step that comes next."""
        if self._profiler is None or self._stages.now is Stage.FIRST:
            self._begin_behind_first()
        else:
            self._follow_schedule()
        self._stages.cost.begin_step()

    def _follow_schedule(self) -> None:
        profiler, is_recorded = self._profiler, self._stages.now is Stage.RECORDING
        if is_recorded and self._first is not None:  # another step than the first one
            if self._first.is_kept:
                self._cycles.forget_first()
            self._first = None
        after = self._stages.action(profiler.step_num + 1)
        if profiler.current_action == ProfilerAction.NONE != after and self._is_another_at_work:
            self._stages.num_steps_waited += 1
            profiler.step_num += 1
            return
        if after in RECORDING and not is_recorded:
            self._cycles.begin(self._stages.num_steps, is_recorded=True)
            self._stages.go_to(Stage.RECORDING)
        if is_recorded and self._stages.cost.has_ended:
            profiler.current_action = ProfilerAction.RECORD_AND_SAVE
        self._stages.cost.begin_reading()
        profiler.step()
        stage = self._stage_of(profiler.step_num)
        if stage is Stage.DONE:
            self._end()
        else:
            self._stages.go_to(stage)

    def stop(self, error: BaseException | None = None) -> None:
        """End for good; what is being recorded is read, unless it belongs to another thread."""
        self._on.close()
        self._end(error)

    def _end(self, error: BaseException | None = None) -> None:
        profiler, self._profiler = self._profiler, None
        if self._first is not None:
            self._first.stop()
        try:
            if profiler is not None and threading.get_ident() != self.thread:
                if self._stages.is_recording and not (self.lost_in_threads and self._cycles.number):
                    self.lost_in_threads = _LOST_IN_THREAD
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
    def _profiler_with(self, schedule: Callable[[int], ProfilerAction]) -> Any:
        is_first = schedule is only_the_first
        detail = Detail.ALL
        if has_compiled():  # hooks on steps would be compiled as well
            self._stages.cost.record_whole()
        if self._stages.cost.is_of_many:
            detail = Detail.ALLOCATIONS if is_first else Detail.OUTSIDE_OPTIMIZER
        return torch_profiler.memory_profiler(
            devices.profiler_activities(self._cycles.device),
            schedule,
            has_shapes=self._cycles.shapes is Shapes.RECORDED and detail is not Detail.ALLOCATIONS,
            detail=detail,
            ended=self._first_ended if is_first else self._cycle_ended,
        )

    def _first_ended(self, profiler: Any) -> None:
        self._stages.go_to(Stage.READING)
        if profiler.detail is Detail.ALLOCATIONS:
            self._stages.cost.has_allocations_alone()
            self._cycles.keep_first_unread(profiler)
        else:
            self._cycles.read(profiler, self._stages.cost)
        self._cycles.look(is_walk=False)

    def _cycle_ended(self, profiler: Any) -> None:
        """The profiler has stopped recording, for now or for good."""
        self._stages.go_to(Stage.READING)
        is_next_recorded = self._stages.action(profiler.step_num) in RECORDING
        self._cycles.read(profiler, self._stages.cost)
        if not is_next_recorded and not self._cycles.are_all(self._stages):
            self._stages.cost.end_reading()
        self._cycles.look(is_walk=is_next_recorded and self._profiler is not None)
        # With steps that are found one more comes, which may fail.
        self._cycles.keep_history(is_last=self._cycles.are_all(self._stages) and not self._stages.may_have_one_step)

    def record_no_calls(self) -> None:
        """Record no further Python call of this thread, if that is the recorded one."""
        if threading.get_ident() == self.thread:
            torch_profiler.record_no_calls()

    def record_no_shapes(self) -> None:
        """Record no shapes from now on; what is being recorded has begun with them."""
        if self._cycles.shapes is Shapes.RECORDED:
            self.end_first_step()
            self._cycles.shapes = Shapes.KEPT_WRAPPED if self._stages.is_recording else Shapes.LEFT_OUT
            if self._profiler is not None:
                torch_profiler.record_no_shapes(self._profiler)

    # ---------------------------------------------------------------------------------------------- the first step
    def end_first_step(self, *, is_kept: bool = False) -> None:
        """End the recording of the first step beside the schedule, if that is on; it is dropped if not kept."""
        if self._stages.now is Stage.FIRST and self._first is not None:
            self._first.end(is_kept=is_kept)
            self._profiler = None
            self._stages.go_to(Stage.WAITING)

    def _begin_behind_first(self) -> None:
        """A step has ended, and the schedule has still to begin: now if it does not record the next step.

        Else as soon as nothing is open any more that was recorded of the first step; where that does not happen until
        the next one has ended, with a step between.
        """

        def begin_between_steps() -> None:
            with self._guarded():  # the program is at work
                self.begin_schedule()

        assert self._first is not None
        self.end_first_step(is_kept=True)
        if self._stages.action(1) not in RECORDING:
            self.begin_schedule()
        elif self._stages.num_steps == 1:
            self._first.when_closed(begin_between_steps)
        else:
            self.begin_schedule(self._stages.num_steps)

    def begin_schedule(self, num_steps_waited: int = 0) -> None:
        """Begin the schedule behind a first step that was recorded."""
        if self._first is not None:
            self._first.stop()
        self._stages.num_steps_waited = num_steps_waited or int(self._is_another_at_work) * (self._stages.num_steps + 1)
        self._profiler, stage = self._profiler_with(self._stages.action), self._stage_of(self._stages.num_steps)
        torch_profiler.begin_at(self._profiler, self._stages.num_steps)
        self._cycles.begin(self._stages.num_steps, is_recorded=stage is Stage.RECORDING)
        self._stages.go_to(stage)
        self._profiler.__enter__()

    # ------------------------------------------------------------------------------- what ends a recording early
    def end_endless_step(self) -> None:
        """End the recording if no step has ended for long, where ends of steps may not be found."""
        if self._stages.is_recording and self._stages.cost.is_endless():
            with self._guarded():
                self._end()

    def end_long_evaluation(self) -> bool:
        """End the recording if models were called without gradients for too long, and say so; asked at such calls."""
        is_long = self._stages.now is Stage.RECORDING and self._stages.cost.is_long_evaluation()
        if is_long:
            self._end_costly_recording()
        return is_long

    def _is_loading_module(self, name: str, path: object = None, target: object = None) -> None:
        if self._stages.now is Stage.RECORDING and threading.get_ident() == self.thread:
            with self._guarded():
                if self._stages.cost.loads_many():
                    self._end_costly_recording()

    def _end_costly_recording(self) -> None:
        """End the recording within a step; where it has no whole step, another one begins later."""
        if self._stages.cost.has_step:
            self._end()
        else:
            on_trace_ready = None if self._cycles.number else self._cycles.drop
            self._make_way(num_more_steps=int(self._stages.schedule.is_apart), on_trace_ready=on_trace_ready)

    def _another_begins(self, profiler: Any) -> None:
        """A profiler prepares to record: where it is not ours, make way, or the loop would get torch's error."""
        own = self._profiler
        if own is None or profiler is not own.profiler:
            self._others.add(profiler)
            if own is not None and own.current_action != ProfilerAction.NONE:
                with self._guarded():
                    self._make_way()

    def _make_way(self, *, num_more_steps: int = 0, on_trace_ready: Callable[[Any], None] | None = None) -> None:
        """End the current cycle, and begin again after so many steps, or when another profiler has ended."""
        profiler, self._profiler = self._profiler, None
        profiler.on_trace_ready = on_trace_ready
        torch_profiler.end(profiler)
        self._go_on_without(profiler.step_num, num_steps_waited=profiler.step_num + 1 + num_more_steps)
        self._profiler.__enter__()

    def _go_over_to_this_thread(self) -> None:
        """Begin anew where the loop has moved to another thread: torch records one, which alone can end a recording."""
        profiler, self._profiler = self._profiler, None
        self.thread, self.lost_in_threads = threading.get_ident(), _MOVED
        torch_profiler.abandon(profiler)
        # The next step is recorded, without one to warm up: there may be few.
        num_skipped = self._stages.schedule.num_wait_steps + self._stages.schedule.num_warmup_steps
        self._go_on_without(profiler.step_num, num_steps_waited=profiler.step_num + 1 - num_skipped)

    def _go_on_without(self, step: int, *, num_steps_waited: int) -> None:
        """Begin anew in a step whose recording is dropped, if it had one."""
        if self._stages.now is Stage.FIRST and self._first is not None:
            self._first.stop()
            self._first = None
        self._stages.num_steps_waited = num_steps_waited
        self._profiler = self._profiler_with(self._stages.action)
        self._profiler.step_num, self._profiler.current_action = step, ProfilerAction.NONE
        self._stages.go_to(Stage.WAITING)
