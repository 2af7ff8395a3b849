"""Profiles any training loop: schedule, profiler, allocator history, observations, and all of it off at the end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerAction

from tracer.answers.failure import is_out_of_memory
from tracer.answers.graph_pools import graph_pools
from tracer.answers.null_run import caveat_of
from tracer.answers.recording_findings import Findings, without_wrapped
from tracer.answers.run_history import RunHistory
from tracer.capture.compile_watch import CompileWatch, compiled_wrapper_names
from tracer.capture.device import devices
from tracer.capture.device.allocator_history import AllocatorHistory, recorded_from_start
from tracer.capture.graph_captures import GRAPH_CAPTURES, LivePool
from tracer.capture.objects.call_hooks import CallHooks
from tracer.capture.objects.known_storages import KnownStorages, Parameter
from tracer.capture.objects.live_tensors import FROZEN
from tracer.capture.objects.parameter_origins import describe_parameters
from tracer.capture.objects.training_objects import Models, Optimizers, TrainingObjects
from tracer.capture.profiler.quiet_profiler import quiet_profiler
from tracer.capture.sources.source_files import project_root
from tracer.capture.torch_private import torch_profiler, torch_tensors
from tracer.collector import paused_gc
from tracer.errors import RecordingError
from tracer.loaded_modules import on_import
from tracer.sessions.observations import Observations, has_closure
from tracer.sessions.schedule import DEFAULT_SCHEDULE, FirstStep, RecordingCost, Schedule, only_the_first
from tracer.sessions.session import Session
from tracer.sessions.timeline_tracer import TimelineTracer
from tracer.units import MIB, format_bytes, some

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation
    from tracer.capture.objects.at_failure import ObjectsAtFailure
    from tracer.capture.objects.later_uses import SecondRun


_MOST_STEPS_OF_HISTORY = 10
"""Steps that the allocator's history may have when a cycle begins; with more, the history is started anew."""
_LEAST_MAPPED_BYTES = MIB
"""Mapped memory below this is not worth a sentence."""
_ON_META = (
    "Parameters of the model are on the meta device, where nothing is allocated: what a step takes elsewhere is not in "
    "the peak. predict says what it would be."
)
_KEEPS_WRAPPED = (
    "torch.profiler keeps what grad and vmap of torch.func wrap alive until the first cycle has ended: its peak is "
    "larger by that than without a profiler. With a step before it, as by default, that is known in time and avoided."
)
_RECORDS_NO_SHAPES = (
    "The step uses grad, vmap or jvp of torch.func. torch.profiler would keep what they wrap alive, so that it did not "
    "record which tensors operators use: kinds go by when memory was made and freed. What functional_call puts in the "
    "place of parameters it does keep, from the first recorded step until the cycle has ended, so that a peak may be "
    "larger by that than without a profiler."
)
_MOVED = (
    "The loop went on in another thread. torch records one thread: what was being recorded until then is left out, and "
    "recording began anew there."
)
_LOST_IN_THREAD = (
    "A recording was still under way in one thread when the profile ended in another. torch ends a recording in its "
    "own thread alone: this one is left out."
)
_RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


class Stage(Enum):
    """The part of a profile that a step is in; `_end_step` goes from one to the next, unless one ends within a step."""

    OFF = "the profiler is off: before the block, and when it has ended or made way for good"
    FIRST = "the first step is recorded, beside the schedule"
    BEHIND_FIRST = "that has ended, and the schedule has still to begin"
    WAITING = "the schedule skips this step"
    RECORDING = "the schedule records this step"


class ProfileSession(Session):
    """Profiles any training loop: `with ProfileSession(model, optimizer) as session: ... session.step()`.

    Beside the profiler's recording it notes where parameters, buffers, gradients, optimizer state and batches lie, by
    address only, and records the allocator's history, where it has one, during the profiled steps. All of it is
    switched off when the block ends, also by an exception, and model and optimizer are let go.

    Attributes:
        device: The run's device; where none was named, the likeliest, and `findings.device` is the right one.
        device_of_failure: The device that had no memory left, if one had none.
        module_names: Dotted names by `id()` of the model's modules, and of other models' that were alive.
    """

    def __init__(
        self,
        model: Models,
        optimizer: Optimizers = None,
        *,
        device: torch.device | str | None = None,
        schedule: Schedule = DEFAULT_SCHEDULE,
        steps_are_found: bool = False,
        settings: Mapping[str, object] | None = None,
        keep_recording: bool = False,
    ) -> None:
        """Prepare; nothing is switched on.

        Args:
            model: The model, as the loop calls it; several by name.
            optimizer: One, several or none; one that is not named is found when it steps.
            device: What the run is about; by default it is found out.
            schedule: Which steps are recorded.
            steps_are_found: Whether `step` is called by hooks, where torch may have begun to record an operator, and
                there may be one step alone: the first is recorded too, until a second one has ended.
            settings: What to remember of the run.
            keep_recording: Whether recording.npz is among the files.
        """
        objects = TrainingObjects(model, optimizer)
        super().__init__(objects, device=device)
        self.settings, self.keep_recording = dict(settings or {}), keep_recording
        self.project_root = project_root(next(iter(objects.models.values()), None))
        # The program may have let go of its models when the results are put together.
        self._parameters: tuple[Parameter, ...] = ()
        self._guarded(self._describe_parameters)
        self.device_is_named = device is not None
        self.schedule = replace(schedule, is_apart=True) if steps_are_found else schedule
        self._may_have_one_step = steps_are_found
        self.device_of_failure = self.device
        self.history = AllocatorHistory(self.device, is_timed=not caveat_of(self.device))
        self._observed = Observations(lambda: self._objects, lambda: self._is_recording)
        self.module_names = self._observed.module_names
        self._graph_pools: tuple[LivePool, ...] = ()
        self._compile_watch = CompileWatch()
        self._tracer = TimelineTracer(
            device=self.device if self.device_is_named else None,
            probable_device=self.device,
            module_names=self.module_names,
            known=self._observed.storages.observations,
            compiled=self._compile_watch.code,
        )
        self._profiler: Any = None
        self._first: FirstStep | None = None
        self._has_to_begin = False
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()
        self._num_steps_waited = 0
        self._of_parent: Any = None
        self._on = ExitStack()  # Switches all off but the profiler and the allocator's history
        self._hooks = self._call_hooks(objects)
        self._thread = threading.get_ident()
        self._of_threads = ""  # Sentence on recordings lost because the loop changed threads
        self._findings: Findings | None = None
        self._joined: tuple[Findings, RunHistory] | None = None
        self._run_history = RunHistory(None)
        self._history_since = 0  # Steps that had ended when the allocator's history began
        self._records_shapes = True
        self._keeps_wrapped = self._is_on_meta = False
        self._at_failure: ObjectsAtFailure | None = None
        self._cost = RecordingCost(schedule)
        self._has_enough = False
        # Adds the recording that was dropped last, and the allocator's history at its end; None if a later one was made
        self._dropped: tuple[Callable[[], None], dict[str, Any] | None] | None = None

    def _call_hooks(self, objects: TrainingObjects) -> CallHooks:
        return CallHooks(
            optimizers=objects.optimizers,
            before_step=self._before_optimizer_step,
            after_step=self._after_optimizer_step,
        )

    # ------------------------------------------------------------------------------------------------- the life cycle
    def _switch_on(self) -> None:
        self._thread = threading.get_ident()
        self._on.enter_context(quiet_profiler())
        self._on.callback(self._observed.storages.stop)
        self._others.update(torch_profiler.prepared_profilers())
        if self._is_another_at_work and not self.schedule.num_wait_steps:
            self._num_steps_waited = 1
        self._profiler = self._new_profiler()
        if self._records_first_too:
            self._first, self._has_to_begin = FirstStep(self._profiler_with), True
            self._profiler = self._first.profiler
        self._on.callback(torch_profiler.on_preparing(self._another_begins))
        watches: tuple[Any, ...] = (self._compile_watch, GRAPH_CAPTURES, FROZEN, self._hooks)
        for watch in watches:
            self._on.callback(watch.stop)
            watch.start()
        self._on.callback(on_import(self._is_loading_module))
        self._cycle_begins(is_recorded=self._action_after(0) in _RECORDING)
        (self._first or self._profiler).__enter__()
        self._cost.begin_step()

    def wait_for_next_step(self) -> None:
        """Begin no recording in the optimizer's step that is under way.

        Where another recording has ended in it, its end would be written into that one's memory, which is free.
        """
        self._num_steps_waited = 1 if self.schedule.num_wait_steps else 2

    def _new_profiler(self) -> Any:
        """torch's, whose schedule begins behind the steps that were waited for."""
        schedule = self.schedule.for_torch()

        def action(step: int) -> ProfilerAction:
            own = step - self._num_steps_waited
            if self._has_enough:
                return ProfilerAction.NONE
            return ProfilerAction(schedule(own)) if own >= 0 else ProfilerAction.NONE

        return self._profiler_with(action)

    def _profiler_with(self, schedule: Callable[[int], ProfilerAction]) -> Any:
        return torch_profiler.PoliteProfiler(
            activities=devices.profiler_activities(self.device),
            schedule=schedule,
            record_shapes=self._records_shapes,
            profile_memory=True,
            with_stack=True,
            on_trace_ready=self._first_ended if schedule is only_the_first else self._cycle_ended,
        )

    @property
    def _is_another_at_work(self) -> bool:
        """True if another profiler is active; starting ours would stop it."""
        return torch_profiler.is_recorded_by_profiler() or any(map(torch_profiler.is_prepared, self._others))

    def _another_begins(self, profiler: Any) -> None:
        """A profiler prepares to record. Where it is not ours, it goes first: the loop would get torch's error."""
        if self._profiler is None or profiler is self._profiler.profiler:
            return
        self._others.add(profiler)
        if self.stage is Stage.BEHIND_FIRST:
            return
        if self._profiler.current_action != ProfilerAction.NONE:
            with self._never_the_loops_fault():
                self._make_way()

    def _end_costly_recording(self) -> None:
        """End the recording within a step; where it has no whole step, another one begins later."""
        if self._cost.has_step:
            self._end_within_step()
        else:
            on_trace_ready = None if self.has_recording else self._drop
            self._make_way(num_more_steps=int(self.schedule.is_apart), on_trace_ready=on_trace_ready)

    def _is_loading_module(self, name: str, path: object = None, target: object = None) -> None:
        # The only step of a program is recorded whatever it costs.
        if self.stage is Stage.RECORDING and threading.get_ident() == self._thread:
            with self._never_the_loops_fault():
                if self._cost.loads_many():
                    self._end_costly_recording()

    def _make_way(self, *, num_more_steps: int = 0, on_trace_ready: Callable[[Any], None] | None = None) -> None:
        """End the current cycle, and begin again after so many steps, or when another profiler has ended."""
        self._has_to_begin = False
        profiler, self._profiler = self._profiler, None
        profiler.on_trace_ready = on_trace_ready
        profiler.__exit__(None, None, None)
        self._num_steps_waited = profiler.step_num + 1 + num_more_steps
        torch_profiler.let_go_of(profiler)
        self._profiler = self._new_profiler()
        self._profiler.step_num = profiler.step_num
        self._profiler.__enter__()

    def _drop(self, profiler: Any) -> None:
        """Keep a recording that was cut unread, with all that Python holds at its end, in case no other is made."""
        self.module_names.update(compiled_wrapper_names(self.module_names))
        add = self._tracer.adder(profiler)
        torch_profiler.let_go_of_recording(profiler)
        self._observed.look(self.device, is_walk=True)
        self.history.dump(0)
        self._dropped, self.history.snapshot = (add, self.history.snapshot), None

    def _use_dropped(self) -> None:
        if self._dropped is not None:
            add, snapshot = self._dropped
            add()
            if self.history.snapshot is None:  # else memory has run out since
                self.history.snapshot = snapshot
            self._cost.only_dropped()

    def _switch_off(self, error: BaseException | None) -> None:
        """Switch all off, whatever each of them raises; the first such thing is the session's fault."""
        self._guarded(self._look_for_meta)
        is_recorded = self._is_recording
        profiler, self._profiler = None if self.stage is Stage.BEHIND_FIRST else self._profiler, None
        if self._first is not None:
            self._first.stop()
        ran_out = error if error is not None and is_out_of_memory(error) else None
        # The collector frees nothing until the objects have been looked at. The look comes behind the profiler, which
        # would record its many calls.
        with paused_gc() if ran_out is not None else nullcontext():
            if ran_out is not None:
                self._guarded(self._go_over_to_history)
                self._guarded(lambda: self.history.dump(self._tracer.num_cycles if is_recorded else None))
            if error is not None:
                self._guarded(lambda: self._look_where_memory_ran_out(error))
            if ran_out is not None and not is_recorded:
                self._guarded(
                    lambda: self._observed.look(self.device, is_walk=True, batch=self._observed.living_arguments())
                )
            self._stop_profiler(profiler, error, is_recorded=is_recorded)
            if ran_out is not None:
                self._guarded(lambda: self._note_objects(ran_out))
        self._guarded(self._use_dropped)
        if self.history.snapshot is None and self._tracer.num_cycles:  # the first step was recorded alone
            self._guarded(lambda: self.history.dump(self._tracer.num_cycles - 1))
        self._guarded(self.history.stop)
        self._guarded(self._on.close)

    def _stop_profiler(self, profiler: Any, error: BaseException | None, *, is_recorded: bool) -> None:
        if profiler is not None and threading.get_ident() != self._thread:
            if is_recorded and not (self._of_threads and self._tracer.num_cycles):
                self._of_threads = _LOST_IN_THREAD
            torch_profiler.abandon(profiler)
        elif profiler is not None:
            kind, trace = (type(error), error.__traceback__) if error is not None else (None, None)
            self._guarded(lambda: profiler.__exit__(kind, error, trace))
            torch_profiler.let_go_of(profiler)

    def _switch_off_in_child(self) -> None:
        """The profiler is kept, since it must not be stopped here."""
        if self._first is not None:
            self._first.stop()
        self._of_parent, self._profiler = self._profiler, None
        self._on.close()

    def _look_where_memory_ran_out(self, error: BaseException) -> None:
        """Make the device that ran out of memory the run's device, unless one was named."""
        index = self.run_history.device_out_of_memory if is_out_of_memory(error) else None
        if index is None:
            return
        self.device_of_failure = torch.device(self.history.device.type, index)
        if not self.device_is_named:
            self.device = self.device_of_failure
            self._tracer.preferred = str(self.device)

    def _note_objects(self, error: BaseException) -> None:
        from tracer.capture.objects.failure_look import look_at_failure

        self._at_failure = look_at_failure(
            self.device, error, is_evaluating=self._is_evaluating(error), run_again=self._run_again
        )

    def _run_again(self, device: torch.device, num_allocations: int) -> SecondRun | None:
        """Return None: a program that calls the session is not run again."""
        return None

    def _look_for_meta(self) -> None:
        if self._objects is not None:
            self._is_on_meta = any(parameter.is_meta for _, parameter in self._objects.parameters())

    def step(self) -> None:
        """End a step. Call it once per step of training, after the optimizer's step.

        Raises:
            TracerError: The block has not begun.
        """
        self._check_begun()
        self.num_steps_done += 1
        if self._profiler is None:
            return
        with self._never_the_loops_fault():
            if threading.get_ident() != self._thread and self.stage is not Stage.BEHIND_FIRST:
                self._go_over_to_this_thread()
            stage, number = self.stage, self.num_steps_done
            is_recorded = stage is Stage.RECORDING
            is_costly = stage is not Stage.FIRST and self._cost.end_step(number, is_recorded=is_recorded)
            self._end_step(is_last=is_costly)
            self._cost.begin_step()

    def _go_over_to_this_thread(self) -> None:
        """Begin anew where the loop has moved to another thread: torch records one, which alone can end a recording."""
        self._thread, self._has_to_begin, self._of_threads = threading.get_ident(), False, _MOVED
        if self._first is not None:
            self._first.stop()
            self._first = None
        profiler, self._profiler = self._profiler, None
        torch_profiler.abandon(profiler)
        # The next step is recorded, without one to warm up: there may be few.
        num_skipped = self.schedule.num_wait_steps + self.schedule.num_warmup_steps
        self._num_steps_waited = profiler.step_num + 1 - num_skipped
        self._profiler = self._new_profiler()
        self._profiler.step_num = profiler.step_num
        self._profiler.current_action = ProfilerAction.NONE

    def end_last_step(self) -> None:
        """End the program's last step: a recording that would begin behind it would have nothing."""
        if self._is_recording:
            self.step()
        else:
            self.num_steps_done += 1

    def _end_step(self, *, is_last: bool) -> None:
        self._note_mode()
        self._hooks.renew()
        self._note_transforms()
        now, after = (self._action_after(more) for more in (0, 1))
        self._observed.moved_parameters()
        if self._is_recording and not self._observed.has_stepped:
            self._observed.all_gradients(are_due=False)
        self._observed.step_begins()
        if self._has_to_begin:
            self._begin_behind_first()
            return
        if now in _RECORDING and self._first is not None:  # another step than the first one
            if self._first.is_kept:
                self._tracer.forget_first()
            self._first = None
        if now == ProfilerAction.NONE != after and self._is_another_at_work:
            self._num_steps_waited += 1
            self._profiler.step_num += 1
            return
        if after in _RECORDING and now not in _RECORDING:
            self._cycle_begins(is_recorded=True)
        if is_last:
            self._has_enough = True
            self._profiler.current_action = ProfilerAction.RECORD_AND_SAVE
        self._cost.begin_reading()
        self._profiler.step()

    @property
    def _is_all_recorded(self) -> bool:
        return self._has_enough or self._tracer.num_cycles == self.schedule.num_repeats

    def end_endless_step(self) -> None:
        """End the recording if no step has ended for long, where ends of steps may not be found."""
        if self._is_recording and self._cost.is_endless():
            with self._never_the_loops_fault():
                self._end_within_step()

    def _end_within_step(self) -> None:
        self._has_enough = True
        profiler, self._profiler = self._profiler, None
        profiler.__exit__(None, None, None)
        torch_profiler.let_go_of(profiler)

    # ------------------------------------------------------------------------------------------------- the first step
    @property
    def _records_first_too(self) -> bool:
        """Whether to record the first step although the schedule skips it.

        Not with DTensor, which finds the way of each operator in it: in a million Python calls, some 8 GB.
        """
        is_skipped = self._may_have_one_step and self._action_after(0) not in _RECORDING
        if not is_skipped or self._is_another_at_work or self._num_steps_waited or self._objects is None:
            return False
        return not any(torch_tensors.is_made_of_tensors(parameter) for _, parameter in self._objects.parameters())

    def leave_first_step(self) -> None:
        """Do not record the first step beside the schedule, if that is being done."""
        if self._first is not None and self.stage is Stage.FIRST:
            self._first.end(is_kept=False)
            self._profiler = self._new_profiler()

    def _begin_behind_first(self) -> None:
        """A step has ended, and the schedule's profiler has still to begin: now if it does not record the next step.

        Else as soon as nothing is open any more that was recorded of the first step; where that does not happen until
        the next one has ended, with a step between.
        """
        assert self._first is not None
        if self.stage is Stage.FIRST:
            self._first.end(is_kept=True)
        self._profiler = self._new_profiler()
        if self._action_after(1) not in _RECORDING:
            self._begin_schedule()
        elif self.num_steps_done == 1:
            self._first.when_closed(self._begin_between_steps)
        else:
            self._begin_schedule(self.num_steps_done)

    def _begin_between_steps(self) -> None:
        """Begin the schedule, called while the program is at work."""
        with self._never_the_loops_fault():
            self._begin_schedule()

    def _begin_schedule(self, num_steps_waited: int = 0) -> None:
        self._has_to_begin = False
        if self._first is not None:
            self._first.stop()
        self._num_steps_waited = num_steps_waited or int(self._is_another_at_work) * (self.num_steps_done + 1)
        torch_profiler.begin_at(self._profiler, self.num_steps_done)
        self._cycle_begins(is_recorded=self._is_recording)
        self._profiler.__enter__()

    def _first_ended(self, profiler: Any) -> None:
        """The first step was recorded, to its end or to that of the block."""
        self.module_names.update(compiled_wrapper_names(self.module_names))
        self._tracer(profiler)
        self._cost.has_read(self._tracer.num_events)
        torch_profiler.let_go_of_recording(profiler)
        self._look_for_meta()
        self._observed.look(self.device, is_walk=False)

    def _note_transforms(self) -> None:
        """torch.profiler, if it records shapes, keeps what torch.func wraps alive: from now on it records none.

        What is being recorded has begun with them.
        """
        self._observed.storages.sees_transforms |= torch_tensors.is_inside_transform()
        if self._observed.storages.sees_transforms and self._records_shapes:
            self._records_shapes = False
            self.leave_first_step()
            self._keeps_wrapped = self._is_recording
            torch_profiler.record_no_shapes(self._profiler)

    def _action_after(self, num_steps: int) -> ProfilerAction:
        return ProfilerAction(self._profiler.schedule(self._profiler.step_num + num_steps))

    def _cycle_begins(self, *, is_recorded: bool) -> None:
        """The next step is the first of all or will be recorded, and nothing is recording yet.

        The allocator's history is on in all steps, for one that fails.
        """
        if self.num_steps_done - self._history_since > _MOST_STEPS_OF_HISTORY:
            self.history.stop()
            self._history_since = self.num_steps_done
        self._go_over_to_history()
        self.history.start()
        self._observed.look(self.device, is_walk=is_recorded)

    def _go_over_to_history(self) -> None:
        """Where the session began on the CPU, go on with the history that is on since the program used CUDA, if any."""
        if not self.history.is_offered and (device := recorded_from_start()):
            self.history = AllocatorHistory(device, is_timed=not caveat_of(device))
            self.history.start()

    def _cycle_ended(self, profiler: Any) -> None:
        """The profiler has stopped recording, for now or for good."""
        is_next_recorded = profiler.schedule(profiler.step_num) in _RECORDING
        self.module_names.update(compiled_wrapper_names(self.module_names))
        self._tracer(profiler)
        self._dropped = None
        self._cost.has_read(self._tracer.num_events)
        torch_profiler.let_go_of_recording(profiler)
        if not is_next_recorded and not self._is_all_recorded:
            self._has_enough = self._cost.is_reading_long()
        self._look_for_meta()
        self._observed.look(self.device, is_walk=is_next_recorded and self._profiler is not None)
        self._graph_pools = GRAPH_CAPTURES.pools(self.device)
        self._go_over_to_history()
        if self.history.is_of_higher_peak:
            self.history.dump(self._tracer.num_cycles - 1)
        if self._is_all_recorded and not self._may_have_one_step:  # with found steps one more comes, which may fail
            self.history.stop()

    # ---------------------------------------------------------------------------------------------------- observations
    @property
    def thread(self) -> int:
        """The number of the thread that is recorded."""
        return self._thread

    @property
    def stage(self) -> Stage:
        """The part that the profile is in now."""
        if self._profiler is None:
            return Stage.OFF
        if self._first is not None and self._profiler is self._first.profiler:
            return Stage.FIRST
        if self._has_to_begin:
            return Stage.BEHIND_FIRST
        return Stage.RECORDING if self._profiler.current_action in _RECORDING else Stage.WAITING

    @property
    def _is_recording(self) -> bool:
        return self.stage in (Stage.FIRST, Stage.RECORDING)

    def observe_batch(self, batch: object) -> None:
        """Say that these tensors are the step's inputs."""
        if self._is_recording:
            with self._never_the_loops_fault():
                self._observed.batch(batch)

    def observe_gradients(self) -> None:
        """Look at the gradients, which are all there now. At an optimizer's step this happens by itself."""
        self._observed.all_gradients(are_due=True)

    @property
    def unused_parameters(self) -> tuple[str, ...] | None:
        """Parameters that require a gradient and had none at any optimizer step; None if none was looked at."""
        return self._observed.without_gradient

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with self._never_the_loops_fault():
            self._observed.before_step(optimizer, has_closure=has_closure(args, kwargs))

    def _after_optimizer_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if has_closure(args, kwargs):
            with self._never_the_loops_fault():
                self._observed.after_evaluations(optimizer)

    # --------------------------------------------------------------------------------------------------------- results
    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The models' parameters, also those that were made since the beginning; one that several share once."""
        self._describe_parameters()
        return self._parameters

    def _describe_parameters(self) -> None:
        if (objects := self._objects) is not None:
            names = {name for name, _ in objects.parameters()}
            described = (
                parameter
                for prefix, model in objects.models.items()
                for parameter in describe_parameters(model, prefix=prefix)
                if parameter.name in names
            )
            self._parameters = tuple({each.name: each for each in (*self._parameters, *described)}.values())

    @property
    def known(self) -> KnownStorages:
        """Return the storages observed so far."""
        return self._observed.storages.observations()

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what could not be observed."""
        findings = self._found()
        sentences = [*self.run_history.notes, *self._hooks.refused]
        if (fault := self._compile_watch.fault) is not None:
            sentences.append(
                "What torch.compile generated could not be read, so its memory has the name of its region: "
                f"{type(fault).__name__}: {fault}"
            )
        if kinds := self._observed.storages.unobserved:
            sentences.append(
                f"Tensors without an address of their own are known only by what operators did: {', '.join(kinds)}."
            )
        if (fault := GRAPH_CAPTURES.fault) is not None:
            sentences.append(f"The capture of a CUDA graph could not be recorded: {type(fault).__name__}: {fault}")
        if self._observed.storages.sees_transforms:
            sentences.append(_KEEPS_WRAPPED if self._keeps_wrapped else _RECORDS_NO_SHAPES)
        if self._of_threads:
            sentences.append(self._of_threads)
        if note := self._cost.note:
            sentences.append(note)
        if self._is_on_meta:
            sentences.append(_ON_META)
        cycles, device = findings.cycles if findings is not None else (), self.device_of(findings)
        has_kernels = caveat_of(device) or not cycles or any(cycle.recording.kernels is not None for cycle in cycles)
        lacking = devices.lacks(device, has_history=self.history.is_offered, has_kernels=bool(has_kernels))
        if lacking is not None:
            sentences.append(lacking)
        if findings is not None and findings.other_devices:
            sentences.append(_other_devices(findings.device, findings.other_devices, named=self.device_is_named))
        if sum(self._observed.storages.mapped_bytes.values()) >= _LEAST_MAPPED_BYTES:
            sentences.append(_mapped_files(self._observed.storages.mapped_bytes))
        foreign = self._observed.storages.foreign_bytes.items()
        sentences += [_foreign(device, size) for device, size in foreign if size >= _LEAST_MAPPED_BYTES]
        if self._observed.are_cut:
            sentences.append("More graphs are alive than were examined: part of what they keep may be missing.")
        return tuple(sentences)

    @property
    def has_recording(self) -> bool:
        """Whether at least one step was recorded."""
        return self._tracer.num_cycles > 0

    @property
    def findings(self) -> Findings:
        """The analysis of the recorded cycles; it runs when first asked for.

        Raises:
            RecordingError: Nothing was recorded.
        """
        alone, history = self._tracer.findings, self.run_history
        if self._joined != (alone, history):
            self._joined = alone, history
            found = history.joined(without_wrapped(alone) if self._keeps_wrapped else alone, self.known)
            if self._graph_pools and found.device == str(self.device):
                pools = graph_pools(self._graph_pools, found, known=self.known, module_names=self.module_names)
                found = replace(found, graph_pools=pools)
            self._findings = found
        assert self._findings is not None
        return self._findings

    @property
    def failed_allocation(self) -> FailedAllocation | None:
        """The last allocation that a device had no memory for, explained from the allocator's history."""
        findings = self._found()
        memory = devices.device_memory(self.device_of_failure)
        return self.run_history.failed_allocation(
            findings,
            self.known,
            str(self.device_of(findings)),
            self._at_failure,
            device_bytes=None if memory is None else memory[1],
        )

    def device_of(self, findings: Findings | None) -> torch.device:
        """The device that findings are about; where there are none, the one that the run is likely to be about."""
        return self.device if findings is None else torch.device(findings.device)

    def _found(self) -> Findings | None:
        with suppress(RecordingError):
            return self.findings
        return None

    @property
    def run_history(self) -> RunHistory:
        """The allocator's history so far, to be read and joined."""
        if self._run_history.snapshot is not self.history.snapshot:
            cycle, num_cycles = self.history.cycle, self._tracer.num_cycles
            num_later = max(0, num_cycles - 1 - cycle) if cycle is not None else None
            self._run_history = RunHistory(self.history.snapshot, num_later)
        return self._run_history


def _mapped_files(mapped_bytes: Mapping[str, int]) -> str:
    """A sentence on the mapped files that tensors of no model show."""
    largest = max(mapped_bytes, key=mapped_bytes.__getitem__)
    name = Path(largest).name + (f" and {some(len(mapped_bytes) - 1, 'other')}" if len(mapped_bytes) > 1 else "")
    return (
        f"{format_bytes(sum(mapped_bytes.values()))} in tensors outside of models are mapped from files ({name}). "
        "Mapped files are not allocated, and are not counted."
    )


def _foreign(device: str, size_bytes: int) -> str:
    """A sentence on tensors of a device whose memory its allocator has not reserved."""
    return (
        f"{format_bytes(size_bytes)} in tensors on {device} are in no memory of torch's allocator, such as pinned host "
        "memory that the GPU reads: they are in no row."
    )


def _other_devices(device: str, others: Mapping[str, int], *, named: bool) -> str:
    """A sentence on the other devices that the run used."""
    listed = ", ".join(f"{name} up to {format_bytes(most)}" for name, most in others.items())
    why = "which was named" if named else "which held most or ran out of memory"
    return (
        f"Screen and files are about {device}, {why}; the page has the others too. Other devices of the run held, each "
        f"at its own peak: {listed}."
    )
