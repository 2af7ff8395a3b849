"""Files that a run leaves behind: the one table of output names, files and writers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from tracer.answers import files
from tracer.answers.answer_of_findings import answer_of_findings
from tracer.answers.files import OutputFile
from tracer.answers.findings import RunFindings
from tracer.answers.labels import labels_of
from tracer.answers.null_run import values_lines
from tracer.answers.operators.memory_report import memory_report
from tracer.answers.recording_findings import find_on_other_device
from tracer.answers.run_results import RunResults
from tracer.capture.device.allocator_history import snapshot_without_times
from tracer.collector import paused_gc
from tracer.errors import OutputError, TracerError
from tracer.exporters.files import write_atomically, write_json
from tracer.exporters.json_documents.peak import peak_document
from tracer.exporters.max_mem import cuda_timing_text, write_max_mem
from tracer.exporters.memory_snapshot import snapshot_of_recording, write_memory_snapshot
from tracer.exporters.page.html import write_pages
from tracer.exporters.page.model import without_times
from tracer.exporters.page.timeline_page import timeline_page
from tracer.exporters.screen.terminal import say
from tracer.exporters.sqlite_reports import write_memory_report, write_run_time_report
from tracer.sessions.termination import signals_deferred
from tracer.units import format_bytes


def _has_times(results: RunResults) -> bool:
    """True if the run has times, which needs that something was computed."""
    return results.findings is not None and results.computed


def _has_snapshot(results: RunResults) -> bool:
    """The allocator's own history is there without findings if the first step ran out of memory."""
    return results.findings is not None or results.snapshot is not None


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
    report = memory_report(_findings(results), parameters=results.parameters, known=results.known)
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


OUTPUTS = (
    Output(files.MAX_MEM, _write_max_mem),
    Output(files.PAGE, _write_page, _has_snapshot),
    Output(files.PEAK, lambda results, path: write_json(path, peak_document(results))),
    Output(files.MEMORY_REPORT, _write_memory_report),
    Output(files.RUN_TIME_REPORT, _write_run_time_report, _has_times),
    Output(files.SNAPSHOT, _write_snapshot, _has_snapshot),
    Output(files.TIMING, _write_timing, lambda results: results.timings is not None),
    Output(
        files.RECORDING,
        _write_recording,
        lambda results: results.keep_recording and (_has_snapshot(results) or results.timings is not None),
    ),
)
WITHOUT_FAILURE = frozenset(output.name for output in OUTPUTS) - {
    *(files.PAGE.name, files.PEAK.name, files.RECORDING.name)
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

    Signals wait until all are written; a second Ctrl-C does not.

    Args:
        tell: Called with each, as soon as it is written or has failed.
    """
    written: list[Written] = []
    with paused_gc(), signals_deferred():
        for output in OUTPUTS:
            if output.name in leave_out or not output.needs(results):
                continue
            path, error = folder / output.file_name, None
            try:
                output.write(results, path)
            except TracerError as problem:
                error = problem
            written.append(Written(output, path, error))
            tell(written[-1])
    return tuple(written)


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
