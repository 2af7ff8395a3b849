"""Results of a trace of torch.profiler's: of memory as of a run, and where the time of the device went."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from tracer.analysis.profiles.attribution import attribute
from tracer.analysis.profiles.findings import Findings, find_in_cycle, put_together
from tracer.analysis.times.findings import TraceTimes, find_times
from tracer.analysis.times.ranks import JobTimes, RankTimes, compare_ranks
from tracer.capture.kept_run import RunOrigin
from tracer.capture.recording import ProfilerTrace
from tracer.errors import RecordingError
from tracer.null_gpu.process import CUPTI_VERSION
from tracer.results.null_run import CAVEAT
from tracer.results.run_results import RunResults
from tracer.snapshot.remarks import Remarks, printable
from tracer.trace.events import pieces_of
from tracer.trace.load import TraceFile, load_trace

NOT_SAID: Final = "not in the trace"
_NOT_MEASURED: Final = "It was recorded on the null GPU, which computes nothing: times are not measured."


@dataclass(frozen=True, slots=True, eq=False)
class TraceReport:
    """A trace, explained."""

    file: str  # Its name, as the person gave it
    results: RunResults | None  # What it says of memory, as the results of a run; None where it has no allocations
    times: TraceTimes | None  # Where the time of the device went; None where nothing ran on one
    rank: int | None  # The rank that wrote it, in a job; None where the trace does not say
    notes: tuple[str, ...]  # What was odd in the file, in sentences
    missing: tuple[str, ...]  # What the file does not have, in sentences
    is_of_null_gpu: bool = False  # Whether nothing was computed, so that durations in it are made up


def explain_trace(path: Path, *, device: str | None = None, command: str = "") -> TraceReport:
    """Read a trace and ask all questions of it.

    Args:
        device: The device whose memory is meant, as in `str(torch.device)`; by default the one that used most.
    """
    trace = load_trace(path)
    findings = _findings(trace, device)
    attribution = findings.worst.attribution if findings is not None else attribute(trace.recording)
    is_of_null_gpu = _is_of_null_gpu(trace.header)
    times = None if is_of_null_gpu else find_times(trace.recording, attribution, trace.work)
    return TraceReport(
        file=str(path),
        results=None if findings is None else _results(trace, findings, times, path, command),
        times=times,
        rank=_rank(trace.header),
        notes=(_NOT_MEASURED,) * is_of_null_gpu + trace.remarks,
        missing=trace.missing,
        is_of_null_gpu=is_of_null_gpu,
    )


def explain_traces(paths: Iterable[Path], *, device: str | None = None) -> JobTimes:
    """Read the traces of several ranks, one after the other, and put them beside each other.

    Args:
        paths: Paths of the files. One that cannot be read does not stop the others.
    """
    ranks, problems = [], []
    for path in paths:
        try:
            ranks.append(_rank_times(explain_trace(path, device=device)))
        except RecordingError as error:
            problems.append((str(path), str(error)))
    return compare_ranks(ranks, problems)


def _rank_times(report: TraceReport) -> RankTimes:
    findings = report.results.findings if report.results is not None else None
    peak, times = None if findings is None else findings.worst.peak, report.times
    return RankTimes(
        file=report.file,
        rank=report.rank,
        peak_bytes=None if peak is None else peak.peak_bytes,
        device=None if peak is None else peak.device,
        total=None if times is None else times.total,
        num_steps=0 if times is None else len(times.steps),
        collectives={} if times is None else times.collectives,
    )


def _findings(trace: TraceFile, device: str | None) -> Findings | None:
    if not trace.has_memory:
        if device is not None:
            raise RecordingError(f"The trace has no allocations on {device}.", hint="Trace with profile_memory=True.")
        return None
    known = ", ".join(trace.recording.devices)
    if device is not None and device not in trace.recording.devices:
        raise RecordingError(f"The trace has no allocations on {device}.", hint=f"It has some on {known}.")
    return put_together([find_in_cycle(trace.recording, device=device)])


def _results(trace: TraceFile, findings: Findings, times: TraceTimes | None, path: Path, command: str) -> RunResults:
    recording = trace.recording
    files = {recording.strings[file] for file in np.unique(recording.frames.file[recording.frames.user]).tolist()}
    return RunResults(
        findings=findings,
        settings={"trace": str(path)},
        notes=(*trace.remarks, *trace.missing),
        trace=ProfilerTrace(trace.process_id, _bytes_of(path)) if trace.header else None,
        origin=RunOrigin(
            command=command,
            date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            torch=NOT_SAID,
            python=NOT_SAID,
            device_name=_device_name(trace.header),
            caveat=CAVEAT if _is_of_null_gpu(trace.header) else "",
        ),
        project_names={file: file for file in files},
        source_texts={},  # a trace may be anybody's: no file that it names is read
        device=findings.device,
        times=times,
    )


def _bytes_of(path: Path) -> Callable[[], Iterator[bytes]]:
    return lambda: (piece.encode() for piece in pieces_of(path, Remarks()) if piece)


def _is_of_null_gpu(header: Mapping[str, Any]) -> bool:
    return header.get("cupti_version") == CUPTI_VERSION


def _rank(header: Mapping[str, Any]) -> int | None:
    info = header.get("distributedInfo")
    rank = info.get("rank") if type(info) is dict else None
    return rank if type(rank) is int and rank >= 0 else None


def _device_name(header: Mapping[str, Any]) -> str:
    devices = header.get("deviceProperties")
    first = devices[0] if type(devices) is list and devices else None
    name = first.get("name") if type(first) is dict else None
    return printable(name[:200]) if type(name) is str else ""
