"""The flight recorder: a training watched for as long as it lasts, and explained at once when something happens."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tracer.answers.failure import is_out_of_memory, without_gpu
from tracer.answers.files import WATCH_JSON
from tracer.answers.null_run import caveat_of
from tracer.answers.step_findings import explain_steps
from tracer.answers.watch_report import END_OF_RUN, Event, WatchReport
from tracer.answers.watch_sentences import growth_lines
from tracer.blocks.from_snapshot.timeline import StepEnds
from tracer.capture.device import devices
from tracer.capture.device.allocator_history import AllocatorHistory
from tracer.capture.device.memory_counters import StepReader, read_counters
from tracer.capture.objects.call_hooks import CallHooks
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.live_tensors import Alike, unnamed_tensors
from tracer.capture.objects.training_objects import Models, Optimizers, TrainingObjects
from tracer.capture.sources.source_files import forget_files
from tracer.capture.step_columns import StepColumns, StepTable
from tracer.capture.torch_private import torch_history
from tracer.errors import Terminated
from tracer.exporters.files import write_atomically, write_json
from tracer.exporters.memory_snapshot import write_memory_snapshot
from tracer.exporters.notebook import Paragraph, display_in_notebook
from tracer.exporters.screen.terminal import say, say_beside_bars
from tracer.exporters.watch import short_watch_lines, watch_lines, watch_values
from tracer.nested import leaves
from tracer.sessions.folder import SessionFolder
from tracer.sessions.jobs.ranks import RankMessage, peak_of_watched, ran_out_later
from tracer.sessions.session import Session, Voice
from tracer.sessions.watch_report import Moment

MAX_ENTRIES: Final = 100_000
"""Entries of the allocator's history, some 50 steps of a large model; half a KiB each with its stack."""
WATCH_TEXT, WATCH_SNAPSHOT = "watch.txt", "memory_snapshot.pkl"
_OUT_OF_MEMORY: Final = "out of memory"
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
    or memory is seen to grow from step to step, watch.txt, watch.json and memory_snapshot.pkl are written at once: what
    is in use, of which kind, by which line, who holds what should be gone, and when memory ends at this rate.

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
        screen: Literal["short", "none"] | bool = "short",
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
            screen: Whether to say on stderr what was found, on rank 0 only: `"short"` or True, `"none"` or False.
            settings: What to remember of the run.
            voice: What is said, and when, where a program does not call the watch itself.
            is_later: Whether it watches what comes after recorded steps: it reports only if memory runs out or grows.

        Raises:
            OutputError: The folder cannot be written to.
        """
        self.voice, self._is_later = voice or Voice(), is_later
        objects = TrainingObjects(model, optimizer)
        super().__init__(objects, device=device)
        self._folder = SessionFolder(save_dir)
        self.report: WatchReport | None = None
        self._says = screen in (True, "short") and self._folder.is_of_first_rank
        self._settings = dict(settings or {})
        self._history = AllocatorHistory(
            self.device, max_entries=max_entries, stacks_of_frees=False, is_timed=not caveat_of(self.device)
        )
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
        self._found_before: list[WatchReport] = []
        self._earlier: Mapping[str, Alike] | None = None
        self._on_signal = on_signal
        self._on = ExitStack()  # Switches all off
        self._asked_by: signal.Signals | None = None
        self._is_on = self._is_writing = self._growth_is_told = False
        self._next_look = _FIRST_LOOK
        self._ran_out_at = -1
        self._untold: WatchReport | None = None
        self._before_untold: WatchReport | None = None  # Report in the files before `_untold` replaced it
        self._num_raised = 0  # Errors of full memory that Python has seen, when the last step ended
        self._last_lines: list[str] = []
        self.voice.of_optimizers(objects)

    # ---------------------------------------------------------------------------------------------------- on and off
    @property
    def explained_in(self) -> Path | None:
        """The file that says it; None where there was nothing to say."""
        return self.folder / WATCH_TEXT if self.report is not None else None

    def _switch_on(self) -> None:
        if self._is_later:
            self._remove_files()  # an earlier run's
        forget_files()
        watches: tuple[Any, ...] = (self._history, self._hooks, torch_history.RAISED)
        for watch in watches:
            self._on.callback(watch.stop)
            watch.start()
        _watch_out_of_memory(self.device, self)
        self._on.callback(_watched.discard, self)
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
            event = _OUT_OF_MEMORY
        elif isinstance(error, Terminated):
            event = str(error)
        elif isinstance(error, KeyboardInterrupt):
            event = "interrupted"
        else:
            event = f"ended by {type(error).__name__}"
        is_told = event == _OUT_OF_MEMORY and self._ran_out_at == self.num_steps_done
        self._write(event, error, keep_snapshot=is_told, is_last=True)

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
        is_raised, self._num_raised = self._is_raised, torch_history.RAISED.number
        if self._untold is not None and is_raised:  # the program has caught the step's error
            self._say(self._lines_of(self._untold))
        elif self._untold is not None:
            self._forget(self._untold)
        self._untold = None
        num_failures = self._reader.num_failures
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
        has_failed = self._reader.num_failures > num_failures and is_raised
        if has_failed and self._ran_out_at < self.num_steps_done - 1:
            self._write(f"{_OUT_OF_MEMORY}, and the program went on")
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

    def out_of_memory(self) -> None:
        """The allocator is about to raise: what there is now is gone when the exception has been caught."""
        if not self._is_on:
            return
        if self._untold is not None and not self._is_raised:  # a library tries the request again
            self._forget(self._untold)
        if self._ran_out_at == self.num_steps_done:
            return
        self._ran_out_at = self.num_steps_done
        self._write_within_loop(_OUT_OF_MEMORY)

    @property
    def _is_raised(self) -> bool:
        """Whether an error of full memory has reached Python since the last step ended."""
        return torch_history.RAISED.number > self._num_raised

    def _forget(self, report: WatchReport) -> None:
        """Take back what was written of a request that a library has tried again with less: nothing failed."""
        self._untold, self._ran_out_at = None, -1
        self._events = [event for event in self._events if event != report.event]
        self._found_before = [found for found in self._found_before if found.event != report.event]
        self.report = self._before_untold
        if self.report is not None:
            self._write_texts(self.report)
        else:
            self._remove_files()

    def _remove_files(self) -> None:
        for name in (WATCH_TEXT, WATCH_JSON, WATCH_SNAPSHOT):
            (self.folder / name).unlink(missing_ok=True)

    def _write_within_loop(self, event: str) -> None:
        if self._is_on:
            with self._never_the_loops_fault():
                self._write(event)

    def _write(
        self,
        what: str,
        error: BaseException | None = None,
        *,
        with_history: bool = True,
        keep_snapshot: bool = False,
        is_last: bool = False,
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
            self._before_untold, self.report = self.report, self._moment(error, snapshot).explained()
            if self.report.has_findings:
                self._found_before.append(self.report.findings_alone())
            self._tell(self.report, is_last=is_last)
            self._write_texts(self.report)
            if snapshot is not None and not keep_snapshot:
                write_memory_snapshot(dict(snapshot), self.folder / WATCH_SNAPSHOT)
            self._leave(self.report)
        finally:
            self._history.snapshot = None
            self._is_writing = False

    def _write_texts(self, report: WatchReport) -> None:
        write_atomically(self.folder / WATCH_TEXT, "\n".join(watch_lines(report)) + "\n")
        write_json(self.folder / WATCH_JSON, watch_values(report))

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
        lines, self._last_lines = self._last_lines, []
        self._say(lines)

    def _tell(self, report: WatchReport, *, is_last: bool) -> None:
        """Say it at once; of memory that has run out only when its error ends the run, or the step ends without it.

        A script's last report waits for its last line and its traceback.
        """
        if self.voice.is_of_script and is_last:
            self._last_lines = self._lines_of(report)
            return
        if self.voice.is_of_script and report.event.what == _GROWS and self._says:
            say_beside_bars(f"After step {report.event.step:,}: {growth_lines(report)[0]}")
            say_beside_bars(f"Written: {self.folder / WATCH_TEXT}. The report follows when the script ends.")
            return
        is_raised_now = report.event.what == _OUT_OF_MEMORY and not is_last
        self._untold = report if is_raised_now else None
        if not is_raised_now:
            self._say(self._lines_of(report))

    def _lines_of(self, report: WatchReport) -> list[str]:
        return [*short_watch_lines(report), f"Written: {self.folder / WATCH_TEXT}, {WATCH_JSON}."] if self._says else []

    def _say(self, lines: Sequence[str]) -> None:
        if lines and not display_in_notebook(Paragraph("\n".join(lines))):
            for line in lines:
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
            found_before=tuple(self._found_before),
            is_evaluating=self._is_evaluating(error),
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


_watched: weakref.WeakSet[TrainingWatch] = weakref.WeakSet()
_attached: set[str] = set()


def _watch_out_of_memory(device: torch.device, watch: TrainingWatch) -> None:
    """Have the allocator tell every watch before it raises; torch takes such an observer once and for all."""
    _watched.add(watch)
    if device.type in _attached or not devices.is_accelerator(device):
        return
    with suppress(RuntimeError):  # a build without the device
        if torch_history.on_out_of_memory(device, _tell_all):
            _attached.add(device.type)


def _tell_all() -> None:
    """Tell every watch; an error must not reach the allocator, which is in the middle of a request."""
    try:
        for watch in list(_watched):
            watch.out_of_memory()
    except Exception:
        sys.excepthook(*sys.exc_info())


watch_training = TrainingWatch
