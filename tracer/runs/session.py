"""Profiles any training loop: schedule, profiler, allocator history, observations, and all of it off at the end."""

from __future__ import annotations

import itertools
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerAction, ProfilerActivity

from tracer.analysis.profiles.findings import Findings, with_allocator_history
from tracer.analysis.snapshots.oom import OutOfMemory, last_failed_allocation
from tracer.capture import torch_private
from tracer.capture.allocator_history import AllocatorHistory
from tracer.capture.call_hooks import CallHooks
from tracer.capture.known_storages import (
    KnownStorages,
    Role,
    StorageObserver,
    input_tensors,
    model_tensors,
    optimizer_tensors,
)
from tracer.capture.live_tensors import live_tensors
from tracer.capture.profiler_trace import ProfilerTrace
from tracer.capture.quiet_profiler import quiet_profiler
from tracer.errors import SnapshotError, TracerError
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import snapshot_in_memory
from tracer.timeline_tracer import TimelineTracer

# Memory runs out in the first step, or in the second, when there is optimizer state: the allocator's history, which
# costs some microseconds an allocation, is on in these even if they are not recorded.
_NUM_FIRST_STEPS = 2
HISTORY_LEFT_OUT = "Requested sizes and segments are left out: "
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


class ProfileSession:
    """Profiles any training loop: `with ProfileSession(model, optimizer) as session: ... session.step()`.

    Beside the profiler's recording it notes where parameters, buffers, gradients, optimizer state and batches lie, by
    address only, and on CUDA records the allocator's history during the profiled steps. All of it is switched off when
    the block ends, also by an exception, and model and optimizer are let go.

    A fault of the session's own never reaches the loop: it ends the profiling, with one warning, and is kept.

    Attributes:
        num_steps_done: Steps that have ended.
        unused_parameters: Parameters that want a gradient and had none when the optimizer stepped, by name.
        fault: What went wrong in the session itself, or None.
        module_names: Dotted names of the model's modules by `id()`.
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
        self._model: nn.Module | None = model
        self._optimizer = optimizer
        self.device = _with_index(torch.device(device)) if device is not None else device_of(model)
        self.schedule = schedule
        self.num_steps_done = 0
        self.unused_parameters: tuple[str, ...] | None = None
        self.fault: Exception | None = None
        self.history = AllocatorHistory(self.device)
        self._observer = StorageObserver()
        self.module_names = {id(module): name for name, module in model.named_modules()}
        self._tracer = TimelineTracer(
            device=self.device,
            module_names=self.module_names,
            known=self._observer.observations,
            keep_traces=trace,
        )
        self._profiler: Any = None
        self._quiet = ExitStack()
        self._hooks = self._call_hooks(model, optimizer)
        self._thread = threading.get_ident()
        self._history_columns: Snapshot | None = None
        self._findings: Findings | None = None
        self._odd_history: list[str] = []
        self._walks_were_cut = False

    def _call_hooks(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> CallHooks:
        """What tells of the optimizer's steps."""
        return CallHooks(
            optimizer=optimizer, before_step=self._before_optimizer_step, after_step=self._after_optimizer_step
        )

    # ------------------------------------------------------------------------------------------------- the life cycle
    def __enter__(self) -> Self:
        """Switch on."""
        try:
            self._switch_on()
        except BaseException:
            self._switch_off(None)
            self._let_go()
            raise
        return self

    def _switch_on(self) -> None:
        self._thread = threading.get_ident()
        self._quiet.enter_context(quiet_profiler())
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
        self._hooks.start()
        self._cycle_begins(is_recorded=self._action_after(0) in _RECORDING)
        self._profiler.__enter__()

    def _switch_off(self, error: BaseException | None) -> None:
        """Switch all off, whatever each of them raises; the first such thing is the session's fault."""
        profiler, self._profiler = self._profiler, None
        if error is not None:
            self._ours(self.history.dump)
        if profiler is not None:
            kind, trace = (type(error), error.__traceback__) if error is not None else (None, None)
            self._ours(lambda: profiler.__exit__(kind, error, trace))
            torch_private.let_go_of(profiler)
        self._ours(self._hooks.stop)
        self._ours(self.history.stop)
        self._ours(self._quiet.close)

    def _ours(self, work: Callable[[], object]) -> None:
        """Do something of the session's own; its failure is kept, and never the loop's."""
        try:
            work()
        except Exception as fault:
            self.fault = self.fault or fault

    def _let_go(self) -> None:
        """Keep nothing of the user's."""
        self._model = self._optimizer = None
        self._observer.stop()

    def step(self) -> None:
        """End a step. Call it once per step of training, after the optimizer's step."""
        self.num_steps_done += 1
        if self._profiler is None:
            return
        with self._never_the_loops_fault():
            self._hooks.renew()
            now, after = (self._action_after(more) for more in (0, 1))
            if self._is_recording and not self._hooks.see_steps:
                self._observe_gradients_left()
            if after in _RECORDING and now not in _RECORDING:
                self._cycle_begins(is_recorded=True)
            elif self.num_steps_done >= _NUM_FIRST_STEPS and now not in _RECORDING:
                self.history.stop()
            self._profiler.step()

    def _action_after(self, num_steps: int) -> ProfilerAction:
        """What the profiler does after so many more steps."""
        return ProfilerAction(self._profiler.schedule(self._profiler.step_num + num_steps))

    @contextmanager
    def _never_the_loops_fault(self) -> Iterator[None]:
        """What goes wrong inside ends the profiling and not the training, with one warning."""
        try:
            yield
        except Exception as fault:
            self.fault = self.fault or fault
            self._switch_off(None)
            warnings.warn(f"Profiling has stopped, and the loop goes on: {fault_text(self.fault)}", stacklevel=4)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch everything off; what was recorded until now is kept."""
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        had_fault = self.fault is not None
        self._switch_off(error)
        self._let_go()
        if self.fault is not None and not had_fault:
            tell_of_fault(self.fault, error, stacklevel=4)

    def _cycle_begins(self, *, is_recorded: bool) -> None:
        """The next step is the first of all or will be recorded, and nothing is recording yet."""
        self.history.start()
        self._observe_everything(is_walk=is_recorded)

    def _cycle_ended(self, profiler: Any) -> None:
        """The profiler has stopped recording, for now or for good."""
        is_next_recorded = profiler.schedule(profiler.step_num) in _RECORDING
        self._tracer(profiler)
        self._observe_everything(is_walk=is_next_recorded and self._profiler is not None)
        if self._tracer.num_cycles == self.schedule.num_repeats:
            self.history.dump()
        if not is_next_recorded:
            self.history.stop()

    # ---------------------------------------------------------------------------------------------------- observations
    def _observe_everything(self, *, is_walk: bool) -> None:
        """Look at model and optimizer; in a walk, which is at the beginning of a cycle, at all that Python holds."""
        if self._model is None:
            return
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        state = optimizer_tensors(self._optimizer, names) if self._optimizer is not None else ()
        held = live_tensors() if is_walk else None
        self._walks_were_cut |= held is not None and not held.is_complete
        rest = held.tensors if held is not None else ()
        self._observer.observe(itertools.chain(model_tensors(self._model), state, rest), is_walk=is_walk)

    @property
    def _is_recording(self) -> bool:
        return self._profiler is not None and self._profiler.current_action in _RECORDING

    def _note_thread(self) -> None:
        """Remember the thread that calls the model if it is not the one that the profiler records."""
        if threading.get_ident() != self._thread:
            self._observer.threads[threading.current_thread().name] = None

    def observe_batch(self, batch: object) -> None:
        """Say that these tensors are the step's inputs."""
        if self._is_recording:
            with self._never_the_loops_fault():
                self._observer.observe(input_tensors(batch))

    def observe_gradients(self) -> None:
        """Look at the gradients. At the optimizer's step this happens by itself."""
        gradients = self._gradients()
        self.unused_parameters = tuple(name for name, gradient in gradients if gradient is None)
        self._observe_gradients(gradients)

    def _observe_gradients_left(self) -> None:
        """At the end of a step whose optimizer nobody sees: what there is; that there is none says nothing."""
        self._observe_gradients(self._gradients())

    def _gradients(self) -> list[tuple[str, Tensor | None]]:
        """What each parameter that wants a gradient has now; asked anew, since a loop may replace its parameters."""
        if self._model is None:
            return []
        wanting = ((name, one) for name, one in self._model.named_parameters() if one.requires_grad)
        return [(name, parameter.grad) for name, parameter in wanting]

    def _observe_gradients(self, gradients: Iterable[tuple[str, Tensor | None]]) -> None:
        if self._is_recording:
            self._observer.observe((Role.GRADIENT, name, grad) for name, grad in gradients if grad is not None)

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not _has_closure(args, kwargs):
            with self._never_the_loops_fault():
                self.observe_gradients()

    def _after_optimizer_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """A closure makes the gradients during the optimizer's step, as LBFGS's does, or Lightning's."""
        if _has_closure(args, kwargs):
            with self._never_the_loops_fault():
                self.observe_gradients()

    # --------------------------------------------------------------------------------------------------------- results
    @property
    def known(self) -> KnownStorages:
        """What was observed so far."""
        return self._observer.observations()

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what could not be observed."""
        sentences = [*self._odd_history, *self._hooks.refused]
        if kinds := self._observer.unobserved:
            sentences.append(
                f"Tensors without an address of their own are known only by what operators did: {', '.join(kinds)}."
            )
        if self._observer.sees_transforms:
            sentences.append(
                "torch.profiler keeps what grad and vmap of torch.func wrap alive until a cycle has ended: the peak is "
                "larger by that than without a profiler."
            )
        if self._walks_were_cut:
            sentences.append("More graphs are alive than were followed: some of what they keep may be missing.")
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
            note = f"{HISTORY_LEFT_OUT}{error}"
            if note not in self._odd_history:
                self._odd_history.append(note)

    @property
    def trace(self) -> ProfilerTrace | None:
        """The profiler's trace of the cycle with the largest peak; None if it was not asked for.

        Raises:
            RecordingError: Nothing was recorded.
        """
        return self._tracer.trace_of(self.findings.worst)


def fault_text(fault: Exception) -> str:
    """What went wrong in the session: a sentence for people, or a traceback for whoever mends this program."""
    if isinstance(fault, TracerError):
        return f"{fault} {fault.hint}" if fault.hint else str(fault)
    return "an internal fault.\n" + "".join(traceback.format_exception(fault))


def tell_of_fault(fault: Exception, error: BaseException | None, *, stacklevel: int) -> None:
    """Say it with a warning at the end of the user's block, or in a note to the exception that ends the block."""
    if error is not None:
        error.add_note(f"The profile is not complete: {fault_text(fault)}")
    else:
        warnings.warn(f"The profile is not complete: {fault_text(fault)}", stacklevel=stacklevel)


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
