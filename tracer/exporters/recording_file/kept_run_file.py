"""recording.npz: what was observed in a run, without conclusions. docs/recording.md describes it.

One walk writes it: a `KeptRun` becomes a JSON document, and each array in it a column with the path to it as its name,
`cycles.0.recording.ops.start_ns`. `Document` reads it back by the types of the fields, and every index is looked at.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tracer.answers.failed_allocation import FailedAllocation
from tracer.answers.findings import GraphPool
from tracer.arrays import ColumnTable, Ints
from tracer.capture.objects.at_failure import ObjectsAtFailure
from tracer.capture.objects.known_storages import Role
from tracer.capture.recording import CallKind, OpKind, Recording
from tracer.capture.run_facts import PHASES, RunFacts
from tracer.capture.sources.compiled_code import NOTHING_COMPILED, CompiledCode
from tracer.errors import RecordingError, SnapshotError
from tracer.exporters.document import Document, Source, plain_values
from tracer.exporters.recording_file.npz import DAMAGED, Arrays, read_columns, write_columns
from tracer.snapshot.load import checked_objects

FORMAT, VERSION = "torch-timeline recording", 3
RECORDING = Source("The recording", RecordingError, DAMAGED)
_RUN, _HISTORY = "run", "history.pickle"
_MAX_DOCUMENT_BYTES = 256 << 20
_MAX_BYTES = 1 << 50  # Of one block or of all together: more than any machine has, and far from where 64 bits end
_MAX_NUMBER = 1 << 62
_DEVICE = re.compile(r"cpu|[a-z]+(:\d{1,4})?")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that a recording or a parameter names."""

    path: str  # As they name it
    # Its path from the root of the user's project, or None for a file that is not of the project.
    project_name: str | None
    text: str | None  # Its source, from which lines were read; None for files that are not the user's


@dataclass(frozen=True, slots=True, eq=False)
class KeptCycle:
    """A cycle's recording, and whether all of its steps were recorded to their end."""

    recording: Recording
    is_whole: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeptRun(RunFacts):
    """Observations of a run, without conclusions."""

    cycles: tuple[KeptCycle, ...]  # Cycles with memory on the device, in order; none if not one step was recorded
    snapshot: dict[str, Any] | None = None  # The allocator's own, on CUDA; elsewhere None
    failure: tuple[str, ...]  # Lines shown of the failure that ended the run; none without one
    ran_out_of_memory: bool  # Whether that failure was memory running out
    device_bytes: int | None = None  # The device's memory; None if it was not known
    notes: tuple[str, ...]  # Sentences on what could not be observed
    sources: tuple[SourceFile, ...]  # Every file that the recordings and the parameters name
    # What torch.compile made of the user's code, with the source of every generated file.
    compiled: CompiledCode = NOTHING_COMPILED
    at_failure: ObjectsAtFailure | None = None  # Objects when memory ran out; None if it did not
    graph_pools: tuple[GraphPool, ...] = ()  # Pools of CUDA graphs; cycles do not record captures
    failed_later: FailedAllocation | None = None  # The request that failed after the recorded steps; None without one
    num_later: int | None = 0  # Cycles behind the one that the snapshot is of; None if it is of none

    @property
    def num_events(self) -> int:
        """Number of profiler events in all cycles."""
        return sum(cycle.recording.num_events for cycle in self.cycles)


# ------------------------------------------------------------------------------------------------------------ writing
def save_kept_run(path: Path, kept: KeptRun) -> None:
    """Write recording.npz, whole or not at all."""
    write_columns(path, kept_run_columns(kept))


def kept_run_columns(kept: KeptRun) -> Arrays:
    """The columns of a run, by the names that docs/recording.md has."""
    columns: Arrays = {}
    settings = {name: _setting(value) for name, value in kept.settings.items()}
    document = plain_values(replace(kept, settings=settings, snapshot=None), "", columns)
    text = json.dumps({"format": FORMAT, "version": VERSION, **document})
    columns = {_RUN: np.frombuffer(text.encode(), np.uint8), **columns}
    if kept.snapshot is not None:
        columns[_HISTORY] = np.frombuffer(pickle.dumps(kept.snapshot, protocol=4), np.uint8)
    return columns


def _setting(value: object) -> object:
    """Return a setting that JSON can have: plain values and tuples of them stay, and the rest becomes text."""
    if isinstance(value, tuple):
        return tuple(_setting(entry) if not isinstance(entry, tuple) else str(entry) for entry in value)
    return value if value is None or type(value) in (bool, int, float, str) else str(value)


# ------------------------------------------------------------------------------------------------------------ reading
def load_kept_run(path: Path) -> KeptRun:
    """Read recording.npz of this version. Nothing in it is executed, and every index is checked.

    Raises:
        RecordingError: It cannot be read, is damaged, of another version, or another program's.
    """
    return kept_run_from(read_columns(path))


def kept_run_from(columns: Arrays) -> KeptRun:
    """The run of which these are the columns."""
    if _RUN not in columns:
        raise RECORDING.refusal(f" has no column {_RUN}.")
    document = Document(columns[_RUN].tobytes(), RECORDING, at_most=_MAX_DOCUMENT_BYTES, columns=columns)
    if (version := document.check_format(FORMAT, VERSION, "a recording of this program")) < VERSION:
        raise RecordingError(
            f"The recording is of format version {version}, which is not read any more.",
            hint="Use the version of this program that wrote it, or profile again with --keep-recording.",
        )
    kept = document.record(KeptRun)
    _check(kept)
    return replace(kept, snapshot=_snapshot_from(columns[_HISTORY], kept.device) if _HISTORY in columns else None)


def _snapshot_from(pickled: Any, device: str) -> dict[str, Any]:
    try:
        snapshot = checked_objects(pickled.tobytes())
    except SnapshotError as error:
        raise RECORDING.refusal("'s allocator data is damaged.") from error
    lists = ("segments", "device_traces")
    if isinstance(snapshot, dict) and ":" in device and all(isinstance(snapshot.get(name), list) for name in lists):
        return snapshot
    raise RECORDING.refusal("'s allocator data is damaged.")


def _check(kept: KeptRun) -> None:
    """Refuse a run with values of the right types that cannot be."""
    if not _DEVICE.fullmatch(kept.device):
        raise RECORDING.refusal(f": {kept.device[:80]!r} is not the name of a device.")
    for number, cycle in enumerate(kept.cycles):
        _check_recording(cycle.recording, f"cycles.{number}.recording")
    known = kept.known
    _check_columns(known, "known", "known", {"names": len(known.names), "devices": len(known.devices)})
    if kept.timings is not None:
        times = [kept.timings.durations_ms.get(name, ()) for name in PHASES]
        if len(set(map(len, times))) > 1 or not times[0] or not np.isfinite(times).all():
            raise RECORDING.refusal(": phases were not timed equally often, or not in numbers.")
    for graph in kept.compiled.graphs:
        if any(not 0 <= row < len(graph.nodes) for rows in graph.buffers.values() for row in rows):
            raise RECORDING.refusal(": a compiled buffer is of a node that is not there.")
    if kept.driver is not None and not kept.driver.looks:
        raise RECORDING.refusal(": the driver was asked, and nothing is said of its answer.")
    for pool in kept.graph_pools:
        if sum(row.bytes for row in pool.rows) != pool.peak_bytes:
            raise RECORDING.refusal(": rows of a CUDA graph's pool do not sum to its peak.")


@dataclass(frozen=True, slots=True)
class Index:
    """A column of rows of another table."""

    table: str
    can_lack: bool = True  # Whether -1 stands for none
    is_before: bool = False  # Whether the row is one before the column's own, as that of what encloses it


INDEXES: dict[str, Index] = {
    "allocations.key": Index("keys"),
    "allocations.device": Index("devices", can_lack=False),
    "allocations.op": Index("ops"),
    "allocations.call": Index("calls"),
    "keys.device": Index("devices", can_lack=False),
    "keys.shape": Index("shapes"),
    "keys.dtype": Index("strings"),
    "flow.edge_node": Index("nodes", can_lack=False),
    "flow.edge_key": Index("keys", can_lack=False),
    "ops.name": Index("strings", can_lack=False),
    "ops.parent": Index("ops", is_before=True),
    "ops.call": Index("calls"),
    "ops.inline_frame": Index("frames"),
    "ops.last_frame": Index("frames"),
    "ops.input_shapes": Index("shapes", can_lack=False),
    "calls.parent": Index("calls", is_before=True),
    "calls.op": Index("ops"),
    "calls.frame": Index("frames"),
    "calls.function": Index("frames"),
    "calls.module": Index("modules"),
    "spans.name": Index("strings", can_lack=False),
    "frames.file": Index("strings", can_lack=False),
    "frames.function": Index("strings", can_lack=False),
    "modules.name": Index("strings", can_lack=False),
    "gradient_keys": Index("keys", can_lack=False),
    "parameter_keys": Index("keys", can_lack=False),
    "optimizer_state_keys": Index("keys", can_lack=False),
    "known.name": Index("names", can_lack=False),
    "known.device": Index("devices", can_lack=False),
    "known.ends_device": Index("devices", can_lack=False),
    "known.asleep_device": Index("devices", can_lack=False),
}
_KINDS: dict[str, int] = {"ops.kind": max(OpKind), "calls.kind": max(CallKind), "known.role": max(Role)}
_SIGNED_BYTES = {"allocations.size_bytes", "allocations.total_allocated_bytes", "allocations.total_reserved_bytes"}


def _check_recording(recording: Recording, at: str) -> None:
    flow = recording.flow
    for kind in ("node_", "edge_"):
        if len({len(getattr(flow, field.name)) for field in fields(flow) if field.name.startswith(kind)}) > 1:
            raise RECORDING.refusal(f": columns of {at}.flow differ in length.")
    parts = {field.name: getattr(recording, field.name) for field in fields(recording)}
    tables = {name: part for name, part in parts.items() if is_dataclass(part)}
    sizes = {name: len(part) for name, part in parts.items() if isinstance(part, (tuple, ColumnTable))}
    for name, table in tables.items():
        _check_columns(table, name, f"{at}.{name}", {**sizes, "nodes": len(flow.node_time_ns)})
    _check_columns(recording, "", at, sizes)
    if any(len(recording.shapes[row]) != 1 for row in set(recording.keys.shape.tolist()) - {-1}):
        raise RECORDING.refusal(f": storages of {at} have no shape, or several.")
    # Each number is allocated once, and freed once and later, as `event_tree` leaves them.
    size, number = recording.allocations.size_bytes, recording.allocations.allocation_id
    if any(len(np.unique(number[rows])) < np.count_nonzero(rows) for rows in (size > 0, size < 0)):
        raise RECORDING.refusal(f": allocations of {at} have the same number.")
    # Nodes are in time order, and edges in that of node and key, each pair once.
    node, key = np.diff(flow.edge_node), np.diff(flow.edge_key)
    if (np.diff(flow.node_time_ns) < 0).any() or (node < 0).any() or ((node == 0) & (key <= 0)).any():
        raise RECORDING.refusal(f": the data flow of {at} is not in order.")


def _check_columns(table: Any, name: str, at: str, sizes: Mapping[str, int]) -> None:
    """Check each column of integers by what its name says of its values.

    Args:
        sizes: Rows of each table that a column may name.
    """
    for field in fields(table):
        column = getattr(table, field.name)
        if isinstance(column, np.ndarray) and column.dtype == np.int64:
            _check_column(column, f"{name}.{field.name}".removeprefix("."), f"{at}.{field.name}", sizes)


def _check_column(column: Ints, name: str, at: str, sizes: Mapping[str, int]) -> None:
    index, is_size = INDEXES.get(name), name.endswith("_bytes")
    low, high = -_MAX_NUMBER, _MAX_NUMBER
    if index is not None:
        low, high = -1 if index.can_lack else 0, sizes[index.table] - 1
    elif name in _KINDS:
        low, high = 0, _KINDS[name]
    elif is_size:
        low, high = -_MAX_BYTES if name in _SIGNED_BYTES else 0, _MAX_BYTES
    elif name.endswith(("_ns", "thread")):
        low = -1
    if len(column) and not (low <= int(column.min()) and int(column.max()) <= high):
        raise RECORDING.refusal(f": column {at} has values outside {low} to {high}.")
    if index is not None and index.is_before and (column >= np.arange(len(column))).any():
        raise RECORDING.refusal(f": column {at} has rows that enclose themselves.")
    # Sizes can be summed in 64 bits. The counters are not sums of their own rows.
    if is_size and ".total_" not in name and float(np.abs(column).sum(dtype=np.float64)) > _MAX_NUMBER:
        raise RECORDING.refusal(f": column {at} has more bytes than there are.")
