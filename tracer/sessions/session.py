"""Begin and end of a session around a user's training loop; no fault of the session reaches the loop.

Profiles and watches are such sessions. Each says how it is switched on and off, and what is left to do at the end; when
that happens, and what becomes of signals, forks and faults meanwhile, is the same for all and is here.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import torch
from torch import nn

from tracer.answers.answer import Answer
from tracer.answers.tables import NUM_ROWS
from tracer.arrays import numpys_own_names
from tracer.capture.device import devices
from tracer.capture.forked_child import in_forked_child
from tracer.capture.objects.training_objects import TrainingObjects
from tracer.capture.torch_private.torch_modules import outermost_called
from tracer.errors import OutputError, Terminated, TracerError, UsageError
from tracer.exporters.notebook import Paragraph, display_in_notebook
from tracer.exporters.screen.answer import print_answer
from tracer.exporters.screen.terminal import say, say_beside_bars, screen, text_of
from tracer.sessions.folder import SessionFolder
from tracer.sessions.termination import Termination, signals_deferred, uninterrupted

if TYPE_CHECKING:
    from tracer.answers.run_results import RunResults
    from tracer.answers.watch_report import WatchReport
    from tracer.capture.objects.failure_look import RunAgain
    from tracer.capture.objects.later_uses import SecondRun
    from tracer.sessions.recorder import Recorder

Screen = Literal["full", "short", "none"]


def checked_screen(screen: Screen | bool) -> Screen:
    """The screen of a name, or of True for all and False for nothing."""
    if isinstance(screen, bool):
        return "full" if screen else "none"
    if screen not in get_args(Screen):
        raise UsageError(f"There is no screen {screen!r}.", hint=f"Use {', '.join(get_args(Screen))}.")
    return screen


class ScriptSession:
    """A session as a script's steps find it; each method is a no-op of a session that has nothing to do there."""

    device: torch.device
    recorder: Recorder | None = None  # torch's profiler; None where nothing is recorded
    results: RunResults | None = None  # Everything that was found, when the session has ended
    explains_variables: ClassVar[bool] = False  # Whether it ends while the script's variables are still there

    @property
    def page(self) -> Path | None:
        """The page, if it was written."""
        return None

    @property
    def num_steps_done(self) -> int:
        """Steps that have ended."""
        return 0

    @property
    def is_complete(self) -> bool:
        """True if no more steps are wanted."""
        return False

    @property
    def is_incomplete(self) -> bool:
        """True if the session failed at something: its files or its answer are incomplete."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End."""

    def wait_for_next_step(self) -> None:
        """Begin no recording in the step that is under way; to be called before the session begins."""

    def abandon(self) -> None:
        """Switch off without a result, as if the block had never begun."""

    def observe_call(self, model: nn.Module, args: Any) -> None:
        """Note what a model is called with."""

    @abstractmethod
    def step(self) -> None:
        """End a step."""

    def end_last_step(self) -> None:
        """End the script's last step."""
        self.step()

    def goes_on_later(self) -> None:
        """Leave the allocator's history on at its end: a watch of what comes then goes on with it."""

    def tell_meanwhile(self) -> None:
        """Say, while the script goes on, that the answer comes at the end."""

    def failed_later(self, error: BaseException, report: WatchReport) -> bool:
        """Take a failure after the recorded steps into the answer; return whether the answer has it."""
        return False

    def tell(self, explained_in: Path | None = None) -> tuple[str, ...]:
        """Print the answer when the script has ended; return lines that say what to do next."""
        return ()


class Session(ScriptSession):
    """A block around a loop: `with session: ... session.step()`.

    Whatever ends the block, all that was switched on is switched off, and nothing of the user's is kept. While work of
    the session's own is being done, signals wait. A fault of its own never reaches the loop: it ends the
    recording, is told on stderr, and is kept. In a forked child it does nothing.
    """

    _name: ClassVar[str] = "Profiling"
    _folder: SessionFolder | None = None

    def __init__(self, objects: TrainingObjects, *, device: torch.device | str | None) -> None:
        """Prepare; nothing is switched on."""
        self._objects: TrainingObjects | None = objects
        # The device that the session is about
        self.device = devices.with_index(torch.device(device)) if device is not None else device_of(objects)
        self.fault: Exception | None = None  # What went wrong in the session itself, or None
        self.is_in_child = False  # Whether this process was forked by the one whose session it is; nothing is done then
        self._has_begun = self._trains_in_training_mode = False
        self._termination = Termination(self._write_before_the_end)
        self._forget_forks: Callable[[], object] = lambda: None

    # ---------------------------------------------------------------------------------------- what each session does
    @abstractmethod
    def _switch_on(self) -> None:
        """Switch on all that the session needs."""

    @abstractmethod
    def _switch_off(self, error: BaseException | None) -> None:
        """Switch all off that is on, whatever each of them raises."""

    def _switch_off_in_child(self) -> None:
        """Switch off in a forked child, without ending anything that the parent has begun."""
        self._switch_off(None)

    def _end(self, error: BaseException | None) -> None:
        """The block has ended: switch off."""
        self._switch_off(error)

    def _finish(self, error: BaseException | None) -> None:
        """Do what is left when all is off."""

    def _write_before_the_end(self, error: Terminated) -> None:
        """Write what there is: a signal ends the process, whose main thread does not come back. In another thread."""

    @property
    def folder(self) -> Path:
        """Folder of the files: `save_dir`, or the rank's own folder below it.

        In that, a folder of its own where another session that is still running, as a parent process may have, writes.
        """
        assert self._folder is not None
        return self._folder.path

    @property
    def is_incomplete(self) -> bool:
        """True if the session failed at something: its files or its answer are incomplete."""
        return self.fault is not None

    # ------------------------------------------------------------------------------------------------- the life cycle
    def __enter__(self) -> Self:
        self._has_begun = True
        try:
            if self._folder is not None:
                self._folder.take()
                self._termination.watch()
            self._forget_forks = in_forked_child(self._leave_to_parent)
            with signals_deferred():
                self._switch_on()
        except BaseException:
            self.abandon()
            raise
        return self

    def abandon(self) -> None:
        """Switch off without a result, as if the block had never begun."""
        self._guarded(lambda: self._switch_off(None))
        self._release()
        self._termination.forget()

    @uninterrupted
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Switch off, and finish; an exception of the loop's goes on its way. A forked child does nothing."""
        if self.is_in_child:
            return
        self._termination.hold(error)
        self._termination.watch()
        try:
            with numpys_own_names():
                had_fault = self.fault is not None
                self._guarded(lambda: self._end(error))
                if self.fault is not None and not had_fault:
                    _tell_at_the_end(self.fault, error)
                try:
                    self._finish(error)
                except Exception as fault:
                    self.fault = self.fault or fault
                    _tell_at_the_end(fault, error)
        finally:
            self._release()
            self._termination.close()

    def _note_mode(self) -> None:
        """Note, as a step ends, whether the trained modules are in training mode, as they are in some loops only."""
        if not self._trains_in_training_mode and self._objects is not None:
            self._trains_in_training_mode = any(model.training for model in self._objects.models.values())

    def _is_evaluating(self, error: BaseException | None = None) -> bool:
        """True if models trained in training mode are in evaluation mode now, or a call of an untrained model failed.

        An untrained model is in evaluation mode and no optimizer updates it, such as the teacher of a distillation.
        """
        if self._objects is None:
            return False
        called = outermost_called(error) if error is not None else None
        if called is not None and any(True for _ in called.parameters()):  # a loss has no mode that tells
            if called.training:
                return False
            optimizers = self._objects.optimizers
            trained = {id(each) for optimizer in optimizers for _, each in self._objects.parameters_of(optimizer)}
            if trained and not any(id(parameter) in trained for parameter in called.parameters()):
                return True
        models = self._objects.models.values()  # those that are still there
        return self._trains_in_training_mode and bool(models) and not any(model.training for model in models)

    def _check_begun(self) -> None:
        if not self._has_begun:
            raise TracerError(
                f"{self._name} has not begun, so that this step is not seen.",
                hint="Put the loop into a block: `with ... as session:`, and call session.step() in it.",
            )

    def _release(self) -> None:
        """Drop all references to the user's objects, and release the folder."""
        self._forget_forks()
        self._objects = None
        if self._folder is not None:
            self._folder.release()

    def _leave_to_parent(self) -> None:
        """Drop the session in a forked child; it belongs to the parent."""
        self.is_in_child = True
        if self._folder is not None:
            self._folder.leave_to_parent()
        self._switch_off_in_child()
        self._objects = None

    # ------------------------------------------------------------------------------------------------ faults of its own
    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as fault:
            self.fault = self.fault or fault

    @contextmanager
    def _never_the_loops_fault(self) -> Iterator[None]:
        """Turn an error inside the block into the end of the session's work, told once; the training goes on."""
        with signals_deferred(), numpys_own_names():
            try:
                yield
            except Exception as fault:
                self.fault = self.fault or fault
                self._guarded(lambda: self._switch_off(None))
                # A warning would be lost in a program that ignores warnings.
                say_beside_bars(f"Note: {self._name} has stopped, and the loop goes on: {fault_text(self.fault)}")


def fault_text(fault: Exception) -> str:
    """Return a sentence for users, or the traceback of an internal fault."""
    if isinstance(fault, TracerError):
        return f"{fault} {fault.hint}" if fault.hint else str(fault)
    return "an internal fault.\n" + "".join(traceback.format_exception(fault))


def _tell_at_the_end(fault: Exception, error: BaseException | None) -> None:
    """Tell of a fault as the user's block ends, in a note to the exception that ends it if there is one."""
    sentence = f"The profile is not complete: {fault_text(fault)}"
    if error is not None:
        error.add_note(sentence)
    else:
        say_beside_bars(f"Note: {sentence}")


def warn_at_users_line(sentence: str) -> None:
    """Warn, at the line outside of this program from which it was called."""
    level, frame = 2, sys._getframe().f_back
    while frame is not None and str(frame.f_globals.get("__name__")).split(".")[0] in ("tracer", "contextlib"):
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, stacklevel=level)


class Voice:
    """Words to a program that calls the session: at once, and with warnings at the program's line."""

    is_of_script: ClassVar[bool] = False  # Whether hooks find the steps, and the answer waits for the script's end
    to_record_the_first: ClassVar[str] = "schedule=Schedule(0, 0, 1, 1) records from the first one"
    if_too_short: ClassVar[str] = "call session.step() after each step, or pass a shorter schedule=Schedule(...)"

    def run_again(self, device: torch.device, num_allocations: int) -> SecondRun | None:
        """Return None: a program is not run again where its memory has run out."""
        return None

    def of_optimizers(self, objects: TrainingObjects) -> None:
        """Warn, at the line that makes the session, of optimizers that update something else."""
        for sentence in objects.updates_of_others():
            warn_at_users_line(sentence)

    def warn(self, sentence: str) -> None:
        """Warn, at the line that ends the block; in a notebook, below the cell."""
        if not display_in_notebook(Paragraph(sentence)):
            warn_at_users_line(sentence)

    def answer(
        self, answer: Answer, shown: object, *, last: Sequence[str], is_full: bool, top: int = NUM_ROWS, below: int = 0
    ) -> tuple[str, ...]:
        """Print an answer: all of it on stdout; its short form on stderr, or on stdout for a script.

        Return lines that the caller prints last; none where they are printed, or no answer was.
        """
        if not is_full and display_in_notebook(shown):
            return ()
        if not is_full and not self.is_of_script:
            for line in (*text_of(lambda console: print_answer(answer, console, last=last)).splitlines(), *last):
                say(line)
            return ()
        try:
            with screen() as console:
                print_answer(answer, console, full=is_full, top=top, last=last, below=below)
        except OutputError as problem:
            self.warn(f"{problem} {problem.hint}")
            return ()
        return tuple(last)


class ScriptVoice(Voice):
    """The voice of `run`: lines on stderr, because a warning would name a line of the script that is not at fault."""

    is_of_script = True
    to_record_the_first = "--n-wait-steps 0 --n-warmup-steps 0 record from the first one"
    if_too_short = "record from the first one with --n-warmup-steps 0, or let the script train for longer"

    def __init__(self, run_again: RunAgain | None = None) -> None:
        """Have the script run again, by this, where its memory has run out."""
        self._run_again = run_again

    def run_again(self, device: torch.device, num_allocations: int) -> SecondRun | None:
        """Run the script again with memory that does not end, where the command can."""
        return self._run_again(device, num_allocations) if self._run_again is not None else None

    def of_optimizers(self, objects: TrainingObjects) -> None:
        """No-op: optimizers of a script may train tensors outside any model, such as latents and prompts."""

    def warn(self, sentence: str) -> None:
        """Print it."""
        say(f"Note: {sentence}")


def device_of(objects: TrainingObjects) -> torch.device:
    """The accelerator that holds most of the models' parameters and buffers, and of what else optimizers update.

    Where none holds any, the one in use: FSDP may keep parameters on the CPU, and they go there in parts. Else the CPU.
    """
    from tracer.workloads.workload import all_tensors

    num_bytes: Counter[torch.device] = Counter()
    trained = (tensor for optimizer in objects.optimizers for _, tensor in objects.parameters_of(optimizer))
    named = (tensor for model in objects.models.values() for tensor in all_tensors(model))
    for tensor in {id(tensor): tensor for tensor in (*named, *trained)}.values():
        if devices.is_accelerator(tensor.device):
            num_bytes[tensor.device] += tensor.numel() * tensor.element_size()
    if num_bytes:
        return max(num_bytes, key=num_bytes.__getitem__)
    return devices.device_in_use() or torch.device("cpu")
