"""Profile any training loop by a recorder, the cycles that it recorded, and observations; all off at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from tracer.answers.failure import is_out_of_memory
from tracer.answers.findings import RunFindings
from tracer.capture.compile_watch import CompileWatch
from tracer.capture.first_step_looks import FirstStepLooks
from tracer.capture.graph_captures import GRAPH_CAPTURES
from tracer.capture.objects.call_hooks import CallHooks
from tracer.capture.objects.known_storages import Parameter
from tracer.capture.objects.live_tensors import FROZEN
from tracer.capture.objects.parameter_origins import describe_parameters
from tracer.capture.objects.storage_observer import input_tensors
from tracer.capture.objects.training_objects import Models, Optimizers, TrainingObjects
from tracer.capture.profiler.quiet_profiler import quiet_profiler
from tracer.capture.sources.source_files import project_root
from tracer.capture.torch_private import torch_tensors
from tracer.capture.torch_private.torch_history import RAISED
from tracer.capture.torch_private.torch_profiler import has_closure
from tracer.collector import paused_gc
from tracer.nested import leaves
from tracer.sessions.observations import Observations
from tracer.sessions.recorded_cycles import RecordedCycles, recording_notes
from tracer.sessions.recorder import Recorder
from tracer.sessions.schedule import DEFAULT_SCHEDULE, Schedule
from tracer.sessions.session import Session, Voice
from tracer.sessions.stages import Stage, Stages


class ProfileSession(Session):
    """Profiles any training loop: `with ProfileSession(model, optimizer) as session: ... session.step()`.

    Beside the profiler's recording it notes where parameters, buffers, gradients, optimizer state and batches lie, by
    address only, and records the allocator's history, where it has one, during the profiled steps. All of it is
    switched off when the block ends, also by an exception, and model and optimizer are let go.

    Attributes:
        device: The run's device; where none was named, the likeliest, and `findings.device` is the right one.
        stages: Which steps are recorded, and who decides that.
        recorder: torch's profiler.
        cycles: What was recorded.
        observed: Where tensors of models, optimizers and batches lay.
        voice: What is said, and when, where a program does not call the session itself.
    """

    recorder: Recorder
    _sees_calls = False  # Whether calls of the models tell their inputs, beside `observe_batch`

    def __init__(
        self,
        model: Models,
        optimizer: Optimizers = None,
        *,
        device: torch.device | str | None = None,
        schedule: Schedule = DEFAULT_SCHEDULE,
        settings: Mapping[str, object] | None = None,
        keep_recording: bool = False,
        voice: Voice | None = None,
    ) -> None:
        """Prepare; nothing is switched on.

        Args:
            model: The model, as the loop calls it; several by name.
            optimizer: One, several or none; one that is not named is found when it steps.
            voice: That of a script means that hooks call `step`, where torch may have begun to record an operator, and
                that there may be one step alone: the first is recorded too, until a second one has ended.
        """
        self.voice = voice or Voice()
        objects = TrainingObjects(model, optimizer)
        super().__init__(objects, device=device)
        self.settings, self.keep_recording = dict(settings or {}), keep_recording
        self.project_root = project_root(next(iter(objects.models.values()), None))
        # The program may have let go of its models when the results are put together.
        self._parameters: tuple[Parameter, ...] = ()
        self._guarded(self._describe_parameters)
        self.stages = Stages(
            replace(schedule, is_apart=True) if self.voice.is_of_script else schedule,
            may_have_one_step=self.voice.is_of_script,
            num_updates=self._num_updates(objects.optimizers),
        )
        self.observed = Observations(lambda: self._objects, lambda: self.stages.is_recording)
        self.compile_watch = CompileWatch()
        self.cycles = RecordedCycles(self.device, self.observed, self.compile_watch, is_named=device is not None)
        self.recorder = Recorder(
            self.stages, self.cycles, records_first=self._has_simple_parameters, guarded=self._never_the_loops_fault
        )
        self.hooks = CallHooks(
            models=objects.models.values(),
            on_call=self.observe_call if self._sees_calls else None,
            optimizers=objects.optimizers,
            before_step=self._before_optimizer_step,
            after_step=self._after_optimizer_step,
        )
        self._first_step = FirstStepLooks(self.cycles.driver, self.observed.module_names, self._never_the_loops_fault)
        self._on = ExitStack()  # Switches all off but the recorder and the allocator's history
        self._of_parent: object = None

    def _num_updates(self, optimizers: Sequence[torch.optim.Optimizer]) -> int:
        """Parameters that a script's only optimizer updates one after the other, as on the CPU; its steps end so."""
        if not self.voice.is_of_script or self.device.type != "cpu" or len(optimizers) != 1:
            return 0
        groups = optimizers[0].param_groups
        return sum(len(group["params"]) for group in groups if not (group.get("foreach") or group.get("fused")))

    def _has_simple_parameters(self) -> bool:
        """False with DTensor, which finds the way of each operator in the first step: in a million calls, some 8 GB."""
        parameters = self._objects.parameters() if self._objects is not None else ()
        return not any(torch_tensors.is_made_of_tensors(parameter) for _, parameter in parameters)

    # ------------------------------------------------------------------------------------------------- the life cycle
    def _switch_on(self) -> None:
        self._on.enter_context(quiet_profiler())
        self._on.callback(self.observed.storages.stop)
        watches: tuple[Any, ...] = (self.compile_watch, GRAPH_CAPTURES, FROZEN, self.hooks)
        for watch in watches:
            self._on.callback(watch.stop)
            watch.start()
        self._on.callback(RAISED.stop)
        RAISED.start()
        self.recorder.start()
        self._on.callback(self._first_step.stop)
        self._first_step.start(self._objects.models.values() if self._objects is not None else ())

    def wait_for_next_step(self) -> None:
        """Begin no recording in the optimizer's step that is under way.

        Where another recording has ended in it, its end would be written into that one's memory, which is free.
        """
        self.stages.num_steps_waited = 1 if self.stages.schedule.num_wait_steps else 2

    def _switch_off(self, error: BaseException | None) -> None:
        """Switch all off, whatever each of them raises; the first such thing is the session's fault."""
        is_recorded = self.stages.is_recording
        ran_out = error if error is not None and is_out_of_memory(error) else None
        # The collector frees nothing until the objects have been looked at. The look comes behind the profiler, which
        # would record its many calls.
        with paused_gc() if ran_out is not None else nullcontext():
            if ran_out is not None:
                if is_recorded:  # the history is read before the recording has ended, with its device
                    self.recorder.record_no_calls()
                self._guarded(lambda: self.cycles.dump_at_failure(is_recorded=is_recorded))
                self._guarded(lambda: self.cycles.look_where_memory_ran_out(ran_out))
                self.device = self.cycles.device
                if not is_recorded:
                    batch = self.observed.living_arguments()
                    self._guarded(lambda: self.observed.look(self.device, is_walk=True, batch=batch))
            self._guarded(lambda: self.recorder.stop(error))
            if ran_out is not None:
                self._guarded(lambda: self.cycles.look_at_objects(ran_out, self._is_evaluating, self.voice.run_again))
        self._guarded(lambda: self.cycles.use_dropped(self.stages.cost))
        history = self.cycles.history
        if history.snapshot is None and self.cycles.number:  # the first step was recorded alone
            self._guarded(lambda: history.dump(self.cycles.number - 1))
        self._guarded(history.stop)
        self._guarded(self._on.close)

    def _switch_off_in_child(self) -> None:
        self._of_parent = self.recorder.leave_to_parent()
        self._on.close()

    # ------------------------------------------------------------------------------------------------------ the steps
    @property
    def num_steps_done(self) -> int:
        """Steps that have ended."""
        return self.stages.num_steps

    def step(self) -> None:
        """End a step. Call it once per step of training, after the optimizer's step."""
        self._check_begun()
        self.stages.num_steps += 1
        if self.stages.now is not Stage.DONE:
            with self._never_the_loops_fault():
                self.recorder.step_ended()
                self._note_mode()
                self._first_step.stop()
                self.cycles.driver.look()
                self.hooks.renew()
                self._note_transforms()
                self.observed.moved_parameters()
                if self.stages.is_recording and not self.observed.has_stepped:
                    self.observed.all_gradients(are_due=False)
                self.observed.step_begins()
                self.recorder.begin_next()

    def goes_on_later(self) -> None:
        """Leave the allocator's history on at its end: a watch of what comes then goes on with it."""
        self.cycles.history.goes_on = True

    def end_last_step(self) -> None:
        """End the program's last step: a recording that would begin behind it would have nothing."""
        if self.stages.is_recording:
            self.step()
        else:
            self.stages.num_steps += 1

    def _note_transforms(self) -> None:
        """torch.profiler, if it records shapes, keeps what torch.func wraps alive: from now on it records none."""
        storages = self.observed.storages
        storages.sees_transforms |= torch_tensors.is_inside_transform()
        if storages.sees_transforms:
            self.recorder.record_no_shapes()

    # ---------------------------------------------------------------------------------------------------- observations
    def observe_batch(self, batch: object) -> None:
        """Say that these tensors are the step's inputs."""
        if self.stages.is_recording:
            with self._never_the_loops_fault():
                self.observed.storages.observe(input_tensors(batch))

    def observe_call(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Note the tensors that the model is called with; one that was computed by another model is not an input.

        torch leaves the keywords out where another hook on the same call has taken this one away.
        """
        if torch.compiler.is_compiling() or self.stages.now is Stage.DONE:
            return
        with self._never_the_loops_fault():
            self._note_transforms()
            given = [value for _, value in leaves([args, kwargs], torch.Tensor) if not value.requires_grad]
            if not self.stages.is_recording:
                self.observed.unrecorded_call(given)
            elif torch.is_grad_enabled() or not self.recorder.end_long_evaluation():
                self.observed.thread(self.recorder.thread)
                self.observed.call(given)

    def observe_gradients(self) -> None:
        """Look at the gradients, which are all there now. At an optimizer's step this happens by itself."""
        self.observed.all_gradients(are_due=True)

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with self._never_the_loops_fault():
            self._look_at_driver("beginning", optimizer)
            if evaluates := has_closure(args, kwargs):
                self.stages.cost.record_whole()
            self.observed.before_step(optimizer, has_closure=evaluates)

    def _look_at_driver(self, edge: str, optimizer: torch.optim.Optimizer) -> None:
        if self.stages.now is not Stage.DONE:
            self.cycles.driver.look(edge, f"the step of {type(optimizer).__name__}")

    def _after_optimizer_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        evaluates = has_closure(args, kwargs)
        if evaluates or self.cycles.driver.looks:
            with self._never_the_loops_fault():
                self._look_at_driver("end", optimizer)
                if evaluates:
                    self.observed.after_evaluations(optimizer)

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
    def notes(self) -> tuple[str, ...]:
        """Sentences on what could not be observed."""
        ended = (self.recorder.lost_in_threads, self.stages.cost.note)
        return tuple(recording_notes(self.cycles, self.observed, self.hooks, self.compile_watch, ended=ended))

    @property
    def findings(self) -> RunFindings:
        """The analysis of the recorded cycles; it runs when first asked for.

        Raises:
            RecordingError: Nothing was recorded.
        """
        return self.cycles.findings
