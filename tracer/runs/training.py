"""Profiles an existing training loop: a session around it, and the files written when it ends."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from tracer.capture.call_hooks import CallHooks
from tracer.capture.error_place import error_place
from tracer.capture.known_storages import input_tensors
from tracer.capture.parameter_origins import describe_parameters
from tracer.capture.project_files import project_root
from tracer.capture.run_origin import RunOrigin
from tracer.errors import OutputError, RecordingError
from tracer.exporters.files import check_folder
from tracer.nested import leaves
from tracer.runs.outputs import Written, left_from_earlier, left_sentence, write_outputs, written_lines
from tracer.runs.ranks import Rank, announce, begin, finish, this_rank
from tracer.runs.results import Failure, RunResults, allocator_state
from tracer.runs.session import ProfileSession, Schedule, tell_of_fault
from tracer.runs.termination import Termination

_DEFAULT_SCHEDULE = Schedule()


class TrainingProfile(ProfileSession):
    """Profiles any training loop, and leaves its files when the loop ends.

        with profile_training(model, optimizer, save_dir="profile") as session:
            for batch in loader:
                ...
                session.step()

    Nothing else of the loop changes, and it may go on for as long as it likes: after the schedule's last step nothing
    is recorded any more. What the model is called with is observed by a hook; further inputs, such as targets, can be
    named with `session.observe_batch`. The files are written when the block ends, also by an exception, which then
    goes on its way. Under torchrun each rank writes to `rank<N>` below the folder, right after the last recorded step,
    so that nothing that happens later can take it back, and a summary of all is added.

    Attributes:
        results: Everything that was found; after the block.
        written: What became of each file; after the block.
        folder: Where the files are: `save_dir`, or the rank's own folder below it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        save_dir: str | Path = "profiler_outputs",
        schedule: Schedule = _DEFAULT_SCHEDULE,
        device: torch.device | str | None = None,
        screen: bool = False,
        leave_out: Collection[str] = (),
        trace: bool = False,
        keep_recording: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Prepare; nothing is switched on.

        Args:
            model: The model, as the loop calls it.
            optimizer: The optimizer, as the loop steps it.
            save_dir: Folder for the files.
            schedule: Which steps are profiled.
            device: Where the model trains; by default where its parameters are.
            screen: Whether to print the answer at the end, on rank 0 only.
            leave_out: Names of files that are not wanted, as in `--no-<name>`.
            trace: Whether to write trace.json.gz, the profiler's trace with memory above the operators.
            keep_recording: Whether to write recording.npz, from which `main.py report` writes every file again.
            settings: What to remember of the run.

        Raises:
            OutputError: The folder cannot be written to.
        """
        super().__init__(model, optimizer, device=device, schedule=schedule, trace=trace)
        self.save_dir = Path(save_dir)
        self.rank: Rank | None = this_rank()
        self.folder = self.rank.folder(self.save_dir) if self.rank is not None else self.save_dir
        self.results: RunResults | None = None
        self.written: tuple[Written, ...] = ()
        self._termination = Termination()
        self._is_announced = False
        self._keep_recording = keep_recording
        self._screen, self._leave_out, self._settings = screen, leave_out, dict(settings or {})
        check_folder(self.save_dir)

    @property
    def is_complete(self) -> bool:
        """Whether all that the schedule asks for is recorded; more steps would not be looked at."""
        return self.num_steps_done >= self.schedule.num_steps

    def __enter__(self) -> Self:
        """Switch on."""
        if self.rank is not None:
            begin(self.rank, self.save_dir)
            self._termination.watch()
        return super().__enter__()

    def _call_hooks(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> CallHooks:
        return CallHooks(
            model=model,
            on_call=self._before_forward,
            optimizer=optimizer,
            before_step=self._before_optimizer_step,
            after_step=self._after_optimizer_step,
        )

    def step(self) -> None:
        """End a step. Call it once per step of training, after the optimizer's step."""
        super().step()
        if self.rank is None or self._is_announced or self._profiler is None:
            return
        if self._tracer.num_cycles == self.schedule.num_repeats:
            with self._never_the_loops_fault():
                self._announce(self.rank)

    def _announce(self, rank: Rank) -> None:
        """All is recorded: write it now. A peer's death may end this process where Python never gets to say a word."""
        self._is_announced = True
        assert self._model is not None
        self._termination.hold()
        try:
            self.results = self._results(None, self._model)
            self._write(self.results)
            # A folder that has become unwritable is told when the block ends: no step of the training raises it.
            with suppress(OutputError):
                announce(rank, self.results, self.save_dir)
        finally:
            self._termination.resume()

    def _before_forward(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the tensors that the model is called with; one that was computed by another model is not an input."""
        if torch.compiler.is_compiling() or not self._is_recording:
            return
        with self._never_the_loops_fault():
            self._note_thread()
            given = [value for _, value in leaves([args, kwargs], torch.Tensor) if not value.requires_grad]
            self._observer.observe(input_tensors(given))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch off, explain, write. An exception from the loop goes on its way, whatever becomes of the files."""
        self._termination.hold()
        model = self._model
        try:
            self._end(error)
            assert model is not None
            self._finish(error, model)
        except Exception as fault:
            self.fault = self.fault or fault
            tell_of_fault(fault, error, stacklevel=3)
        finally:
            self._termination.close()

    def _finish(self, error: BaseException | None, model: nn.Module) -> None:
        self.results = self._results(error, model)
        if not self._is_announced:
            self._write(self.results)
        try:
            if self.rank is not None:
                finish(self.rank, self.results, self.save_dir)
        finally:
            self._tell(error)

    def _write(self, results: RunResults) -> None:
        """All files; an interruption goes on its way, and what was written until then is known."""

        def note(written: Written) -> None:
            self.written += (written,)

        write_outputs(results, self.folder, leave_out=self._leave_out, tell=note)

    def _results(self, error: BaseException | None, model: nn.Module) -> RunResults:
        notes: list[str] = []
        findings = None
        try:
            findings = self.findings
        except RecordingError as problem:
            notes.append(str(problem))
        failure = None
        if error is not None:
            state = allocator_state(self.device)
            failure = Failure(_without_traceback(error), self.num_steps_done, state, error_place(error))
        return RunResults(
            findings=findings,
            timings=None,
            snapshot=self.history.snapshot,
            known=self.known,
            unused_parameters=self.unused_parameters,
            losses=(),
            num_steps=self.num_steps_done,
            failure=failure,
            settings=self._settings,
            notes=(*notes, *self.notes),
            parameters=describe_parameters(model),
            project_root=project_root(model),
            failed_allocation=self.failed_allocation if failure is not None and failure.out_of_memory else None,
            trace=self.trace if findings is not None else None,
            module_names=self.module_names,
            origin=RunOrigin.here(str(self.device)),
            device=str(self.device),
            keep_recording=self._keep_recording,
        )

    def _tell(self, error: BaseException | None) -> None:
        """The screen, where wanted; a warning for a loop that was too short, and for files that it did not write."""
        assert self.results is not None
        if self.results.findings is None and error is None:
            first = self.schedule.num_wait_steps + self.schedule.num_warmup_steps + 1
            warnings.warn(
                f"The loop ended after {_steps(self.num_steps_done)}, and the first one that is recorded is step "
                f"{first}: call session.step() after each step, or pass a shorter schedule=Schedule(...).",
                stacklevel=4,
            )
        if left := left_from_earlier(self.folder, self.written):
            warnings.warn(left_sentence(left), stacklevel=4)
        if self._screen and (self.rank is None or self.rank.index == 0):
            try:
                print_screen(self.results, self.written)
            except OutputError as problem:
                warnings.warn(f"{problem} {problem.hint}", stacklevel=4)
            return
        for each in self.written:
            if each.error is not None:
                warnings.warn(" ".join(written_lines(each)), stacklevel=4)


def _without_traceback(error: BaseException) -> BaseException:
    """A copy: the exception itself is still on its way, and its traceback keeps the tensors of the step alive."""
    try:
        return copy.copy(error).with_traceback(None)
    except Exception:  # one with a constructor of its own
        return RuntimeError(f"{type(error).__name__}: {error}")


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def print_screen(results: RunResults, written: Collection[Written] = ()) -> None:
    """The files on stderr, then the answer on stdout.

    Raises:
        OutputError: stdout does not take it.
    """
    from tracer.exporters.terminal import say, screen
    from tracer.runs.screen import print_results

    for line in (line for each in written for line in written_lines(each)):
        say(line)
    for note in results.notes:
        say(f"Note: {note}")
    with screen() as console:
        print_results(results, console)


profile_training = TrainingProfile
