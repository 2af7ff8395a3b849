"""Profiles an existing training loop: a session around it, and the files written when it ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tracer.answers.failure import is_out_of_memory
from tracer.answers.rows import Row
from tracer.answers.run_results import RunResults
from tracer.answers.tables import NUM_ROWS
from tracer.arrays import numpys_own_names
from tracer.capture.objects.training_objects import Models, Optimizers
from tracer.errors import OutputError, Terminated, TracerError
from tracer.exporters.files import check_folder
from tracer.exporters.notebook import notebook_html
from tracer.exporters.screen.terminal import say
from tracer.sessions.folder import SessionFolder
from tracer.sessions.jobs.ranks import peak_of
from tracer.sessions.output_files import WITHOUT_FAILURE, Written, write_outputs
from tracer.sessions.profile_answer import HighestStep, ProfileAnswer
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import DEFAULT_SCHEDULE, Schedule
from tracer.sessions.session import Screen, Voice, checked_screen
from tracer.sessions.session_results import failure_of, run_results
from tracer.units import some

if TYPE_CHECKING:
    from tracer.answers.watch_report import WatchReport


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

    _sees_calls = True
    _is_announced = False  # Whether a rank's results are written although its loop goes on

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
        shown = checked_screen(screen)
        super().__init__(
            model,
            optimizer,
            device=device,
            schedule=schedule,
            settings=settings,
            keep_recording=keep_recording,
            voice=voice,
        )
        self.highest, self._leave_out = HighestStep(self.device), leave_out
        assert self._objects is not None
        self.voice.of_optimizers(self._objects)
        self.session_folder = self._folder = folder = SessionFolder(save_dir)
        self.answer = ProfileAnswer(folder, self.stages, self.recorder, self.voice, screen=shown, top=top)

    @property
    def written(self) -> tuple[Written, ...]:
        """The files so far, each with its error if it could not be written."""
        return self.session_folder.written

    @property
    def page(self) -> Path | None:
        """The page, if it was written."""
        return self.session_folder.page

    @property
    def is_complete(self) -> bool:
        """True if all steps that the schedule asks for are recorded; more steps would not be looked at."""
        return self.stages.is_complete

    @property
    def peak_bytes(self) -> int:
        """Allocated bytes at the largest peak; 0 where nothing was recorded. After the block."""
        return self._ended_results.peak_bytes

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows of the largest peak, the largest first; after the block."""
        return self._ended_results.rows

    def to_pandas(self) -> Any:
        """The rows as a pandas.DataFrame; after the block."""
        return self._ended_results.to_pandas()

    def save(self, folder: str | Path) -> tuple[Written, ...]:
        """Write every file once more, to another folder; after the block."""
        results = self._ended_results
        check_folder(Path(folder))
        return write_outputs(results, Path(folder))

    @property
    def _ended_results(self) -> RunResults:
        if self.results is None:
            raise TracerError("The results are available after the block has ended.", hint="Read them after it.")
        return self.results

    def __repr__(self) -> str:
        """Return the answer in a line, for a prompt."""
        if self.results is None:
            return f"<{type(self).__name__}: {some(self.num_steps_done, 'step')} so far>"
        return repr(self.results)

    def _repr_html_(self) -> str:
        if self.results is None:
            return f"<p>Profiling: {some(self.num_steps_done, 'step')} so far.</p>"
        findings = self.results.findings
        notes = [] if findings is not None else [self.answer.missing(self.results)]
        by_category = {} if findings is None else findings.worst.peak.by_category()
        return notebook_html(self.results.answer, by_category, notes=notes, page=self.page)

    def step(self) -> None:
        """End a step. Call it once per step of training, after the optimizer's step."""
        if not self.is_complete:
            self.highest.look(self.device, self.num_steps_done + 1, is_recorded=self.stages.is_recording)
        super().step()
        messages = self.session_folder.messages
        if messages is not None and not self._is_announced and self.cycles.are_all(self.stages):
            with self._never_the_loops_fault():  # which lets signals wait
                # Now: a peer's death may end this process without running any Python code.
                self._is_announced = True
                results = self._write(None, is_due=True)
                # A folder that has become unwritable is told when the block ends: no step of the training raises it.
                with suppress(OutputError):
                    messages.announce(peak_of(messages.rank, results))

    def _write(self, error: BaseException | None, *, is_due: bool) -> RunResults:
        """Put the results together, and write the files that are due."""
        failure = failure_of(error, self, is_raised=True) if error is not None else None
        self.results = results = run_results(self, failure=failure)
        if is_due:
            self.session_folder.write(results, leave_out=self._leave_out)
        return results

    def _finish(self, error: BaseException | None) -> None:
        """Explain, write, and say it; an exception from the loop goes on its way, whatever becomes of the files."""
        results = self._write(error, is_due=not self._is_announced)
        try:
            self.session_folder.finish(results)
        finally:
            if error is not None and self.answer.is_first_lost(error, results):
                error.add_note(self.answer.missing(results))
            self.answer.is_ready()
            if not self.voice.is_of_script:
                for line in self.tell():
                    say(line)

    def _write_before_the_end(self, error: Terminated) -> None:
        if self.cycles.number and not self._is_announced:
            self._write(error, is_due=True)

    def failed_later(self, error: BaseException, report: WatchReport) -> bool:
        """Take memory that ran out after the recorded steps into the results, and write what says it again."""
        results = self.results
        if results is None or not is_out_of_memory(error) or report.device != results.device:
            return False
        from tracer.answers.watch_report import failure_in_words

        if (failed := failure_in_words(report)) is None:
            return False
        failure = replace(failure_of(error, self, is_raised=True), step=report.event.step)
        note = f"Memory ran out after step {report.event.step:,}, behind the recorded steps."
        notes = (note, *results.notes)
        self.results = shown = replace(results, failure=failure, failed_allocation=failed, notes=notes)
        leave_out = {*self._leave_out, *WITHOUT_FAILURE}
        with numpys_own_names():
            self._guarded(lambda: self.session_folder.write(shown, leave_out=leave_out))
        return True

    def tell_meanwhile(self) -> None:
        """Say, while a script goes on, that files are written and the answer comes at the end."""
        if self.results is not None:
            self.answer.tell_meanwhile()

    def tell(self, explained_in: Path | None = None) -> tuple[str, ...]:
        """Print the answer, where wanted; see `ProfileAnswer.tell`."""
        more = self.highest.of_another_time(self.results, self.device)
        return self.answer.tell(self.results, self, of_another_time=more, explained_in=explained_in)

    @property
    def is_incomplete(self) -> bool:
        """True if the session failed at something, or a file could not be written."""
        return super().is_incomplete or any(file.error is not None for file in self.written)


profile_training = TrainingProfile
