"""The flight recorder: a training watched for as long as it lasts, and explained at once when something happens."""

from __future__ import annotations

import itertools
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from tracer.answers.failure import is_out_of_memory
from tracer.answers.files import SNAPSHOT, WATCH_JSON
from tracer.answers.watch_report import END_OF_RUN, OUT_OF_MEMORY, Event, WatchReport
from tracer.capture.device import devices
from tracer.capture.objects.call_hooks import CallHooks
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.training_objects import Models, Optimizers, TrainingObjects
from tracer.capture.sources.source_files import forget_files
from tracer.capture.step_columns import StepColumns
from tracer.capture.torch_private import torch_history
from tracer.collector import paused_gc
from tracer.errors import Terminated
from tracer.exporters.files import remove
from tracer.nested import leaves
from tracer.sessions.folder import SessionFolder
from tracer.sessions.on_null_gpu import allocator_history
from tracer.sessions.session import Screen, Session, Voice, checked_screen
from tracer.sessions.watch_answer import WATCH_TEXT, WatchAnswer, finish_rank, leave_of_rank, write_watch
from tracer.sessions.watch_report import Moment
from tracer.sessions.watched_steps import WatchedSteps


class AskingSignal:
    """Notes the signal, for when an answer can be written: the interrupted code may hold a lock that this needs."""

    def __init__(self, number: int | None) -> None:
        self._number = number
        self._came: signal.Signals | None = None

    def start(self) -> Callable[[], object]:
        """Listen, if nobody else does; return a function that ends it."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._number is None or not is_main or signal.getsignal(self._number) is not signal.SIG_DFL:
            return lambda: None
        number = self._number
        signal.signal(number, self._arrived)
        return lambda: signal.signal(number, signal.SIG_DFL)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self._came = signal.Signals(number)

    def take(self) -> str:
        """Return the name of the signal that has come; empty where none has since the last time."""
        came, self._came = self._came, None
        return came.name if came is not None else ""


MAX_ENTRIES: Final = 100_000
"""Entries of the allocator's history, some 50 steps of a large model; half a KiB each with its stack."""
_FILES: Final = (WATCH_TEXT, WATCH_JSON, SNAPSHOT.file_name)
_MAX_EVENTS: Final = 20


class TrainingWatch(Session):
    """Watches any training, without a profiler, and explains its memory when something happens.

        with watch_training(model, optimizer, save_dir="watch") as watch:
            for batch in loader:
                ...
                watch.step()

    The allocator's history is on as a ring: it keeps the last entries and forgets the older ones. A few counters are
    read at each step. When memory runs out, an exception or SIGTERM ends the block, a signal or `write` asks for it,
    or memory is seen to grow from step to step, watch.txt, watch.json and memory_snapshot.pkl are written: what is in
    use, of which kind, by which line, who holds what should be gone, and when memory ends at this rate. An error of
    memory that the program catches is explained when its step ends.

    A device without a history, such as the CPU, is watched by its counters alone, and the report says what is missing.
    Observing changes nothing: losses, parameters and random states are those of a run without it.

    Attributes:
        device: The device that is watched.
        report: What was written last; None so far.
    """

    kind: Literal["watch"] = "watch"  # Of the sessions of a script
    _name = "The watch"
    _folder: SessionFolder
    report: WatchReport | None = None
    explains_variables = True
    num_steps_done = 0
    _found_before: WatchReport | None = None  # The latest report with growth

    def __init__(
        self,
        model: Models,
        optimizer: Optimizers = None,
        *,
        save_dir: str | Path = "profiler_outputs",
        device: torch.device | str | None = None,
        max_entries: int = MAX_ENTRIES,
        on_signal: int | None = getattr(signal, "SIGUSR1", None),
        screen: Screen | bool = "short",
        settings: Mapping[str, object] | None = None,
        voice: Voice | None = None,
        is_later: bool = False,
    ) -> None:
        """Prepare; nothing is switched on.

        Args:
            model: The model, as the loop calls it; several by name.
            optimizer: One, several or none; one that is not named is found when it steps.
            max_entries: Most entries of the allocator's history that are kept.
            on_signal: Asks for the files while the run goes on, if nobody else handles it; None for no signal. They are
                written when the model is next called, an optimizer steps, or the step ends.
            screen: What to say, on rank 0 only, as for `profile_training`.
            voice: What is said, and when, where a program does not call the watch itself.
            is_later: Whether it watches what comes after recorded steps: it reports only if memory runs out or grows.

        Raises:
            OutputError: The folder cannot be written to.
            UsageError: There is no such screen.
        """
        self.voice, self._is_later = voice or Voice(), is_later
        objects = TrainingObjects(model, optimizer)
        super().__init__(objects, device=device)
        self._folder = SessionFolder(save_dir)
        self._answer = WatchAnswer(self._folder, self.voice, checked_screen(screen))
        self._settings = dict(settings or {})
        self._history = allocator_history(self.device, max_entries=max_entries, stacks_of_frees=False)
        self._steps = WatchedSteps(self.device, max_entries=max_entries)
        self._hooks = CallHooks(
            models=objects.models.values(),
            on_call=self.observe_call,
            optimizers=objects.optimizers,
            before_step=self._before_optimizer_step,
        )
        self._batch: list[tuple[str, weakref.ref[Tensor]]] = []
        self._events: list[Event] = []
        self._asking, self._on = AskingSignal(on_signal), ExitStack()
        self._is_on = self._is_writing = False
        self.voice.of_optimizers(objects)

    # ---------------------------------------------------------------------------------------------------- on and off
    @property
    def explained_in(self) -> Path | None:
        """The file that says it; None where there was nothing to say."""
        return self.folder / WATCH_TEXT if self.report is not None else None

    def _switch_on(self) -> None:
        if self._is_later:
            for name in _FILES:  # an earlier run's
                remove(self.folder / name)
        forget_files()
        watches: tuple[Any, ...] = (self._history, self._hooks, torch_history.RAISED)
        for watch in watches:
            self._on.callback(watch.stop)
            watch.start()
        self._steps.start()
        self._is_on = True
        self._on.callback(self._asking.start())

    def _write_if_asked(self) -> None:
        if name := self._asking.take():
            self._write_within_loop(f"asked for by {name}")

    def _end(self, error: BaseException | None) -> None:
        """Explain what has ended the run."""
        self._write_if_asked()
        if self._is_on:
            self._guarded(lambda: self._last_words(error))
        super()._end(error)

    def _last_words(self, error: BaseException | None) -> None:
        if self._is_later and (error is None or not is_out_of_memory(error)):
            return
        if error is None:
            if self.num_steps_done:
                self._write(END_OF_RUN, with_history=self._steps.grow, is_last=True)
            return
        self._write(_event_of(error), error, is_last=True)

    def _write_before_the_end(self, error: Terminated) -> None:
        if self._is_on:
            self._last_words(error)

    def _switch_off(self, error: BaseException | None) -> None:
        self._is_on = False
        self._on.close()

    # ------------------------------------------------------------------------------------------------------ the steps
    def step(self) -> None:
        """End a step. Call it once per step of training, after the optimizer's step."""
        self._check_begun()
        self.num_steps_done += 1
        if self._is_on:
            with self._never_the_loops_fault():
                self._end_step()
        self._write_if_asked()

    def _end_step(self) -> None:
        self._note_mode()
        self._hooks.renew()
        if self._objects is not None:
            self._objects.forget_names()
        for event in self._steps.end_step(self.num_steps_done, has_history=self._history.is_offered):
            self._write(event)

    def observe_batch(self, batch: object) -> None:
        """Say that these tensors are the step's inputs; what the model is called with is known without."""
        self._batch = [(name, weakref.ref(tensor)) for name, tensor in leaves(batch, Tensor, "batch")]

    def observe_call(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        """Say that a model is being called with these; of those that were named it is known without."""
        if self._is_on and not torch.compiler.is_compiling():
            values = (*args, *kwargs.values()) if kwargs else args
            tensors: list[Tensor] = []
            for value in values:  # most often they are tensors: nothing is walked then
                tensors += [value] if isinstance(value, Tensor) else [inner for _, inner in leaves(value, Tensor)]
            self._batch = [("batch", weakref.ref(tensor)) for tensor in tensors if not tensor.requires_grad]
            self._write_if_asked()

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_on:
            if self._objects is not None:
                self._objects.saw_stepping(optimizer)
            self._write_if_asked()

    # --------------------------------------------------------------------------------------------------- what is told
    @property
    def columns(self) -> StepColumns:
        """The counters of the steps so far."""
        return self._steps.columns

    def write(self, why: str = "asked for") -> WatchReport | None:
        """Explain the run as it is now, and write the files; None where the watch is off, or has written too often."""
        before = self.report
        self._write_within_loop(why)
        return self.report if self.report is not before else None

    def _write_within_loop(self, event: str) -> None:
        if self._is_on:
            with self._never_the_loops_fault():
                self._write(event)

    def _write(
        self, what: str, error: BaseException | None = None, *, with_history: bool = True, is_last: bool = False
    ) -> None:
        """Explain and write, unless that is being done, or was done too often."""
        if self._is_writing or (len(self._events) >= _MAX_EVENTS and error is None):
            return
        self._is_writing = True
        try:
            self._events.append(Event(what, self.num_steps_done, time.time_ns()))
            if with_history:
                self._history.dump()
            snapshot = self._history.snapshot if with_history else None
            with paused_gc():
                self.report = report = self._moment(error, snapshot).explained()
            if report.has_growth:
                self._found_before = report
            self._answer.has(report, is_last=is_last)
            write_watch(report, snapshot, self.folder)
            leave_of_rank(self._folder, report, self.device, is_later=self._is_later)
        finally:
            self._history.snapshot = None
            self._is_writing = False

    def _finish(self, error: BaseException | None) -> None:
        finish_rank(self._folder, self.report, error, num_steps=self.num_steps_done, is_later=self._is_later)

    def tell(self, explained_in: Path | None = None) -> tuple[str, ...]:
        """Print the last report of a script, when that has ended; once."""
        self._answer.tell()
        return ()

    def _moment(self, error: BaseException | None, snapshot: Mapping[str, Any] | None) -> Moment:
        missing = _missing(self.device, has_history=self._history.is_offered, has_counters=self._steps.has_allocator)
        return Moment(
            device=self.device,
            events=tuple(self._events),
            error=error,
            counted=self._steps,
            snapshot=snapshot,
            tensors=self._tensors,
            notes=[*self._hooks.refused, *missing],
            settings=self._settings,
            found_before=self._found_before,
            is_evaluating=self._is_evaluating(error),
            run_again=self.voice.run_again,
        )

    def _tensors(self) -> Iterator[tuple[Role, str, Tensor]]:
        objects = self._objects
        batch = ((name, tensor()) for name, tensor in self._batch)
        known = ((Role.INPUT, name, tensor) for name, tensor in batch if tensor is not None)
        return itertools.chain(objects.tensors() if objects is not None else (), known)


def _event_of(error: BaseException) -> str:
    """Return the words for an exception that has ended the run."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    if isinstance(error, Terminated):
        return str(error)
    return "interrupted" if isinstance(error, KeyboardInterrupt) else f"ended by {type(error).__name__}"


def _missing(device: torch.device, *, has_history: bool, has_counters: bool) -> Iterator[str]:
    """Sentences on what a device does not tell."""
    if not devices.is_accelerator(device):
        yield (
            "The CPU's allocator has neither counters nor a history: what is watched is the resident memory of the "
            "process, and no line says what made a tensor."
        )
    elif not has_history:
        yield f"The allocator of {device.type} has no history: no line says what made a block."
    if not has_counters and devices.is_accelerator(device):
        yield f"The allocator of {device.type} has no counters that can be read."


watch_training = TrainingWatch
