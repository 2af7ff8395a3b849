"""Write and say what a watch has found: at once, or where a script is watched, when it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from tracer.answers.failure import without_gpu
from tracer.answers.files import SNAPSHOT, WATCH_JSON
from tracer.answers.watch_report import WatchReport, answer_of_watch, growth_sentences
from tracer.capture.device.devices import peak_allocated_bytes
from tracer.exporters.files import write_atomically, write_json
from tracer.exporters.json_documents.watch import watch_values
from tracer.exporters.memory_snapshot import write_memory_snapshot
from tracer.exporters.notebook import Paragraph
from tracer.exporters.screen.answer import print_answer
from tracer.exporters.screen.terminal import say, say_beside_bars, text_of
from tracer.sessions.folder import SessionFolder
from tracer.sessions.jobs.ranks import RankMessage, peak_of_watched, ran_out_later
from tracer.sessions.session import Screen, Voice

WATCH_TEXT: Final = "watch.txt"


def write_watch(report: WatchReport, snapshot: Mapping[str, Any] | None, folder: Path) -> None:
    """Write the files of a report."""
    text = text_of(lambda console: print_answer(answer_of_watch(report), console, full=True))
    write_atomically(folder / WATCH_TEXT, text)
    write_json(folder / WATCH_JSON, watch_values(report))
    if snapshot is not None:
        write_memory_snapshot(dict(snapshot), folder / SNAPSHOT.file_name)


def leave_of_rank(folder: SessionFolder, report: WatchReport, device: torch.device, *, is_later: bool) -> None:
    """Leave the rank's figures so far for the summary of all ranks.

    What a rank of a job said of its recorded steps stays, unless its memory has ended.
    """
    if (messages := folder.messages) is None:
        return
    if not is_later or messages.rank.job_folder is None:
        messages.leave(peak_of_watched(messages.rank, report, has_ended=False))
    elif report.error:
        failure = without_gpu(report.error)
        messages.leave(ran_out_later(messages.rank, failure, peak_allocated_bytes(device) or 0))


def finish_rank(
    folder: SessionFolder, report: WatchReport | None, error: BaseException | None, *, num_steps: int, is_later: bool
) -> None:
    """Leave the last words of a rank that has ended, with its last report if it has one."""
    if (messages := folder.messages) is None or (is_later and messages.rank.job_folder is not None):
        return
    rank = messages.rank
    if report is not None:
        peak = peak_of_watched(rank, report, has_ended=True)
    else:
        peak = RankMessage(rank.index, rank.run, num_steps=num_steps, failure=type(error).__name__)
    messages.finish(replace(peak, failure=peak.failure if error is not None else ""))


class WatchAnswer:
    """The reports of a watch on the screen."""

    def __init__(self, folder: SessionFolder, voice: Voice, screen: Screen) -> None:
        self._folder, self._voice = folder, voice
        self._screen = screen if folder.is_of_first_rank else "none"
        self._untold: WatchReport | None = None  # The last report of a script, until that has ended

    def has(self, report: WatchReport, *, is_last: bool) -> None:
        """Say a report at once; a script's last report waits for its last line and its traceback."""
        if not self._voice.is_of_script:
            self._say(report)
        elif is_last:
            self._untold = report
        elif self._screen != "none":
            say_beside_bars(f"After step {report.event.step:,}: {(*growth_sentences(report), report.event.what)[0]}")
            say_beside_bars(f"Written: {self._folder.path / WATCH_TEXT}. The report follows when the script ends.")

    def tell(self) -> None:
        """Print the last report of a script, when that has ended; once."""
        report, self._untold = self._untold, None
        if report is not None:
            self._say(report)

    def _say(self, report: WatchReport) -> None:
        if self._screen != "none":
            answer = answer_of_watch(report)
            files = f"Files in {self._folder.path}: {WATCH_TEXT}, {WATCH_JSON}."
            shown = Paragraph("\n".join((*answer.sentences, files)))
            for line in self._voice.answer(answer, shown, last=[files], is_full=self._screen == "full"):
                say(line)
