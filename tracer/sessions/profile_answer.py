"""Say what a profile has found when its loop has ended, and why where it found nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.answers.answer import Answer
from tracer.capture.device.device_blocks import ASLEEP
from tracer.capture.device.devices import peak_allocated_bytes
from tracer.exporters.screen.next_commands import after_run, fit_words
from tracer.exporters.screen.terminal import say_beside_bars
from tracer.null_gpu.job.place import RankPlace
from tracer.sessions.output_files import left_from_earlier, say_if_failed
from tracer.sessions.session import Screen, Voice
from tracer.units import some

if TYPE_CHECKING:
    from tracer.answers.run_results import RunResults
    from tracer.sessions.training_profile import TrainingProfile

_LINES_OF_JOB = 8  # That follow the answer of the first rank


class ProfileAnswer:
    """The answer of a profile on the screen, with warnings on what is missing."""

    def __init__(self, profile: TrainingProfile, voice: Voice, screen: Screen, top: int) -> None:
        self._profile, self._voice, self._screen, self._top = profile, voice, screen, top
        self._is_due = False

    def tell_meanwhile(self) -> None:
        """Say, while a script goes on, that files are written and the answer comes at the end."""
        folder = self._profile.session_folder
        if self._screen != "none" and folder.is_of_first_rank and self._profile.results is not None:
            written = some(len(folder.names), "file")
            say_beside_bars(f"Recorded: {written} in {folder.path}. The answer follows when the script ends.")

    def is_ready(self) -> None:
        """Note that the block has ended."""
        self._is_due = True

    def tell(self, explained_in: Path | None = None) -> tuple[str, ...]:
        """Print it, where wanted, and warn; both once, when the block has ended.

        Args:
            explained_in: A file on memory that has ended, or grew, after the recorded steps.

        Returns:
            Lines that say what to do next, to be printed last; none where no answer was printed.
        """
        is_due, self._is_due, results = self._is_due, False, self._profile.results
        if not is_due or results is None:
            return ()
        for sentence in self._warnings(results):
            self._voice.complain(sentence)
        for file in self._profile.written:
            if file.error is not None and self._screen == "full":
                say_if_failed(file)
            elif file.error is not None:
                self._voice.complain(" ".join(file.error.lines))
        if self._screen == "none" or not self._profile.session_folder.is_of_first_rank:
            return ()
        note = self._of_another_time(results) if self._voice.is_of_script else ""
        see = f"Later steps are explained in {explained_in}." if explained_in is not None else ""
        more = (" ".join(filter(None, (note, see))),) if note or see else ()
        return self._print(results, replace(results.answer, remarks=(*more, *results.answer.remarks)))

    def _warnings(self, results: RunResults) -> Iterator[str]:
        """Sentences on a loop that was too short, and on the folder."""
        profile, folder = self._profile, self._profile.session_folder
        is_whole = results.failure is None and not profile.recorder.lost_in_threads
        if results.findings is None and is_whole and self._if_too_short:
            yield self.missing(results)
            if num_waited := profile.stages.num_steps_waited:
                yield (
                    f"{some(num_waited, 'step', 'was/were')} not recorded, since a torch.profiler of the "
                    "program's own was running, and only one can run at a time."
                )
        if folder.is_another:
            yield f"Another session is still using {folder.path.parent}: the files are in {folder.path}."
        if left := left_from_earlier(folder.path, profile.written):
            yield left

    def _print(self, results: RunResults, answer: Answer) -> tuple[str, ...]:
        """Print the answer; return lines that are to stand last: on the files, and what to do next."""
        fit, folder, is_full = "", self._profile.session_folder, self._screen == "full"
        if answer.is_alarming and results.failure is not None:
            capacity = results.failure.allocator.get("device")
            fit = fit_words(results.settings, results.origin.device_name, capacity)
        below = _LINES_OF_JOB if RankPlace.here() is not None else 0
        last = after_run(folder.path, folder.names, fit=fit, is_full=is_full)
        return self._voice.answer(answer, self._profile, last=last, is_full=is_full, top=self._top, below=below)

    def _of_another_time(self, results: RunResults) -> str:
        """A sentence if the script used more memory than in any recorded step; else empty.

        Where an engine slept nothing is said: torch's counter has what was unmapped then, and the peak does not.
        """
        findings, device = results.findings, self._profile.device
        if results.failed_allocation is not None or findings is None or ASLEEP.pieces:
            return ""
        peak = findings.worst.peak
        if peak.device != str(device):
            return ""
        return self._profile.highest.sentence(peak.allocator_peak_bytes, peak_allocated_bytes(device) or 0)

    # ------------------------------------------------------------------------------------------ where it found nothing
    def missing(self, results: RunResults | None) -> str:
        """Why nothing was recorded, and what to do about it."""
        failure = results.failure if results is not None else None
        if failure is None:
            ended, advice = f"ended after {some(self._profile.num_steps_done, 'step')}", self._if_too_short
        else:
            schedule = self._profile.schedule
            is_skipped = schedule.num_wait_steps or schedule.num_warmup_steps
            ended = f"failed in step {failure.step + 1}"
            advice = self._voice.to_record_the_first if is_skipped else ""
        what_to_do = f": {advice}" if advice else ""
        return f"The loop {ended}, and the first one that is recorded is step {self._first_recorded}{what_to_do}."

    def is_first_lost(self, error: BaseException, results: RunResults) -> bool:
        """Whether the loop failed before anything was recorded, and the allocator's history does not explain it."""
        is_explained = results.findings is not None or results.failed_allocation is not None
        is_early = self._profile.num_steps_done + 1 < self._first_recorded
        return isinstance(error, Exception) and not is_explained and is_early

    @property
    def _first_recorded(self) -> int:
        schedule = self._profile.schedule
        return self._profile.stages.num_steps_waited + schedule.num_wait_steps + schedule.num_warmup_steps + 1

    @property
    def _if_too_short(self) -> str:
        """Return a hint for a loop that ended before anything was recorded; "" for a script without steps."""
        return self._voice.if_too_short if self._profile.num_steps_done or not self._voice.is_of_script else ""
