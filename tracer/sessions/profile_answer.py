"""Say what a profile has found when its loop has ended, and why where it found nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tracer.answers.answer import Answer
from tracer.capture.device.device_blocks import ASLEEP
from tracer.capture.device.devices import peak_allocated_bytes
from tracer.capture.torch_private.torch_history import RAISED
from tracer.exporters.screen.next_commands import after_run, fit_words
from tracer.exporters.screen.terminal import say_beside_bars
from tracer.null_gpu.job.place import RankPlace
from tracer.sessions.folder import SessionFolder
from tracer.sessions.output_files import left_from_earlier, say_if_failed
from tracer.sessions.recorder import Recorder
from tracer.sessions.session import Screen, Voice
from tracer.sessions.stages import Stages
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.answers.run_results import RunResults


_MORE = 1.002


class HighestStep:
    """The step in which the allocator's peak last rose, from 1, and whether it was recorded.

    Attributes:
        before_bytes: The peak before the first step.
        peak_bytes: The peak until the last step that was looked at.
        failed_step: The first step in which memory ran out, though the loop went on; 0 for none.
    """

    def __init__(self, device: torch.device) -> None:
        self.before_bytes = self.peak_bytes = peak_allocated_bytes(device) or 0
        self.step, self.is_recorded, self.failed_step = 0, False, 0
        self._num_raised_before = RAISED.number

    def look(self, device: torch.device, step: int, *, is_recorded: bool) -> None:
        """Note the step that ends if it brought the allocator's peak to where it is."""
        peak_bytes = peak_allocated_bytes(device) or 0
        if RAISED.number > self._num_raised_before:
            self.failed_step = self.failed_step or step
            RAISED.forget()  # the program has caught it
        if peak_bytes != self.peak_bytes:
            self.peak_bytes, self.step, self.is_recorded = peak_bytes, step, is_recorded

    def of_another_time(self, results: RunResults | None, device: torch.device) -> str:
        """Sentences if memory ran out and that was caught, or more was used than in any recorded step; else empty.

        Where an engine slept nothing is said: torch's counter has what was unmapped then, and the peak does not.
        """
        if results is None or results.failed_allocation is not None or results.findings is None or ASLEEP.pieces:
            return ""
        peak = results.findings.worst.peak
        if peak.device != str(device):
            return ""
        more = self.sentence(peak.allocator_peak_bytes, peak_allocated_bytes(device) or 0)
        return " ".join(filter(None, (self.of_caught_errors(), more)))

    def of_caught_errors(self) -> str:
        """A sentence on out-of-memory errors since the beginning; empty without one."""
        if not (count := RAISED.number - self._num_raised_before):
            return ""
        since = (
            f"from step {self.failed_step} on, and the script went on"
            if self.failed_step
            else "after the recorded steps"
        )
        return f"Memory ran out {some(count, 'time')} {since}."

    def sentence(self, recorded_bytes: int, at_end_bytes: int) -> str:
        """A sentence on a time at which more was allocated than at the explained peak; empty if there is none."""
        most_bytes = max(self.before_bytes, self.peak_bytes, at_end_bytes)
        if most_bytes <= _MORE * recorded_bytes or format_bytes(most_bytes) == format_bytes(recorded_bytes):
            return ""
        begins = f"The script used more than the peak below: {format_bytes(most_bytes)}"
        if at_end_bytes > self.peak_bytes:
            return f"{begins}, after the recorded steps. Use --n-wait-steps to record later ones."
        if self.peak_bytes <= self.before_bytes:
            return f"{begins}, before its first step."
        if self.is_recorded:
            return f"{begins}, in step {self.step}, of which the recording has less."
        advice = f"Use --n-wait-steps {self.step - 1} --n-warmup-steps 0 to record it."
        return f"{begins}, in step {self.step}, which was not recorded. {advice}"


_LINES_OF_JOB = 8  # That follow the answer of the first rank


class ProfileAnswer:
    """The answer of a profile on the screen, with warnings on what is missing."""

    def __init__(
        self, folder: SessionFolder, stages: Stages, recorder: Recorder, voice: Voice, *, screen: Screen, top: int
    ) -> None:
        self._folder, self._stages, self._recorder = folder, stages, recorder
        self._voice, self._screen, self._top = voice, screen, top
        self._is_due = False

    def tell_meanwhile(self) -> None:
        """Say, while a script goes on, that files are written and the answer comes at the end."""
        if self._screen != "none" and self._folder.is_of_first_rank:
            written = some(len(self._folder.names), "file")
            say_beside_bars(f"Recorded: {written} in {self._folder.path}. The answer follows when the script ends.")

    def is_ready(self) -> None:
        """Note that the block has ended."""
        self._is_due = True

    def tell(
        self, results: RunResults | None, shown: object, *, of_another_time: str, explained_in: Path | None
    ) -> tuple[str, ...]:
        """Print it, where wanted, and warn; both once, when the block has ended.

        Args:
            of_another_time: A sentence on memory of the script that was in use in no recorded step.
            explained_in: A file on memory that has ended, or grew, after the recorded steps.

        Returns:
            Lines that say what to do next, to be printed last; none where no answer was printed.
        """
        is_due, self._is_due = self._is_due, False
        if not is_due or results is None:
            return ()
        for sentence in self._warnings(results):
            self._voice.warn(sentence)
        for file in self._folder.written:
            if file.error is not None and self._screen == "full":
                say_if_failed(file)
            elif file.error is not None:
                self._voice.warn(" ".join(file.error.lines))
        if self._screen == "none" or not self._folder.is_of_first_rank:
            return ()
        note = of_another_time if self._voice.is_of_script else ""
        see = f"Later steps are explained in {explained_in}." if explained_in is not None else ""
        more = (" ".join(filter(None, (note, see))),) if note or see else ()
        return self._print(results, replace(results.answer, remarks=(*more, *results.answer.remarks)), shown)

    def _warnings(self, results: RunResults) -> Iterator[str]:
        """Sentences on a loop that was too short, and on the folder."""
        folder = self._folder
        is_whole = results.failure is None and not self._recorder.lost_in_threads
        if results.findings is None and is_whole and self._if_too_short:
            yield self.missing(results)
            if num_waited := self._stages.num_steps_waited:
                yield (
                    f"{some(num_waited, 'step', 'was/were')} not recorded, since a torch.profiler of the "
                    "program's own was running, and only one can run at a time."
                )
        if folder.is_another:
            yield f"Another session is still using {folder.path.parent}: the files are in {folder.path}."
        if left := left_from_earlier(folder.path, folder.written):
            yield left

    def _print(self, results: RunResults, answer: Answer, shown: object) -> tuple[str, ...]:
        """Print the answer; return lines that are to stand last: on the files, and what to do next."""
        fit, folder, is_full = "", self._folder, self._screen == "full"
        if answer.is_alarming and results.failure is not None:
            capacity = results.failure.allocator.get("device")
            fit = fit_words(results.settings, results.origin.device_name, capacity)
        below = _LINES_OF_JOB if RankPlace.here() is not None else 0
        last = after_run(folder.path, folder.names, fit=fit, is_full=is_full)
        return self._voice.answer(answer, shown, last=last, is_full=is_full, top=self._top, below=below)

    # ------------------------------------------------------------------------------------------ where it found nothing
    def missing(self, results: RunResults | None) -> str:
        """Why nothing was recorded, and what to do about it."""
        failure = results.failure if results is not None else None
        if failure is None:
            ended, advice = f"ended after {some(self._stages.num_steps, 'step')}", self._if_too_short
        else:
            schedule = self._stages.schedule
            is_skipped = schedule.num_wait_steps or schedule.num_warmup_steps
            ended = f"failed in step {failure.step + 1}"
            advice = self._voice.to_record_the_first if is_skipped else ""
        what_to_do = f": {advice}" if advice else ""
        return f"The loop {ended}, and the first one that is recorded is step {self._first_recorded}{what_to_do}."

    def is_first_lost(self, error: BaseException, results: RunResults) -> bool:
        """True if the loop failed before anything was recorded, and the allocator's history does not explain it."""
        is_explained = results.findings is not None or results.failed_allocation is not None
        is_early = self._stages.num_steps + 1 < self._first_recorded
        return isinstance(error, Exception) and not is_explained and is_early

    @property
    def _first_recorded(self) -> int:
        schedule = self._stages.schedule
        return self._stages.num_steps_waited + schedule.num_wait_steps + schedule.num_warmup_steps + 1

    @property
    def _if_too_short(self) -> str:
        """Return a hint for a loop that ended before anything was recorded; "" for a script without steps."""
        return self._voice.if_too_short if self._stages.num_steps or not self._voice.is_of_script else ""
