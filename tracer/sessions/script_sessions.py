"""The sessions of a script that knows nothing of them: what each says, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from tracer.capture.device.devices import peak_allocated_bytes
from tracer.capture.objects.training_objects import TrainingObjects
from tracer.exporters.screen.terminal import say, say_beside_bars
from tracer.exporters.screen.watch import growth_lines
from tracer.results.failure import is_out_of_memory, without_gpu
from tracer.results.watch_report import WatchReport
from tracer.sessions.jobs.ranks import ran_out_later
from tracer.sessions.training import TrainingProfile
from tracer.sessions.watch import GROWS, WATCH_JSON, WATCH_SNAPSHOT, WATCH_TEXT, TrainingWatch
from tracer.units import format_bytes, some

_MUCH_MORE = 1.01


class ScriptTraining(TrainingProfile):
    """The session of `run`: steps are found, and the answer is printed after the script's last line."""

    _steps_end_in_operators = _may_have_one_step = True
    _has_failed: bool | None = None
    """Whether the script raised; None where there is nothing to tell, or all is told."""
    _num_steps_of_script: int | None = None
    _peak_before_bytes = _peak_recorded_bytes = 0
    """The allocator's own peak when the session began, and when it ended."""

    def __enter__(self) -> Self:
        """Begin the session, and remember the allocator's peak until now."""
        self._peak_before_bytes = peak_allocated_bytes(self.device) or 0
        return super().__enter__()

    def tell(self, explained_in: Path | None = None, num_steps: int | None = None) -> None:
        """Print what was found, when the script has ended; once.

        Args:
            explained_in: A file on memory that has ended, or grew, after the recorded steps.
            num_steps: How many steps the script has made; None if that is not known.
        """
        self._num_steps_of_script = num_steps
        has_failed, self._has_failed = self._has_failed, None
        if has_failed is not None:
            if self._screen == "full" and self._folder.is_of_first_rank and (note := self._of_another_time()):
                say(f"Note: {note}{f' See {explained_in}.' if explained_in is not None else ''}")
            super()._tell(has_failed=has_failed)

    @property
    def _num_steps_in_all(self) -> int | None:
        return self._num_steps_of_script

    def _of_another_time(self) -> str:
        """A sentence if the script used more memory than in any recorded step; else empty."""
        findings = self.results.findings if self.results is not None else None
        if findings is None or findings.worst.peak.device != str(self.device):
            return ""
        at_end_bytes = peak_allocated_bytes(self.device) or 0
        return larger_elsewhere(
            findings.worst.peak.allocator_peak_bytes, self._peak_before_bytes, self._peak_recorded_bytes, at_end_bytes
        )

    def tell_meanwhile(self) -> None:
        """Say, while the script goes on, that files are written and the answer comes at the end."""
        if self._screen == "full" and self._folder.is_of_first_rank and self.results is not None:
            written = some(sum(file.error is None for file in self.written), "file")
            say_beside_bars(f"Recorded: {written} in {self.folder}. The answer follows when the script ends.")

    def _tell(self, *, has_failed: bool) -> None:
        self._has_failed = has_failed
        self._peak_recorded_bytes = peak_allocated_bytes(self.device) or 0

    def _if_too_short(self) -> str:
        """Without any step, `ScriptProfile.notes` says why."""
        longer = "record from the first one with --n-warmup-steps 0, or let the script train for longer"
        return longer if self.num_steps_done else ""

    @property
    def _to_record_the_first(self) -> str:
        is_skipped = self.schedule.num_wait_steps or self.schedule.num_warmup_steps
        return "--n-wait-steps 0 --n-warmup-steps 0 record from the first one" if is_skipped else ""

    def _complain(self, sentence: str) -> None:
        """A line on stderr: nobody looks for the line of the script that a warning would name."""
        say(f"Note: {sentence}")

    def _tell_of_optimizers(self, objects: TrainingObjects) -> None:
        """Nothing: nobody said which optimizer belongs to which model, and latents and prompts are trained so."""


def larger_elsewhere(recorded_bytes: int, before_bytes: int, until_then_bytes: int, at_end_bytes: int) -> str:
    """A sentence on a time of a script at which more was allocated than at the peak that is explained.

    Args:
        recorded_bytes: The peak of the recorded steps.
        before_bytes: The allocator's peak until the first step.
        until_then_bytes: Until all was recorded.
        at_end_bytes: Until the script's end.

    Returns:
        "" where it was less, or not 1 % more.
    """
    if max(before_bytes, until_then_bytes, at_end_bytes) <= _MUCH_MORE * recorded_bytes:
        return ""
    if at_end_bytes > until_then_bytes:
        return (
            f"The script used more than the peak below: {format_bytes(at_end_bytes)}, after the recorded steps. "
            "Use --n-wait-steps to record later ones."
        )
    if until_then_bytes > before_bytes:
        return (
            f"The script used more than the peak below: {format_bytes(until_then_bytes)}, in a step that was not "
            "recorded. Use --n-wait-steps 0 --n-warmup-steps 0 to record the first one."
        )
    return f"The script used more than the peak below: {format_bytes(before_bytes)}, before its first step."


class ScriptWatch(TrainingWatch):
    """The session of `run --watch`: its report is printed once, after the script's last line and its traceback."""

    _last_lines: tuple[str, ...] = ()

    def _tell(self, report: WatchReport, *, is_last: bool) -> None:
        if is_last:
            self._last_lines = tuple(self._lines_of(report)) if self._says else ()
        elif report.event.what == GROWS and self._says:
            say_beside_bars(f"After step {report.event.step:,}: {growth_lines(report)[0]}")
            say_beside_bars(f"Written: {self.folder / WATCH_TEXT}. The report follows when the script ends.")
        else:
            super()._tell(report, is_last=is_last)

    def tell(self) -> None:
        """Print the report, when the script has ended; once."""
        lines, self._last_lines = self._last_lines, ()
        self._say(lines)

    def _tell_of_optimizers(self, objects: TrainingObjects) -> None:
        """Nothing, as in `ScriptTraining`."""


class LaterWatch(ScriptWatch):
    """The watch of `run` after the recorded steps: reports only if memory runs out or grows."""

    @property
    def explained_in(self) -> Path | None:
        """The file that says it; None where there was nothing to say."""
        return self.folder / WATCH_TEXT if self.report is not None else None

    def _switch_on(self) -> None:
        for name in (WATCH_TEXT, WATCH_JSON, WATCH_SNAPSHOT):  # an earlier run's
            (self.folder / name).unlink(missing_ok=True)
        super()._switch_on()

    def _last_words(self, error: BaseException | None) -> None:
        if error is not None and is_out_of_memory(error):
            super()._last_words(error)

    @property
    def _is_of_job(self) -> bool:
        return self._folder.rank is not None and self._folder.rank.job_folder is not None

    def _leave(self, report: WatchReport) -> None:
        """What a rank of a job said of its recorded steps stays, unless its memory has ended."""
        if not self._is_of_job:
            super()._leave(report)
        elif report.error and (rank := self._folder.rank) is not None:
            failure = f"{without_gpu(report.error)}, after the recorded steps"
            self._folder.leave(ran_out_later(rank, failure, peak_allocated_bytes(self.device) or 0))

    def _finish(self, error: BaseException | None) -> None:
        if not self._is_of_job:
            super()._finish(error)
