"""Profiles an existing training loop: a session around it, and the files written when it ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from tracer.answers.answer import Answer
from tracer.answers.answer_tables import NUM_ROWS
from tracer.answers.failure import is_out_of_memory
from tracer.answers.rows import Row
from tracer.answers.run_results import RunResults
from tracer.answers.watch_report import WatchReport, failure_in_words
from tracer.arrays import numpys_own_names
from tracer.capture.device.device_blocks import ASLEEP
from tracer.capture.device.devices import peak_allocated_bytes
from tracer.capture.objects.call_hooks import CallHooks
from tracer.capture.objects.later_uses import SecondRun
from tracer.capture.objects.training_objects import Models, Optimizers, TrainingObjects
from tracer.errors import OutputError, Terminated, TracerError
from tracer.exporters.files import check_folder
from tracer.exporters.notebook import notebook_html
from tracer.exporters.screen.next_commands import after_run, fit_words
from tracer.exporters.screen.terminal import say, say_beside_bars
from tracer.nested import leaves
from tracer.null_gpu.job.place import RankPlace
from tracer.sessions.folder import SessionFolder
from tracer.sessions.jobs.ranks import Rank, announce, peak_of
from tracer.sessions.output_files import WITHOUT_FAILURE, Written, left_from_earlier, say_if_failed, write_outputs
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import DEFAULT_SCHEDULE, Schedule
from tracer.sessions.session import Screen, Voice, checked_screen
from tracer.sessions.session_results import failure_of, run_results
from tracer.sessions.stages import Stage
from tracer.units import format_bytes, some

_MORE = 1.002
_LINES_OF_JOB = 8  # That follow the answer of the first rank


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
    """

    _folder: SessionFolder
    results: RunResults | None = None

    def __init__(
        self,
        model: Models,
        optimizer: Optimizers = None,
        *,
        save_dir: str | Path = "profiler_outputs",
        schedule: Schedule = DEFAULT_SCHEDULE,
        device: torch.device | str | None = None,
        screen: Screen | bool = "short",
        top: int = NUM_ROWS,
        leave_out: Collection[str] = (),
        keep_recording: bool = False,
        settings: Mapping[str, object] | None = None,
        voice: Voice | None = None,
    ) -> None:
        """Prepare; nothing is switched on.

        Args:
            model: The model, as the loop calls it; several by name, as `{"student": student, "teacher": teacher}`,
                whose memory then stands under these names.
            optimizer: The optimizer, as the loop steps it, or several. One that is not named here is found when it
                steps.
            save_dir: Folder for the files.
            schedule: Which steps are profiled.
            device: What the profile is about; by default the accelerator that held most, else the CPU.
            screen: What to say at the end, on rank 0 only: the answer in 24 lines, `"short"`, on stderr, or on stdout
                for a script; all of it on stdout, `"full"` or True; nothing, `"none"` or False.
            top: Rows of each table of the `"full"` screen.
            leave_out: Names of files that are not wanted, as in `--no-<name>`.
            keep_recording: Whether to write recording.npz, from which `main.py report` writes every file again.
            settings: What to remember of the run.
            voice: What is said, and when, where a program does not call the session itself.

        Raises:
            OutputError: The folder cannot be written to.
            TracerError: There is no such screen.
        """
        self._screen, self._top = checked_screen(screen), top
        self.voice = voice or Voice()
        super().__init__(
            model,
            optimizer,
            device=device,
            schedule=schedule,
            steps_are_found=self.voice.is_of_script,
            settings=settings,
            keep_recording=keep_recording,
        )
        self._is_announced = False
        self._has_failed: bool | None = None  # Whether the block raised; None where nothing is to be told, or all is
        self._peak_before_bytes = self._peak_recorded_bytes = peak_allocated_bytes(self.device) or 0
        # The step, from 1, in which the allocator's peak last rose, and whether it was recorded.
        self._highest_step, self._is_highest_recorded = 0, False
        self._leave_out = leave_out
        assert self._objects is not None
        self.voice.of_optimizers(self._objects)
        self._folder = SessionFolder(save_dir)

    def _run_again(self, device: torch.device, num_allocations: int) -> SecondRun | None:
        return self.voice.run_again(device, num_allocations)

    @property
    def written(self) -> tuple[Written, ...]:
        """The files so far, each with its error if it could not be written."""
        return self._folder.written

    @property
    def page(self) -> Path | None:
        """The page, if it was written."""
        return self._folder.page

    @property
    def is_complete(self) -> bool:
        """Whether all that the schedule asks for is recorded; more steps would not be looked at."""
        return self.stages.is_complete

    @property
    def peak_bytes(self) -> int:
        """Allocated bytes at the largest peak; 0 where nothing was recorded.

        Raises:
            TracerError: The block has not ended.
        """
        return self._ended_results.peak_bytes

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows of the largest peak, the largest first; `pandas.DataFrame(session.rows)` is a table.

        Raises:
            TracerError: The block has not ended.
        """
        return self._ended_results.rows

    def to_pandas(self) -> Any:
        """The rows as a pandas.DataFrame.

        Raises:
            TracerError: The block has not ended, or pandas is not installed.
        """
        return self._ended_results.to_pandas()

    def save(self, folder: str | Path) -> tuple[Written, ...]:
        """Write every file once more, to another folder.

        Raises:
            TracerError: The block has not ended, or the folder cannot be written to.
        """
        results = self._ended_results
        check_folder(Path(folder))
        return write_outputs(results, Path(folder))

    @property
    def _ended_results(self) -> RunResults:
        if self.results is None:
            raise TracerError("The results are available after the block has ended.", hint="Read them after it.")
        return self.results

    def __repr__(self) -> str:
        """At a prompt: the answer in a line."""
        if self.results is None:
            return f"<{type(self).__name__}: {some(self.num_steps_done, 'step')} so far>"
        return repr(self.results)

    def _repr_html_(self) -> str:
        if self.results is None:
            return f"<p>Profiling: {some(self.num_steps_done, 'step')} so far.</p>"
        findings = self.results.findings
        notes = [] if findings is not None else [self._what_is_missing()]
        by_category = {} if findings is None else findings.worst.peak.by_category()
        return notebook_html(self.results.answer, by_category, notes=notes, page=self.page)

    def _what_is_missing(self) -> str:
        """Why nothing was recorded, and what to do about it."""
        failure = self.results.failure if self.results is not None else None
        if failure is None:
            ended, advice = f"ended after {some(self.num_steps_done, 'step')}", self._if_too_short
        else:
            is_skipped = self.schedule.num_wait_steps or self.schedule.num_warmup_steps
            ended = f"failed in step {failure.step + 1}"
            advice = self.voice.to_record_the_first if is_skipped else ""
        what_to_do = f": {advice}" if advice else ""
        return f"The loop {ended}, and the first one that is recorded is step {self._first_recorded}{what_to_do}."

    def _call_hooks(self, objects: TrainingObjects) -> CallHooks:
        return CallHooks(
            models=objects.models.values(),
            on_call=self.observe_call,
            optimizers=objects.optimizers,
            before_step=self._before_optimizer_step,
            after_step=self._after_optimizer_step,
        )

    def step(self) -> None:
        """End a step. Call it once per step of training, after the optimizer's step."""
        if not self.is_complete:
            self._look_at_peak()
        super().step()
        if self._folder.rank is not None and not self._is_announced and self.cycles.are_all(self.stages):
            with self._never_the_loops_fault():  # which lets signals wait
                self._announce(self._folder.rank)

    def _look_at_peak(self) -> None:
        """Note the step that ends if it brought the allocator's peak to where it is."""
        peak_bytes = peak_allocated_bytes(self.device) or 0
        if peak_bytes != self._peak_recorded_bytes:
            self._peak_recorded_bytes, self._is_highest_recorded = peak_bytes, self.stages.is_recording
            self._highest_step = self.num_steps_done + 1

    def _announce(self, rank: Rank) -> None:
        """All is recorded: write it now. A peer's death may end this process where Python never gets to say a word."""
        self._is_announced = True
        self.results = self._results(None)
        self._folder.write(self.results, leave_out=self._leave_out)
        # A folder that has become unwritable is told when the block ends: no step of the training raises it.
        with suppress(OutputError):
            announce(rank, peak_of(rank, self.results), self._folder.save_dir)

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

    def _finish(self, error: BaseException | None) -> None:
        """Explain, write, and say it; an exception from the loop goes on its way, whatever becomes of the files."""
        self.results = self._results(error)
        if not self._is_announced:
            self._folder.write(self.results, leave_out=self._leave_out)
        try:
            if self._folder.rank is not None:
                self._folder.finish(peak_of(self._folder.rank, self.results))
        finally:
            if error is not None and self._is_first_lost(error):
                error.add_note(self._what_is_missing())
            self._has_failed = error is not None
            if not self.voice.is_of_script:
                for line in self.tell():
                    say(line)

    def _write_before_the_end(self, error: Terminated) -> None:
        if self.has_recording and not self._is_announced:
            self.results = self._results(error)
            self._folder.write(self.results, leave_out=self._leave_out)

    def _results(self, error: BaseException | None) -> RunResults:
        return run_results(self, failure=failure_of(error, self, is_raised=True) if error is not None else None)

    def failed_later(self, error: BaseException, report: WatchReport) -> bool:
        """Take memory that ran out after the recorded steps into the results, and write what says it again.

        Args:
            report: Of what watched those steps.

        Returns:
            Whether the answer has it.
        """
        results = self.results
        if results is None or not is_out_of_memory(error) or report.device != results.device:
            return False
        if (failed := failure_in_words(report)) is None:
            return False
        failure = replace(failure_of(error, self, is_raised=True), step=report.event.step)
        note = f"Memory ran out after step {report.event.step:,}, behind the recorded steps."
        notes = (note, *results.notes)
        self.results = shown = replace(results, failure=failure, failed_allocation=failed, notes=notes)
        leave_out = {*self._leave_out, *WITHOUT_FAILURE}
        with numpys_own_names():
            self._guarded(lambda: self._folder.write(shown, leave_out=leave_out))
        return True

    def tell_meanwhile(self) -> None:
        """Say, while a script goes on, that files are written and the answer comes at the end."""
        if self._screen != "none" and self._folder.is_of_first_rank and self.results is not None:
            written = some(len(self._folder.names), "file")
            say_beside_bars(f"Recorded: {written} in {self.folder}. The answer follows when the script ends.")

    def tell(self, explained_in: Path | None = None) -> tuple[str, ...]:
        """The screen, where wanted; a warning for a loop that was too short, and for files that it did not write.

        It is said once.

        Args:
            explained_in: A file on memory that has ended, or grew, after the recorded steps.

        Returns:
            Lines that say what to do next, to be printed last; none where no answer was printed.
        """
        has_failed, self._has_failed = self._has_failed, None
        if has_failed is None:
            return ()
        assert self.results is not None
        if (
            self.results.findings is None
            and not has_failed
            and self._if_too_short
            and not self.recorder.lost_in_threads
        ):
            self.voice.complain(self._what_is_missing())
            if num_waited := self.stages.num_steps_waited:
                self.voice.complain(
                    f"{some(num_waited, 'step', 'was/were')} not recorded, since a torch.profiler of the "
                    "program's own was running, and only one can run at a time."
                )
        if self._folder.is_another:
            self.voice.complain(f"Another session is still using {self.folder.parent}: the files are in {self.folder}.")
        if left := left_from_earlier(self.folder, self.written):
            self.voice.complain(left)
        for file in self.written:
            if file.error is not None and self._screen == "full":
                say_if_failed(file)
            elif file.error is not None:
                self.voice.complain(" ".join(file.error.lines))
        if self._screen == "none" or not self._folder.is_of_first_rank:
            return ()
        note = self._of_another_time() if self.voice.is_of_script else ""
        see = f"Later steps are explained in {explained_in}." if explained_in is not None else ""
        more = (" ".join(filter(None, (note, see))),) if note or see else ()
        return self._print(replace(self.results.answer, remarks=(*more, *self.results.answer.remarks)))

    def _print(self, answer: Answer) -> tuple[str, ...]:
        """Print the answer; return lines that are to stand last: on the files, and what to do next."""
        assert self.results is not None
        results, is_full = self.results, self._screen == "full"
        fit = ""
        if answer.is_alarming and results.failure is not None:
            capacity = results.failure.allocator.get("device")
            fit = fit_words(results.settings, results.origin.device_name, capacity)
        below = _LINES_OF_JOB if RankPlace.here() is not None else 0
        last = after_run(self.folder, self._folder.names, fit=fit, is_full=is_full)
        return self.voice.answer(answer, self, last=last, is_full=is_full, top=self._top, below=below)

    def _of_another_time(self) -> str:
        """A sentence if the script used more memory than in any recorded step; else empty.

        Where an engine slept nothing is said: torch's counter has what was unmapped then, and the peak does not.
        """
        if self.results is None or self.results.failed_allocation is not None:
            return ""
        findings = self.results.findings
        if findings is None or findings.worst.peak.device != str(self.device) or ASLEEP.pieces:
            return ""
        at_end_bytes = peak_allocated_bytes(self.device) or 0
        return larger_elsewhere(
            findings.worst.peak.allocator_peak_bytes,
            self._peak_before_bytes,
            (self._peak_recorded_bytes, self._highest_step),
            at_end_bytes,
            is_recorded=self._is_highest_recorded,
        )

    @property
    def is_incomplete(self) -> bool:
        """Whether a file could not be written, too."""
        return super().is_incomplete or any(file.error is not None for file in self.written)

    def _is_first_lost(self, error: BaseException) -> bool:
        """Whether the loop failed before anything was recorded, and the allocator's history does not explain it."""
        assert self.results is not None
        is_explained = self.results.findings is not None or self.results.failed_allocation is not None
        return isinstance(error, Exception) and not is_explained and self.num_steps_done + 1 < self._first_recorded

    @property
    def _first_recorded(self) -> int:
        return self.stages.num_steps_waited + self.schedule.num_wait_steps + self.schedule.num_warmup_steps + 1

    @property
    def _if_too_short(self) -> str:
        """Return a hint for a loop that ended before anything was recorded; "" for a script without steps."""
        return self.voice.if_too_short if self.num_steps_done or not self.voice.is_of_script else ""


def larger_elsewhere(
    recorded_bytes: int, before_bytes: int, in_steps: tuple[int, int], at_end_bytes: int, *, is_recorded: bool
) -> str:
    """A sentence on a time of a script at which more was allocated than at the peak that is explained.

    Args:
        recorded_bytes: The peak of the recorded steps.
        before_bytes: The allocator's peak until the first step.
        in_steps: Its peak until all was recorded, and the step that brought it there, from 1.
        at_end_bytes: Until the script's end.
        is_recorded: Whether that step was recorded.

    Returns:
        "" where it was less, or no more than figures show.
    """
    until_then_bytes, step = in_steps
    most_bytes = max(before_bytes, until_then_bytes, at_end_bytes)
    if most_bytes <= _MORE * recorded_bytes or format_bytes(most_bytes) == format_bytes(recorded_bytes):
        return ""
    begins = f"The script used more than the peak below: {format_bytes(most_bytes)}"
    if at_end_bytes > until_then_bytes:
        return f"{begins}, after the recorded steps. Use --n-wait-steps to record later ones."
    if until_then_bytes > before_bytes:
        if is_recorded:
            return f"{begins}, in step {step}, of which the recording has less."
        advice = f"Use --n-wait-steps {step - 1} --n-warmup-steps 0 to record it."
        return f"{begins}, in step {step}, which was not recorded. {advice}"
    return f"{begins}, before its first step."


profile_training = TrainingProfile
