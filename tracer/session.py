"""Profiles any training loop: schedule, profiler, allocator history, observations, and all of it off at the end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.profiler import ProfilerAction, ProfilerActivity

from tracer.analysis.findings import Findings, with_allocator_history
from tracer.analysis.snapshot_oom import OutOfMemory, last_failed_allocation
from tracer.capture.allocator_history import AllocatorHistory
from tracer.capture.known_storages import (
    KnownStorages,
    Role,
    StorageObserver,
    input_tensors,
    model_tensors,
    optimizer_tensors,
)
from tracer.capture.profiler_trace import ProfilerTrace
from tracer.errors import SnapshotError, TracerError
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import snapshot_in_memory
from tracer.timeline_tracer import TimelineTracer

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
