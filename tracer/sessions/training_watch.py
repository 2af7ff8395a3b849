"""The flight recorder: a training watched for as long as it lasts, and explained at once when something happens."""

from __future__ import annotations

import itertools
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from tracer.answers.failure import is_out_of_memory, without_gpu
from tracer.answers.files import SNAPSHOT, WATCH_JSON
from tracer.answers.step_findings import explain_steps
from tracer.answers.watch_report import (
    END_OF_RUN,
    OUT_OF_MEMORY,
    Event,
    WatchReport,
    answer_of_watch,
    growth_sentences,
)
from tracer.blocks.from_snapshot.timeline import StepEnds
from tracer.capture.device import devices
from tracer.capture.device.memory_counters import StepReader, read_counters
from tracer.capture.objects.call_hooks import CallHooks
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.live_tensors import Alike, unnamed_tensors
from tracer.capture.objects.training_objects import Models, Optimizers, TrainingObjects
from tracer.capture.sources.source_files import forget_files
from tracer.capture.step_columns import StepColumns, StepTable
from tracer.capture.torch_private import torch_history
from tracer.errors import Terminated
from tracer.exporters.files import remove, write_atomically, write_json
from tracer.exporters.json_documents.watch import watch_values
from tracer.exporters.memory_snapshot import write_memory_snapshot
from tracer.exporters.notebook import Paragraph
from tracer.exporters.screen.answer import print_answer
from tracer.exporters.screen.terminal import say, say_beside_bars, text_of
from tracer.nested import leaves
from tracer.sessions.folder import SessionFolder
from tracer.sessions.jobs.ranks import RankMessage, peak_of_watched, ran_out_later
from tracer.sessions.on_null_gpu import allocator_history
from tracer.sessions.session import Screen, Session, Voice, checked_screen
from tracer.sessions.watch_report import Moment

MAX_ENTRIES: Final = 100_000
"""Entries of the allocator's history, some 50 steps of a large model; half a KiB each with its stack."""
WATCH_TEXT: Final = "watch.txt"
_FILES: Final = (WATCH_TEXT, WATCH_JSON, SNAPSHOT.file_name)
_GROWS: Final = "memory grows from step to step"
"""The event of a report that nobody asked for."""
_MAX_EVENTS: Final = 20
_BASELINE_STEP: Final = 3
_FIRST_LOOK, _LOOK_AGAIN = 32, 2


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

    _name = "The watch"
    _folder: SessionFolder

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
            save_dir: Folder for the files.
            device: What is watched; by default the accelerator that holds most of the model, else the CPU.
            max_entries: Most entries of the allocator's history that are kept.
            on_signal: Asks for the files while the run goes on, if nobody else handles it; None for no signal. They are
                written when the model is next called, an optimizer steps, or the step ends.
            screen: What to say, on rank 0 only, as for `profile_training`.
            settings: What to remember of the run.
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
        self.num_steps_done = 0  # Steps that have ended
        self.report: WatchReport | None = None
        self._screen = checked_screen(screen) if self._folder.is_of_first_rank else "none"
        self._settings = dict(settings or {})
        self._history = allocator_history(self.device, max_entries=max_entries, stacks_of_frees=False)
        self._reader = StepReader(self.device)
        self._table = StepTable()
        # What the ring can hold has far fewer steps than this, and a step without an allocation needs no place in it.
        self._ends: deque[tuple[int, int]] = deque(maxlen=max_entries)
        self._hooks = CallHooks(
            models=objects.models.values(),
            on_call=self.observe_call,
            optimizers=objects.optimizers,
            before_step=self._before_optimizer_step,
        )
        self._batch: list[tuple[str, weakref.ref[Tensor]]] = []
        self._events: list[Event] = []
        self._found_before: WatchReport | None = None
        self._earlier: Mapping[str, Alike] | None = None
        self._on_signal = on_signal
        self._on = ExitStack()  # Switches all off
        self._asked_by: signal.Signals | None = None
        self._is_on = self._is_writing = self._growth_is_told = False
        self._next_look = _FIRST_LOOK
        self._num_raised = 0  # Errors of full memory that Python has seen, when the last step ended
        self._untold: WatchReport | None = None  # The last report of a script, until that has ended
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
        self._num_raised = torch_history.RAISED.number
        self._is_on = True
        is_main = threading.current_thread() is threading.main_thread()
        if self._on_signal is not None and is_main and signal.getsignal(self._on_signal) is signal.SIG_DFL:
            signal.signal(self._on_signal, self._asked_by_signal)
            self._on.callback(signal.signal, self._on_signal, signal.SIG_DFL)

    def _asked_by_signal(self, number: int, frame: FrameType | None) -> None:
        """Only note it: the interrupted code may hold a lock that writing needs."""
        self._asked_by = signal.Signals(number)

    def _write_if_asked(self) -> None:
        if (asked_by := self._asked_by) is not None:
            self._asked_by = None
            self._write_within_loop(f"asked for by {asked_by.name}")

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
                self._write(END_OF_RUN, with_history=self._grows(), is_last=True)
            return
        if is_out_of_memory(error):
            event = OUT_OF_MEMORY
        elif isinstance(error, Terminated):
            event = str(error)
        elif isinstance(error, KeyboardInterrupt):
            event = "interrupted"
        else:
            event = f"ended by {type(error).__name__}"
        self._write(event, error, is_last=True)

    def _write_before_the_end(self, error: Terminated) -> None:
        if self._is_on:
            self._last_words(error)

    def _switch_off(self, error: BaseException | None) -> None:
        self._is_on = False
        self._on.close()

    def _switch_off_in_child(self) -> None:
        self._switch_off(None)

    # ------------------------------------------------------------------------------------------------------ the steps
    @property
    def is_complete(self) -> bool:
        """False: a watch looks at every step."""
        return False

    def step(self) -> None:
        """End a step. Call it once per step of training, after the optimizer's step.

        Raises:
            TracerError: The block has not begun.
        """
        self._check_begun()
        self.num_steps_done += 1
        if self._is_on:
            with self._never_the_loops_fault():
                self._end_step()
        self._write_if_asked()

    def _end_step(self) -> None:
        num_raised, num_failures = self._num_raised, self._reader.num_failures
        if torch_history.RAISED.number > num_raised:
            torch_history.RAISED.forget()
        self._num_raised = torch_history.RAISED.number
        row = self._reader.end_of_step(self.num_steps_done, time.time_ns())
        self._table.add(row)
        if "num_allocations" in row:
            self._ends.append((self.num_steps_done, row["num_allocations"]))
        self._note_mode()
        self._hooks.renew()
        if self._objects is not None:
            self._objects.forget_names()
        if self.num_steps_done == _BASELINE_STEP and not self._history.is_offered:
            self._earlier = unnamed_tensors(self.device)
        # A library such as cuDNN tries a request again with less: an error that reaches Python has failed.
        if self._reader.num_failures > num_failures and self._num_raised > num_raised:
            self._write(f"{OUT_OF_MEMORY}, and the program went on")
        if self.num_steps_done >= self._next_look:
            self._next_look *= _LOOK_AGAIN
            if not self._growth_is_told and self._grows():
                self._growth_is_told = True
                self._write(_GROWS)

    def _grows(self) -> bool:
        steps = explain_steps(self.columns, limit_bytes=None, has_allocator=self._reader.has_allocator)
        return steps.growth is not None

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
        return self._table.columns()

    def write(self, why: str = "asked for") -> WatchReport | None:
        """Explain the run as it is now, and write the files; the run goes on.

        Returns:
            What was written; None where the watch is off or has just written more than it should.
        """
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
            self.report = report = self._moment(error, snapshot).explained()
            if report.has_growth:
                self._found_before = report
            self._tell(report, is_last=is_last)
            text = text_of(lambda console: print_answer(answer_of_watch(report), console, full=True))
            write_atomically(self.folder / WATCH_TEXT, text)
            write_json(self.folder / WATCH_JSON, watch_values(report))
            if snapshot is not None:
                write_memory_snapshot(dict(snapshot), self.folder / SNAPSHOT.file_name)
            self._leave(report)
        finally:
            self._history.snapshot = None
            self._is_writing = False

    def _leave(self, report: WatchReport) -> None:
        """Leave the rank's figures so far for the summary of all ranks.

        What a rank of a job said of its recorded steps stays, unless its memory has ended.
        """
        if (rank := self._folder.rank) is None:
            return
        if not self._is_later or rank.job_folder is None:
            self._folder.leave(peak_of_watched(rank, report, has_ended=False))
        elif report.error:
            failure = without_gpu(report.error)
            self._folder.leave(ran_out_later(rank, failure, devices.peak_allocated_bytes(self.device) or 0))

    def _finish(self, error: BaseException | None) -> None:
        if (rank := self._folder.rank) is None or (self._is_later and rank.job_folder is not None):
            return
        if self.report is not None:
            peak = peak_of_watched(rank, self.report, has_ended=True)
        else:
            peak = RankMessage(rank.index, rank.run, num_steps=self.num_steps_done, failure=type(error).__name__)
        self._folder.finish(replace(peak, failure=peak.failure if error is not None else ""))

    def tell(self) -> None:
        """Print the last report of a script, when that has ended; once."""
        report, self._untold = self._untold, None
        if report is not None:
            self._say(report)

    def _tell(self, report: WatchReport, *, is_last: bool) -> None:
        """Say it at once; a script's last report waits for its last line and its traceback."""
        if not self.voice.is_of_script:
            self._say(report)
        elif is_last:
            self._untold = report
        elif self._screen != "none":
            say_beside_bars(f"After step {report.event.step:,}: {(*growth_sentences(report), report.event.what)[0]}")
            say_beside_bars(f"Written: {self.folder / WATCH_TEXT}. The report follows when the script ends.")

    def _say(self, report: WatchReport) -> None:
        if self._screen != "none":
            answer = answer_of_watch(report)
            files = f"Files in {self.folder}: {WATCH_TEXT}, {WATCH_JSON}."
            shown = Paragraph("\n".join((*answer.sentences, files)))
            for line in self.voice.answer(answer, shown, last=[files], is_full=self._screen == "full"):
                say(line)

    def _moment(self, error: BaseException | None, snapshot: Mapping[str, Any] | None) -> Moment:
        return Moment(
            device=self.device,
            events=tuple(self._events),
            error=error,
            columns=self.columns,
            ends=self._step_ends(),
            snapshot=snapshot,
            tensors=self._tensors,
            earlier=self._earlier,
            earlier_step=_BASELINE_STEP,
            notes=list(self._missing()),
            settings=self._settings,
            found_before=self._found_before,
            is_evaluating=self._is_evaluating(error),
            run_again=self.voice.run_again,
        )

    def _step_ends(self) -> StepEnds | None:
        counters = read_counters(self.device)
        if counters is None:
            return None
        table = np.array(self._ends, np.int64).reshape(-1, 2)
        # A program may set the counts back: what was counted before is of no use then.
        falls = np.flatnonzero(np.diff(table[:, 1]) < 0)
        table = table[falls[-1] + 1 :] if len(falls) else table
        return StepEnds(table[:, 0].copy(), table[:, 1].copy(), counters.num_allocations)

    def _tensors(self) -> Iterator[tuple[Role, str, Tensor]]:
        objects = self._objects
        batch = ((name, tensor()) for name, tensor in self._batch)
        known = ((Role.INPUT, name, tensor) for name, tensor in batch if tensor is not None)
        return itertools.chain(objects.tensors() if objects is not None else (), known)

    def _missing(self) -> Iterator[str]:
        yield from self._hooks.refused
        if not devices.is_accelerator(self.device):
            yield (
                "The CPU's allocator has neither counters nor a history: what is watched is the resident memory of the "
                "process, and no line says what made a tensor."
            )
        elif not self._history.is_offered:
            yield f"The allocator of {self.device.type} has no history: no line says what made a block."
        if not self._reader.has_allocator and devices.is_accelerator(self.device):
            yield f"The allocator of {self.device.type} has no counters that can be read."


watch_training = TrainingWatch
