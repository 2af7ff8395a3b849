"""Which files a run leaves behind: the one table of output names, files and writers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tracer.answers import files
from tracer.answers.answer_of_findings import answer_of_findings
from tracer.answers.files import OutputFile
from tracer.answers.findings import RunFindings
from tracer.answers.labels import labels_of
from tracer.answers.null_run import values_lines
from tracer.answers.operators.memory_report import memory_report
from tracer.answers.recording_findings import find_on_other_device
from tracer.answers.run_results import RunResults
from tracer.capture import deferred_handlers
from tracer.capture.device.allocator_history import snapshot_without_times
from tracer.collector import paused_gc
from tracer.errors import OutputError, TracerError
from tracer.exporters.files import write_atomically, write_json
from tracer.exporters.json_documents.peak import peak_document
from tracer.exporters.max_mem import cuda_timing_text, write_max_mem
from tracer.exporters.memory_snapshot import (
    snapshot_of_recording,
    write_memory_snapshot,
)
from tracer.exporters.page.html import write_pages
from tracer.exporters.page.model import without_times
from tracer.exporters.page.timeline_page import timeline_page
from tracer.exporters.screen.next_commands import command_line
from tracer.exporters.screen.terminal import say
from tracer.exporters.sqlite_reports import write_memory_report, write_run_time_report
from tracer.sessions.termination import SIGNALS, Termination, uninterrupted
from tracer.units import format_bytes


class WritingInterrupted(KeyboardInterrupt):
    """Ctrl-C has come while files were written; the message says which are there."""


class FilesInTurn:
    """Files that are written one after another, and how the program is ended meanwhile.

        with FilesInTurn(paths) as turn:
            for path in paths:
                with turn.writing(path):
                    ...

    Ctrl-C lets the file at work come to its end and no other one begin, but for one from which the rest can be made; a
    second one ends that one too. Then WritingInterrupted leaves the block. SIGTERM, behind which there is nobody in a
    hurry, waits for all files, and so does SIGHUP; then Terminated leaves the block. A handler of the program's own is
    called after the last file.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._written: list[Path] = []
        self._keeps_rest: Path | None = None
        self._termination = Termination()

    def __enter__(self) -> Self:
        self._termination.hold()
        self._termination.watch()
        return self

    def keeps_the_rest_in(self, path: Path) -> bool:
        """Return True if one more file may be written after Ctrl-C, from which the unwritten files can be made."""
        if self._termination.num_interrupts < 2 and path not in self._written:
            self._keeps_rest = path
        return self._keeps_rest is not None

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Around the writing of one file; raises KeyboardInterrupt instead if Ctrl-C has come."""
        if self._termination.num_interrupts and path != self._keeps_rest:
            raise KeyboardInterrupt
        yield
        self._written.append(path)

    @uninterrupted
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Listen no longer, and raise what has waited."""
        is_interrupted = self._termination.num_interrupts > 0
        due = self._termination.forget()
        try:
            if isinstance(error, KeyboardInterrupt) or (error is None and is_interrupted):
                raise WritingInterrupted(self._sentence()) from None
            if due is not None and (error is None or due != signal.SIGINT):
                SIGNALS.pass_on(due)
        finally:
            deferred_handlers.deliver()

    def _sentence(self) -> str:
        missing = [path for path in self._paths if path not in self._written]
        parts = [
            f"{words} {', '.join(path.name for path in paths)}"
            for words, paths in (("wrote", self._written), ("not written:", missing))
            if paths
        ]
        kept = self._keeps_rest if self._keeps_rest in self._written else None
        rest = f" {command_line('report', kept.parent)} writes these." if kept is not None and missing else ""
        return f"Interrupted while writing: {'; '.join(parts)}.{rest}"


def _has_times(results: RunResults) -> bool:
    """True if the run has times, which needs that something was computed."""
    return results.findings is not None and results.computed


def _has_snapshot(results: RunResults) -> bool:
    """The allocator's own history is there without findings if the first step ran out of memory."""
    return results.findings is not None or results.snapshot is not None


def _can_be_kept(results: RunResults) -> bool:
    return _has_snapshot(results) or results.timings is not None


def _findings(results: RunResults) -> RunFindings:
    """The findings, without which an output is not due."""
    if results.findings is None:
        raise ValueError("this output needs findings")
    return results.findings


@dataclass(frozen=True, slots=True)
class Output:
    """A file and how it is written."""

    file: OutputFile  # Its names
    write: Callable[[RunResults, Path], None]  # Takes a run's results and the file's path
    # Whether results allow it, and it was asked for
    needs: Callable[[RunResults], bool] = lambda results: results.findings is not None

    @property
    def name(self) -> str:
        """Name in the option `--no-<name>`."""
        return self.file.name

    @property
    def file_name(self) -> str:
        """Name of the file in the folder."""
        return self.file.file_name


def run_description(results: RunResults) -> dict[str, str | int | float]:
    """Describe the run for a reader: when, where, with which settings."""
    described: dict[str, str | int | float] = {"computed": results.origin.caveat} if not results.computed else {}
    described |= {
        "command": results.origin.command,
        "date": results.origin.date,
        "torch": results.origin.torch,
        "python": results.origin.python,
    }
    if (findings := results.findings) is not None:
        described |= {"device": findings.device, "cycles": len(findings.parts)}
        if results.origin.device_name:
            described["device name"] = results.origin.device_name
    if results.parameters:
        size_bytes = sum(parameter.size_bytes for parameter in results.parameters)
        described["parameters"] = f"{len(results.parameters):,} tensors, {format_bytes(size_bytes)}"
    for name, value in results.settings.items():
        if value not in (None, "", (), False):
            text = "x".join(map(str, value)) if isinstance(value, tuple) else value
            described[name.replace("_", " ")] = text if isinstance(text, str | int | float) else str(text)
    return described


def _write_page(results: RunResults, path: Path) -> None:
    findings, run, answer = results.findings, run_description(results), results.answer
    if findings is None:
        _write_page_of_history(results, path)
        return
    run_times = findings.run_times if _has_times(results) else None
    title = "Memory of a training run" if results.predicted is None else "Predicted memory of a training step"
    page = timeline_page(
        findings,
        answer,
        run=run,
        title=title,
        run_times=run_times,
        failed=None if results.predicted is not None else results.failed_allocation,
        source_of=results.source_of,
    )
    pages = [page]
    for device in findings.other_devices:  # accelerators, the one that held most first
        other = results.history.joined(find_on_other_device(findings, device, known=results.known), results.known)
        of_device, said = {**run, "device": other.device}, answer_of_findings(other, answer.caveat)
        pages.append(timeline_page(other, said, run=of_device, title=title, run_times=run_times))
    shown = pages if _has_times(results) else [without_times(page) for page in pages]
    write_pages(shown, path, names=results.name_in_project, root=results.sources_root)


def _write_page_of_history(results: RunResults, path: Path) -> None:
    """A run that ended before anything was recorded is shown from the allocator's history, where there is one."""
    from tracer.answers.failed_allocation import held_at_failure, last_seen
    from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
    from tracer.exporters.page.snapshot_page import write_snapshot_page

    if (columns := results.history.columns) is None:
        raise OutputError("The allocator's history cannot be read, so there is no page.", hint="The notes say why.")
    kind = results.device.partition(":")[0]
    now = {
        state.device: held_at_failure(results.known, f"{kind}:{state.device}", results.findings)
        for state in columns.devices
    }
    found = explain_replayed(replay_snapshot(columns, held=last_seen(results.known), held_now=now))
    if not found.parts:
        raise OutputError(
            "The allocator's history has no device with memory, so there is no page.", hint="Record a later step."
        )
    write_snapshot_page(found, path, run=run_description(results), worst=results.answer)


def _write_memory_report(results: RunResults, path: Path) -> None:
    findings = _findings(results)
    report = memory_report(findings, parameters=results.parameters, known=results.known)
    write_memory_report(report, path, relative=results.name_in_project)


def _write_run_time_report(results: RunResults, path: Path) -> None:
    write_run_time_report(_findings(results).run_times, path, relative=results.name_in_project)


def _write_max_mem(results: RunResults, path: Path) -> None:
    findings = _findings(results)
    peaks = [cycle.peak for cycle in findings.averaged]
    notes = values_lines(results.values_read)
    write_max_mem(findings.breakdown, peaks, path, caveat=results.origin.caveat, notes=notes)


def _write_snapshot(results: RunResults, path: Path) -> None:
    """Write the snapshot of the cycle that the allocator's history covers, else of the cycle with the largest peak."""
    if results.snapshot is not None and (results.findings is None or results.history.notes):
        write_memory_snapshot(results.snapshot, path)
        return
    findings = _findings(results)
    snapshot = results.history.labelled(findings, results.known)
    if snapshot is None:
        cycle = findings.worst.source
        labels = labels_of(cycle.recording, cycle.blocks)
        snapshot = snapshot_of_recording(cycle.recording, cycle.lifetimes, labels=labels)
    snapshot = snapshot if results.computed else snapshot_without_times(snapshot)
    write_memory_snapshot(snapshot, path)


def _write_timing(results: RunResults, path: Path) -> None:
    assert results.timings is not None  # else it is not needed
    write_atomically(path, cuda_timing_text(results.timings))


def _write_recording(results: RunResults, path: Path) -> None:
    from tracer.exporters.recording_file.kept_run_file import save_kept_run
    from tracer.sessions.stored_results import kept_run

    save_kept_run(path, kept_run(results))


def _write_peak_json(results: RunResults, path: Path) -> None:
    write_json(path, peak_document(results))


_RECORDING = Output(files.RECORDING, _write_recording, lambda results: results.keep_recording and _can_be_kept(results))
OUTPUTS = (
    Output(files.MAX_MEM, _write_max_mem),
    Output(files.PAGE, _write_page, _has_snapshot),
    Output(files.PEAK, _write_peak_json),
    Output(files.MEMORY_REPORT, _write_memory_report),
    Output(files.RUN_TIME_REPORT, _write_run_time_report, _has_times),
    Output(files.SNAPSHOT, _write_snapshot, _has_snapshot),
    Output(files.TIMING, _write_timing, lambda results: results.timings is not None),
    _RECORDING,
)
WITHOUT_FAILURE = frozenset(output.name for output in OUTPUTS) - {
    *(files.PAGE.name, files.PEAK.name, files.RECORDING.name),
}
"""Outputs that are about the recorded steps alone, and the same if memory runs out after them."""


@dataclass(frozen=True, slots=True)
class Written:
    """One output after writing: its path, or the error that prevented it."""

    output: Output
    path: Path
    error: TracerError | None = None


def write_outputs(
    results: RunResults,
    folder: Path,
    *,
    leave_out: Collection[str] = (),
    tell: Callable[[Written], None] = lambda written: None,
) -> tuple[Written, ...]:
    """Write every output that the results allow; one that fails does not keep the others from being written.

    Args:
        tell: Called with each, as soon as it is written or has failed.

    Raises:
        WritingInterrupted: Ctrl-C has come; see `FilesInTurn`. The recording is kept, if it can be.
        Terminated: SIGTERM has come, and all are written.
    """
    due = [
        Written(output, folder / output.file_name)
        for output in OUTPUTS
        if output.name not in leave_out and output.needs(results)
    ]
    all_written: list[Written] = []

    def write(file: Written) -> None:
        try:
            with turn.writing(file.path):
                file.output.write(results, file.path)
        except TracerError as error:
            all_written.append(replace(file, error=error))
        else:
            all_written.append(file)
        tell(all_written[-1])

    with paused_gc(), FilesInTurn([file.path for file in due]) as turn:
        try:
            for file in due:
                write(file)
        except KeyboardInterrupt:
            recording = Written(_RECORDING, folder / _RECORDING.file_name)
            if _can_be_kept(results) and turn.keeps_the_rest_in(recording.path):
                write(recording)
            raise
    return tuple(all_written)


def say_if_failed(written: Written) -> None:
    """Say on stderr that an output could not be written."""
    if written.error is not None:
        for line in written.error.lines:
            say(line)


def write_and_say(results: RunResults, folder: Path) -> bool:
    """Write every output; False if one could not be written, which is said."""
    written = write_outputs(results, folder, tell=say_if_failed)
    return all(file.error is None for file in written)


def left_from_earlier(folder: Path, written: Collection[Written]) -> str:
    """A sentence on files of ours in the folder that this run has not written, and that could be taken for its own.

    They are not removed: a run that fails, or leaves a file out, has no right to an earlier one's results.
    """
    ours = {file.path for file in written if file.error is None}
    paths = [folder / output.file_name for output in OUTPUTS]
    left = [path.name for path in paths if path.is_file() and path not in ours]
    are = "is" if len(left) == 1 else "are"
    return f"{', '.join(left)} in {folder} {are} from an earlier run, not of this one." if left else ""
