"""A profiled run from start to finish: schedule, profiler, allocator history, timers, and what happens on failure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerAction, ProfilerActivity

from tracer.analysis.findings import Findings, with_allocator_history
from tracer.analysis.snapshot_oom import OutOfMemory, last_failed_allocation
from tracer.capture.allocator_history import AllocatorHistory
from tracer.capture.error_place import error_place
from tracer.capture.known_storages import (
    KnownStorages,
    Role,
    StorageObserver,
    input_tensors,
    model_tensors,
    optimizer_tensors,
)
from tracer.capture.parameter_origins import Line, Parameter, describe_parameters
from tracer.capture.phase_timing import PhaseTimings, time_phases
from tracer.capture.profiler_trace import ProfilerTrace
from tracer.capture.project_files import project_root
from tracer.errors import RecordingError, SnapshotError, TracerError
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import snapshot_in_memory
from tracer.termination import Termination
from tracer.timeline_tracer import TimelineTracer

Progress = Callable[[int, int], None]
# Memory runs out in the first step, or in the second, when there is optimizer state: the allocator's history, which
# costs some microseconds an allocation, is on in these even if they are not recorded.
_NUM_FIRST_STEPS = 2
_RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which steps are profiled: `repeats` cycles of wait, warmup and active steps."""

    num_wait_steps: int = 1
    num_warmup_steps: int = 1
    num_active_steps: int = 3
    num_repeats: int = 2

    def __post_init__(self) -> None:
        if self.num_wait_steps < 0 or self.num_warmup_steps < 0:
            raise TracerError("The numbers of wait and warmup steps cannot be negative.", hint="Use 0 or more.")
        if self.num_active_steps < 1 or self.num_repeats < 1:
            raise TracerError("A run needs at least 1 active step and 1 repeat.", hint="Use 1 or more.")

    @property
    def num_steps(self) -> int:
        """Steps of a whole run: all cycles, and one more, so that the last one is complete whatever torch's version."""
        return self.num_repeats * (self.num_wait_steps + self.num_warmup_steps + self.num_active_steps) + 1

    def for_torch(self) -> Any:
        """As `torch.profiler.profile` takes it."""
        return torch.profiler.schedule(
            wait=self.num_wait_steps,
            warmup=self.num_warmup_steps,
            active=self.num_active_steps,
            repeat=self.num_repeats,
        )


class Workload(Protocol):
    """What a training step is made of. One step: `next_batch`, `forward`, `backward`, `optimizer_step`."""

    @property
    def model(self) -> nn.Module:
        """The module whose parameters and buffers are named."""

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """What updates them, if anything does."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""

    def next_batch(self) -> Any:
        """A new batch on the device."""

    def forward(self, batch: Any) -> Any:
        """The loss, a tensor; None if there is none, as in inference."""

    def backward(self, loss: Any) -> None:
        """Fill the gradients; nothing without a loss."""

    def optimizer_step(self) -> None:
        """Update the parameters and let go of the gradients."""

    def copy(self) -> Workload | None:
        """The same on copies of model and optimizer; None if that cannot be, and its phases are not timed."""


class ProfileSession:
    """Profiles any training loop: `with ProfileSession(model, optimizer) as session: ... session.step()`.

    Beside the profiler's recording it notes where parameters, buffers, gradients, optimizer state and batches lie, by
    address only, and on CUDA records the allocator's history during the profiled steps. All of it is switched off when
    the block ends, also by an exception.

    Attributes:
        num_steps_done: Steps that have ended.
        unused_parameters: Parameters that want a gradient and had none when the optimizer stepped, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        device: torch.device | str | None = None,
        schedule: Schedule = Schedule(),
        trace: bool = False,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.device = _with_index(torch.device(device)) if device is not None else device_of(model)
        self.schedule = schedule
        self.num_steps_done = 0
        self.unused_parameters: tuple[str, ...] | None = None
        self.history = AllocatorHistory(self.device)
        self._observer = StorageObserver()
        self._parameters = [
            (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
        ]
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._tracer = TimelineTracer(
            device=self.device,
            module_names={id(module): name for name, module in model.named_modules()},
            known=self._observer.observations,
            keep_traces=trace,
        )
        self._profiler: Any = None
        self._hooks: list[Any] = []
        self._history_columns: Snapshot | None = None
        self._findings: Findings | None = None
        self.notes: list[str] = []

    # ------------------------------------------------------------------------------------------------- the life cycle
    def __enter__(self) -> Self:
        """Switch on."""
        try:
            self._switch_on()
        except BaseException:
            self._switch_off()
            raise
        return self

    def _switch_on(self) -> None:
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(
            activities=activities,
            schedule=self.schedule.for_torch(),
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
            on_trace_ready=self._cycle_ended,
        )
        if self.optimizer is not None:
            self._hooks.append(self.optimizer.register_step_pre_hook(self._before_optimizer_step))
            self._hooks.append(self.optimizer.register_step_post_hook(self._after_optimizer_step))
        self._cycle_begins()
        self._profiler.__enter__()

    def _switch_off(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.history.stop()

    def step(self) -> None:
        """End a step. Call it once per step of training, after the optimizer's step."""
        self.num_steps_done += 1
        now, after = (self._profiler.schedule(self._profiler.step_num + more) for more in (0, 1))
        if after in _RECORDING and now not in _RECORDING:
            self._cycle_begins()
        elif self.num_steps_done >= _NUM_FIRST_STEPS and now not in _RECORDING:
            self.history.stop()
        self._profiler.step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch everything off; what was recorded until now is kept."""
        with ExitStack() as last:  # each of them, whatever those before it raise
            last.callback(self._switch_off)
            last.callback(self._profiler.__exit__, kind, error, trace)
            if error is not None:
                self.history.dump()

    def _cycle_begins(self) -> None:
        """The next step is the first of all or will be recorded, and nothing is recording yet."""
        self.history.start()
        self._observe_everything()

    def _cycle_ended(self, profiler: Any) -> None:
        """The profiler has stopped recording, for now or for good."""
        self._tracer(profiler)
        self._observe_everything()
        if self._tracer.num_cycles == self.schedule.num_repeats:
            self.history.dump()
        if profiler.schedule(profiler.step_num) not in _RECORDING:
            self.history.stop()

    # ---------------------------------------------------------------------------------------------------- observations
    def _observe_everything(self) -> None:
        state = optimizer_tensors(self.optimizer, self._names) if self.optimizer is not None else ()
        self._observer.observe(itertools.chain(model_tensors(self.model), state))

    def observe_batch(self, batch: object) -> None:
        """Say that these tensors are the step's inputs."""
        if self._profiler.current_action in _RECORDING:
            self._observer.observe(input_tensors(batch))

    def observe_gradients(self) -> None:
        """Look at the gradients. At the optimizer's step this happens by itself."""
        gradients = [(name, parameter.grad) for name, parameter in self._parameters]
        self.unused_parameters = tuple(name for name, gradient in gradients if gradient is None)
        if self._profiler.current_action in _RECORDING:
            self._observer.observe((Role.GRADIENT, name, grad) for name, grad in gradients if grad is not None)

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not _has_closure(args, kwargs):
            self.observe_gradients()

    def _after_optimizer_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """A closure makes the gradients during the optimizer's step, as LBFGS's does, or Lightning's."""
        if _has_closure(args, kwargs):
            self.observe_gradients()

    # --------------------------------------------------------------------------------------------------------- results
    @property
    def known(self) -> KnownStorages:
        """What was observed so far."""
        return self._observer.observations()

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
        alone = self._tracer.findings
        if self._findings is None or len(self._findings.cycles) != len(alone.cycles):
            self._findings = alone
            with self._noting_odd_history():
                if (columns := self._allocator_columns()) is not None:
                    self._findings = with_allocator_history(alone, columns, known=self.known)
        return self._findings

    @property
    def failed_allocation(self) -> OutOfMemory | None:
        """The last allocation that the device had no memory for, explained from the allocator's history; CUDA only."""
        found = None
        held = self.known.words_at(str(self.device))
        with self._noting_odd_history():
            if (columns := self._allocator_columns()) is not None:
                found = last_failed_allocation(columns, self.device.index or 0, held=held)
        return found

    def _allocator_columns(self) -> Snapshot | None:
        """The allocator's history as columns."""
        if self._history_columns is None and self.history.snapshot is not None:
            self._history_columns = snapshot_in_memory(self.history.snapshot)
        return self._history_columns

    @contextmanager
    def _noting_odd_history(self) -> Iterator[None]:
        """That a new torch writes another history, or one that contradicts itself, is a note and not a failure."""
        try:
            yield
        except SnapshotError as error:
            note = f"Requested sizes and segments are left out: {error}"
            if note not in self.notes:
                self.notes.append(note)

    @property
    def trace(self) -> ProfilerTrace | None:
        """The profiler's trace of the cycle with the largest peak; None if it was not asked for.

        Raises:
            RecordingError: Nothing was recorded.
        """
        return self._tracer.trace_of(self.findings.worst)


def _has_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an optimizer's `step(closure)` was given one; the optimizer itself is the first argument."""
    return any(value is not None for value in (*args[1:2], kwargs.get("closure")))


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's first parameter or buffer, the CPU for one without either."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _with_index(device: torch.device) -> torch.device:
    """`cuda` is the current device, as everywhere in torch; recordings name it with its number."""
    if str(device) != "cuda":
        return device
    return torch.device("cuda", torch.cuda.current_device())


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a run early.

    Attributes:
        error: The exception.
        step: Number of the step in which it happened, from 0.
        allocator: The allocator's state right after, by name, in bytes.
        place: File and line of the user's own code where it arose, if there is one.
        in_timing_pass: Whether all steps had ended, and their phases were being timed.
    """

    error: BaseException
    step: int
    allocator: Mapping[str, int]
    place: tuple[str, int] | None = None
    in_timing_pass: bool = False

    @classmethod
    def of(cls, error: BaseException, session: ProfileSession, *, in_timing_pass: bool = False) -> Failure:
        """What an exception says, without the traceback, which keeps the tensors of the step alive."""
        place, state = error_place(error), allocator_state(session.device)
        return cls(error.with_traceback(None), session.num_steps_done, state, place, in_timing_pass)

    @property
    def out_of_memory(self) -> bool:
        """Whether the device had no memory left."""
        return _is_out_of_memory(self.error)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


@dataclass(frozen=True, slots=True, eq=False)
class RunResults:
    """Everything that a run brought to light.

    Attributes:
        findings: Of the recorded cycles; None if not one step was recorded.
        timings: Of the timing pass; None if there was none.
        snapshot: The allocator's own, on CUDA; elsewhere None.
        known: Objects that were observed.
        unused_parameters: Names of parameters without gradient; None where nobody looked.
        losses: One per step.
        num_steps: Steps that ended.
        failure: What ended the run early, or None.
        settings: What the run was made with, by name.
        notes: Sentences on what could not be measured.
        parameters: The model's, with the lines that constructed them.
        project_root: The folder from which reports name files.
        failed_allocation: What the device had no memory for, explained; None where the allocator's history has none.
        trace: The profiler's own, of the cycle with the largest peak; None if it was not asked for.
    """

    findings: Findings | None
    timings: PhaseTimings | None
    snapshot: dict[str, Any] | None
    known: KnownStorages
    unused_parameters: tuple[str, ...] | None
    losses: tuple[float, ...]
    num_steps: int
    failure: Failure | None
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    project_root: Path | None = None
    failed_allocation: OutOfMemory | None = None
    trace: ProfilerTrace | None = None


def run_profile(
    workload: Workload,
    *,
    schedule: Schedule,
    timing: bool = True,
    trace: bool = False,
    progress: Progress = lambda done, total: None,
    settings: Mapping[str, object] | None = None,
    parameter_lines: Mapping[str, tuple[Line, ...]] | None = None,
    root: Path | None = None,
    termination: Termination | None = None,
) -> RunResults:
    """Train a workload under the profiler, then time its phases on copies, without profiler.

    An exception in a step, out of memory, Ctrl-C and `sys.exit` among them, ends the run; what was recorded until then
    is returned, with the failure named.

    Args:
        workload: What a step does.
        schedule: Which steps are profiled.
        timing: Whether to run the timing pass.
        trace: Whether to keep the profiler's own trace.
        progress: Called with steps done and steps in all.
        settings: What to remember of the run.
        parameter_lines: Where each parameter was constructed, by dotted name; else its class's source is searched.
        root: The folder from which reports name files; by default that of the model's code.
        termination: That is watching; it is on hold when this returns, so that the results can be written.
    """
    termination = termination or Termination()
    session = ProfileSession(workload.model, workload.optimizer, device=workload.device, schedule=schedule, trace=trace)
    losses: list[float] = []
    failure: Failure | None = None
    timings: PhaseTimings | None = None
    notes: list[str] = []
    num_timing_steps = _NUM_TIMING_STEPS if timing else 0
    total = schedule.num_steps + num_timing_steps
    try:
        with session:
            try:
                for _ in range(schedule.num_steps):
                    losses += _step(workload, session)
                    session.step()
                    progress(session.num_steps_done, total)
            finally:
                termination.hold()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        failure = Failure.of(error, session)
    findings = _findings(session, failure, notes)
    failed = session.failed_allocation if failure is not None and failure.out_of_memory else None
    if timing and failure is None:
        try:
            termination.resume()
            timings = _time(workload, lambda done: progress(schedule.num_steps + done, total), notes)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            if _is_out_of_memory(error):
                notes.append(
                    "The timing pass needs a second copy of the model, for which the device had no memory left."
                )
            else:
                failure = Failure.of(error, session, in_timing_pass=True)
        finally:
            termination.hold()
    return RunResults(
        findings=findings,
        timings=timings,
        snapshot=session.history.snapshot,
        known=session.known,
        unused_parameters=session.unused_parameters,
        losses=tuple(losses),
        num_steps=session.num_steps_done,
        failure=failure,
        settings=dict(settings or {}),
        notes=(*notes, *session.notes),
        parameters=describe_parameters(workload.model, dict(parameter_lines or {})),
        project_root=root or project_root(workload.model),
        failed_allocation=failed,
        trace=session.trace if findings is not None else None,
    )


_NUM_TIMING_WARMUP, _NUM_TIMING_MEASURED = 2, 6
_NUM_TIMING_STEPS = _NUM_TIMING_WARMUP + _NUM_TIMING_MEASURED


def _findings(session: ProfileSession, failure: Failure | None, notes: list[str]) -> Findings | None:
    """What was recorded, explained; a run that failed before anything was allocated is told by its failure."""
    if not session.has_recording:
        return None
    try:
        return session.findings
    except RecordingError as error:
        if failure is None:
            raise
        notes.append(str(error))
        return None


def _step(workload: Workload, session: ProfileSession) -> list[float]:
    """One step; its loss, or nothing where there is none."""
    value = 0.0
    for _ in range(num_micro_batches(workload)):
        batch = workload.next_batch()
        session.observe_batch(batch)
        loss = workload.forward(batch)
        workload.backward(loss)
        value += float("nan") if loss is None else float(loss.detach())
    if workload.optimizer is None and loss is not None:
        session.observe_gradients()
    workload.optimizer_step()
    return [] if loss is None else [value]


def num_micro_batches(workload: Workload) -> int:
    """Forward and backward passes before each step of the optimizer; 1 for a workload that does not say."""
    return int(getattr(workload, "num_micro_batches", 1))


@contextmanager
def _random_states_kept(device: torch.device) -> Iterator[None]:
    """Put torch's, numpy's and Python's random states back when the block ends."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _copy(workload: Workload, notes: list[str]) -> Workload | None:
    """A workload's copy; that a model cannot be copied is a note, not a failure of the run."""
    try:
        copy = workload.copy()
    except Exception as error:
        if _is_out_of_memory(error):
            raise
        notes.append(f"The phases were not timed: copying the model raised {type(error).__name__}: {error}")
        return None
    if copy is None:
        notes.append("The phases were not timed: they cannot be started one by one.")
    elif num_micro_batches(copy) > 1:
        notes.append(f"The phases were timed with one of a step's {num_micro_batches(copy)} micro-batches.")
    return copy


def _time(workload: Workload, progress: Callable[[int], None], notes: list[str]) -> PhaseTimings | None:
    """The timing pass, on copies, with the random state put back afterwards; None if there can be no copy."""
    with _random_states_kept(workload.device):
        copy = _copy(workload, notes)
        if copy is None:
            return None
        try:
            batch = [copy.next_batch()]
        except StopIteration:
            notes.append("The phases were not timed: the workload had no batch left.")
            return None
        done = itertools.count(1)

        def after_step() -> None:
            with suppress(StopIteration):  # the last batch of a source that has an end serves for the rest
                batch[0] = copy.next_batch()
            progress(next(done))

        return time_phases(
            forward=lambda: copy.forward(batch[0]),
            backward=copy.backward,
            optimizer_step=copy.optimizer_step,
            device=copy.device,
            num_warmup_steps=_NUM_TIMING_WARMUP,
            num_steps=_NUM_TIMING_MEASURED,
            after_step=after_step,
        )


def allocator_state(device: torch.device) -> dict[str, int]:
    """What the allocator says of itself now, in bytes, which changes nothing; empty on the CPU and on a dead device."""
    if device.type != "cuda":
        return {}
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # an assertion in a kernel has stopped the device: every call repeats that error
        return {}
    return {
        "allocated": torch.cuda.memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
        "largest allocated so far": torch.cuda.max_memory_allocated(device),
        "free on the device": free,
        "device": total,
    }
