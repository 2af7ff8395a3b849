"""trace.json.gz: the profiler's own trace with memory above the operators, for Perfetto and chrome://tracing.

The profiler's text passes through as it is; behind the bracket that opens its list of events come ours: a counter for
each category and for the total, one lane per phase, and the peak. Times of both are the profiler's clock. The file is
the trace-event format, `ts` in microseconds since `baseTimeNanoseconds`.

Source:
    "Trace Event Format" of the Chromium project; `output_json.cpp` of libkineto, torch 2.11 to 2.15, whose times are
    `(ns - baseTimeNanoseconds) / 1000` with three decimals.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from tracer.analysis.profiles.counted_blocks import counted_blocks
from tracer.analysis.profiles.findings import CycleFindings
from tracer.arrays import Ints
from tracer.capture.recording import ProfilerTrace
from tracer.errors import RecordingError
from tracer.exporters.files import replacing
from tracer.trace.events import trace_head
from tracer.units import format_bytes

_MAX_HEAD_BYTES = 64 << 20
_ROWS_AT_A_TIME = 1 << 15
_BASE_KEY = "baseTimeNanoseconds"


def write_trace(trace: ProfilerTrace, cycle: CycleFindings, path: Path) -> None:
    """Write trace.json.gz, whole or not at all, in pieces: memory does not grow with the trace.

    Raises:
        RecordingError: The profiler did not give its trace, or in a shape that is not known here.
    """
    chunks = trace.chunks()
    head, rest, base_ns = _split_head(chunks)
    events = memory_events(cycle, process_id=trace.process_id, base_ns=base_ns)
    with replacing(path) as temporary, temporary.open("wb") as file, _packed(file) as packed:
        packed.write(head)
        is_first = True
        for some in events:
            packed.write(b"\n" if is_first else b",\n")
            packed.write(some)
            is_first = False
        if not rest.lstrip().startswith(b"]"):
            packed.write(b",")
        for chunk in chain((rest,), chunks):
            packed.write(chunk)


def _packed(file: IO[bytes]) -> gzip.GzipFile:
    """Without a name and a time of its own, so that the same trace is the same file."""
    return gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0)


# ------------------------------------------------------------------------------------------------------ theirs
def _split_head(chunks: Iterator[bytes]) -> tuple[bytes, bytes, int]:
    """Everything up to the bracket behind "traceEvents", what follows it in the piece, and the base of the times."""
    text = b""
    for chunk in chunks:
        text += chunk
        try:
            whole = text.decode("utf-8", "surrogateescape")
            end, values = trace_head(whole)
        except (ValueError, IndexError):  # cut in the middle of a value: the next piece has the rest
            if len(text) > _MAX_HEAD_BYTES:
                break
            continue
        base_ns = values.get(_BASE_KEY, 0)
        if not isinstance(base_ns, int) or not whole.lstrip().startswith("{"):
            break
        end = len(whole[:end].encode("utf-8", "surrogateescape"))
        return text[:end], text[end:], base_ns
    raise RecordingError(
        "The profiler's trace is not JSON, or not of the shape that is known here.",
        hint="Torch does not escape metadata: leave quotes and line ends out of prof.add_metadata.",
    )


# -------------------------------------------------------------------------------------------------------- ours
def memory_events(cycle: CycleFindings, *, process_id: int = 0, base_ns: int = 0) -> Iterator[bytes]:
    """Our trace events as JSON, some thousands at a time, with commas between them.

    A counter has an event where its value changes, in allocator order. A clock that steps back, as two threads' can
    by some nanoseconds, stands still instead: viewers sort by time. The total is the allocator's own count, so its
    largest value is the peak.
    """
    lifetimes, allocations = cycle.lifetimes, cycle.recording.allocations
    times = np.maximum.accumulate(allocations.time_ns[lifetimes.events])
    start = _start_ns(cycle)
    total = lifetimes.allocator_bytes
    counters = [("memory total", int(total[0] - allocations.size_bytes[lifetimes.events[0]]), total)]
    counters += [
        (f"memory {kind.name}", int(level[0]), level[1:]) for kind, level in counted_blocks(cycle).by_kind.items()
    ]
    reserved = allocations.total_reserved_bytes[lifetimes.events]
    if cycle.peak.device != "cpu" and reserved.any():
        counters.append(("memory reserved", int(reserved[0]), reserved))
    for name, before, values in counters:
        yield from _counter(name, before, values, times, start, process_id, base_ns)
    yield from _phases(cycle, process_id, base_ns)
    peak = cycle.peak
    yield _event(
        {  # of the whole process
            "ph": "i",
            "s": "p",
            "cat": "memory",
            "name": f"peak {format_bytes(peak.peak_bytes)}",
            "pid": process_id,
            "tid": process_id,
            "ts": (peak.time_ns - base_ns) / 1000,
            "args": {"bytes": peak.peak_bytes, "device": peak.device, "step": peak.step, "phase": peak.phase},
        }
    )


def _start_ns(cycle: CycleFindings) -> int:
    recording = cycle.recording
    columns = (recording.ops.start_ns, recording.spans.start_ns, recording.allocations.time_ns)
    return min(int(column.min()) for column in columns if len(column))


def _counter(
    name: str, before: int, values: Ints, times: Ints, start_ns: int, process_id: int, base_ns: int
) -> Iterator[bytes]:
    # Perfetto names the track by both: "memory ACTIVATION bytes".
    opening = json.dumps({"ph": "C", "cat": "memory", "name": name, "pid": process_id, "tid": process_id})[:-1]
    rows = np.flatnonzero(np.diff(values, prepend=before))
    nanoseconds = np.concatenate(([min(start_ns, int(times[0]))], times[rows])) - base_ns
    levels = np.concatenate(([before], values[rows]))
    for first in range(0, len(levels), _ROWS_AT_A_TIME):
        some = slice(first, first + _ROWS_AT_A_TIME)
        microseconds, thousandths = np.divmod(nanoseconds[some], 1000)
        yield ",\n".join(
            f'{opening}, "ts": {us}.{ns:03d}, "args": {{"bytes": {level}}}}}'
            for us, ns, level in zip(microseconds.tolist(), thousandths.tolist(), levels[some].tolist(), strict=True)
        ).encode()


def _phases(cycle: CycleFindings, process_id: int, base_ns: int) -> Iterator[bytes]:
    """A lane for each: phases of a step overlap where passes take turns, and slices of one lane may not."""
    for phase in cycle.step_phases:
        yield _event(
            {
                "ph": "X",
                "cat": "memory",
                "name": phase.phase,
                "pid": process_id,
                "tid": f"phase {phase.phase}",
                "ts": (phase.start_ns - base_ns) / 1000,
                "dur": phase.duration_ns / 1000,
                "args": {"step": phase.step, "peak bytes": phase.peak_bytes},
            }
        )


def _event(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode()
