"""The door to traces: a path in, a recording and what ran on devices out.

Events that a file has twice are dropped, and allocator counts that it leaves out are filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tracer.arrays import Bool, Column, Int, Ints
from tracer.capture.recording import CallKind, Recording
from tracer.collector import paused_gc
from tracer.errors import RecordingError
from tracer.snapshot.containers import why_no_file
from tracer.snapshot.remarks import Remarks
from tracer.trace.device_work import DeviceWork
from tracer.trace.events import EVENTS_KEY, EventReader, pieces_of
from tracer.trace.recording import HostRows, recording_of
from tracer.trace.tables import NOT_COUNTED, Table, TraceTables

_BASE_KEY = "baseTimeNanoseconds"
_MAX_BASE_NS = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class TraceFile:
    """A trace that was read."""

    recording: Recording  # What it has of operators, calls and memory, as a run's recording has it
    work: DeviceWork
    process_id: int  # Number of the process that has most operators
    header: Mapping[str, Any]  # The values beside the events
    remarks: tuple[str, ...]  # What was odd in the file and how it was read, in sentences
    missing: tuple[str, ...]  # What the file does not have, each with the option that brings it, in sentences

    @property
    def has_memory(self) -> bool:
        """Whether allocators' events are in it."""
        return len(self.recording.allocations.time_ns) > 0


def load_trace(path: Path) -> TraceFile:
    """Read a chrome trace of torch.profiler's, of any age and machine; nothing in it is executed or looked for here.

    Args:
        path: What `export_chrome_trace` or `tensorboard_trace_handler` wrote, packed or not.

    Raises:
        RecordingError: The file is missing, of another kind or hostile, or has nothing of torch's.
    """
    if not path.is_file():
        raise RecordingError(
            f"{path} {why_no_file(path)}.", hint="Name a file that prof.export_chrome_trace(path) wrote."
        )
    remarks, tables = Remarks(), TraceTables()
    with paused_gc():
        reader = EventReader(pieces_of(path, remarks), remarks)
        try:
            for events in reader.batches():
                tables.add(events)
        except RecordingError as error:
            raise RecordingError(f"{path} cannot be read: {error}", hint=_other_command(path) or error.hint) from error
        if not len(tables.operators) and not len(tables.memory) and not len(tables.work):
            raise RecordingError(
                f"{path} is a trace without an operator, an allocation or a kernel of torch's.",
                hint="Record at least one step with torch.profiler.profile(), and call prof.step() behind it.",
            )
        if tables.num_odd:
            what = "Events without a time, a size or a name that their kind needs are left out"
            remarks.add_many(what, tables.num_odd, "in the list of events")
        if tables.num_impossible:
            what = "Events that last for less than nothing, for more than a month or for no number are left out"
            remarks.add_many(what, tables.num_impossible, "in the list of events")
        if num_repeated := drop_repeated(tables):
            remarks.add_many("Events that are in the file twice count once", num_repeated, "in the list of events")
        fill_counts(tables)
        base_ns = _base_ns(reader.header)
        recording, work = recording_of(tables, HostRows(tables, base_ns, remarks), base_ns, _no_text)
    missing = missing_sentences(tables, recording)
    return TraceFile(recording, work, _process_id(tables), reader.header, tuple(remarks.sentences()), missing)


def _other_command(path: Path) -> str:
    """Return a hint for a file of another kind, or an empty text."""
    with path.open("rb") as file:
        is_pickle = file.read(1) == b"\x80"
    if is_pickle or path.suffix in (".pkl", ".pickle"):
        return "An allocator snapshot is read by the command `snapshot`."
    return "A kept recording is read by the command `report`." if path.suffix == ".npz" else ""


def _process_id(tables: TraceTables) -> int:
    threads = list(tables.threads)
    rows = tables.operators["thread"] if len(tables.operators) else tables.memory["thread"]
    process = threads[int(np.bincount(rows).argmax())][0] if len(rows) else 0
    return process if type(process) is int else 0


def is_trace(path: Path) -> bool:
    """Whether a file begins like a trace: an object with the list of events near its beginning.

    Raises:
        RecordingError: It cannot be read.
    """
    head = next(pieces_of(path, Remarks()), "") if path.is_file() else ""
    return head.lstrip().startswith("{") and f'"{EVENTS_KEY}"' in head


def _no_text(file: str) -> None:
    """Sources of this machine are not those of a trace from anywhere."""
    del file


def _base_ns(header: Mapping[str, Any]) -> int:
    base = header.get(_BASE_KEY, 0)
    return base if type(base) is int and 0 <= base <= _MAX_BASE_NS else 0


def missing_sentences(tables: TraceTables, recording: Recording) -> tuple[str, ...]:
    """A sentence for each thing that is missing."""
    is_missing = {
        "Without allocations, nothing is known of memory: profile_memory=True.": not len(tables.memory),
        "Without Python's calls, rows have no line and no module: with_stack=True.": not len(tables.python),
        "Lines are those where functions begin: later versions of torch write where calls were made from.": (
            len(tables.python) > 0 and not (tables.python["called_from"] >= 0).any()
        ),
        "No call of a module is in it: with_stack=True, and the whole step under the profiler.": (
            len(tables.python) > 0 and not (recording.calls.kind == CallKind.MODULE).any()
        ),
        "Without shapes of inputs, tensors have bytes alone: record_shapes=True.": (
            len(tables.operators) > 0 and not tables.has_shapes
        ),
        "No steps are marked: call prof.step() behind each, and begin recording with one (schedule).": (
            not len(recording.step_starts_ns)
        ),
        "Nothing ran on a GPU while it was recorded: activities=[CPU, CUDA].": not len(tables.work),
    }
    sentences = [sentence for sentence, holds in is_missing.items() if holds]
    if tables.num_without_address:
        sentences.append(
            f"{tables.num_without_address:,} allocations and frees say no address, as before torch 1.12: which free is "
            "whose is not known, and they are left out."
        )
    if tables.num_without_count:
        sentences.append(_without_count(tables.num_without_count, tables.num_without_count == len(tables.memory)))
    return tuple(sentences)


def _without_count(number: int, is_every_one: bool) -> str:
    without = f"{number:,} allocations and frees do not say what the allocator counts"
    if is_every_one:
        return (
            f"{without}, as before torch 1.12: what was there before is not known, and the peak is that of what was "
            "recorded."
        )
    return f"{without}: it follows from their sizes and from what the others say."


# Any odd number that spreads the values of a row over 64 bits: the golden ratio's.
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)


def drop_repeated(tables: TraceTables) -> int:
    """Drop rows that are equal to another one in all that is read of an event, and return their number.

    Equal allocations are one only if nothing else happened at their address between them.
    """
    operators, python, work = tables.operators, tables.python, tables.work
    # Short operators of old traces, in whole microseconds and without a number, may look alike.
    is_numbered = (operators["external_id"] >= 0) | (operators["is_region"] != 0)
    return (
        _drop(tables, "operators", _is_repeated(operators) & is_numbered)
        + _drop(tables, "python", _is_repeated(python) & (python["id"] >= 0))
        + _drop(tables, "work", _is_repeated(work) & (work["correlation"] > 0))
        + _drop(tables, "memory", _is_repeated_at_its_address(tables.memory))
    )


def fill_counts(tables: TraceTables) -> None:
    """Set the allocator's count where an event lacks it: from its neighbours' and the sizes in between.

    A device without any count starts with what is freed and was not allocated in the trace.

    Example:
        Sizes 5, -5, 7 and counts 105, missing, missing: 105, 100, 107.
    """
    memory = tables.memory
    if not (memory["allocated_bytes"] == NOT_COUNTED).any():
        return
    memory = memory.copy()
    for device in np.unique(memory["device"]).tolist():
        rows = np.flatnonzero(memory["device"] == device)
        rows = rows[np.argsort(memory["time_ns"][rows], kind="stable")]
        memory["allocated_bytes"][rows] = _counts(memory[rows])
    tables.replace("memory", memory)


def _drop(tables: TraceTables, name: str, dropped: Column[Bool]) -> int:
    if dropped.any():
        tables.replace(name, getattr(tables, name)[~dropped])
    return int(dropped.sum())


def _is_repeated(rows: Table) -> Column[Bool]:
    """[rows] whether an earlier row is equal."""
    key = np.zeros(len(rows), np.uint64)
    for name in rows.dtype.names or ():
        key = (key + rows[name].astype(np.uint64)) * _FACTOR
    order = np.argsort(key, kind="stable")
    candidates = np.flatnonzero(key[order][1:] == key[order][:-1]) + 1
    repeated = np.zeros(len(rows), np.bool_)
    repeated[order[candidates]] = rows[order[candidates]] == rows[order[candidates - 1]]
    return repeated


def _is_repeated_at_its_address(memory: Table) -> Column[Bool]:
    order = np.lexsort((memory["time_ns"], memory["address"], memory["device"]))
    repeated = np.zeros(len(memory), np.bool_)
    repeated[order[1:]] = memory[order[1:]] == memory[order[:-1]]
    return repeated


def _counts(memory: Table) -> Ints:
    counted, changed = memory["allocated_bytes"], np.cumsum(memory["size_bytes"])
    known = np.flatnonzero(counted != NOT_COUNTED)
    if not len(known):
        return np.asarray(changed + _freed_from_before(memory), Int)
    nearest = known[np.maximum(np.searchsorted(known, np.arange(len(memory)), side="right") - 1, 0)]
    return np.asarray(counted[nearest] - changed[nearest] + changed, Int)


def _freed_from_before(memory: Table) -> int:
    allocated: set[int] = set()
    freed_bytes = 0
    for address, size in zip(memory["address"].tolist(), memory["size_bytes"].tolist(), strict=True):
        if size > 0:
            allocated.add(address)
        elif address in allocated:
            allocated.remove(address)
        else:
            freed_bytes -= size
    return freed_bytes
