"""`Recording` and `KnownStorages` as named columns, and back, with every index looked at.

A column keeps the name that it has in `tracer/capture`, behind the name of its table: `cycle0.ops.start_ns`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from tracer.arrays import Bools, Ints
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.recording import (
    Allocations,
    CallKind,
    Calls,
    DataFlow,
    Frames,
    Kernels,
    Keys,
    Modules,
    OpKind,
    Ops,
    Recording,
    Spans,
)
from tracer.capture.sources.compiled_code import (
    NOTHING_COMPILED,
    CompiledCode,
    CompiledGraph,
    CompiledNode,
)
from tracer.capture.sources.source_line import SourceLine
from tracer.errors import RecordingError
from tracer.exporters.document import Document
from tracer.exporters.recording_file.checked_columns import DAMAGED, MAX_BYTES, RECORDING, Columns, text_columns

_NAME = "compiled"
_MAX = 1_000_000


def compiled_columns(code: CompiledCode) -> Arrays:
    """The document as a column; none where nothing was compiled."""
    if code == NOTHING_COMPILED:
        return {}
    document = {
        "graphs": [_graph(graph) for graph in code.graphs],
        "cuda_graphs_left_out": list(code.cuda_graphs_left_out),
        "cuda_graphs_bytes": code.cuda_graphs_bytes,
    }
    return {_NAME: np.frombuffer(json.dumps(document).encode(), np.uint8)}


def _graph(graph: CompiledGraph) -> dict[str, Any]:
    lines = {line: None for node in graph.nodes for line in node.lines}
    row = {line: number for number, line in enumerate(lines)}
    return asdict(replace(graph, nodes=(), buffers={})) | {
        "num_outputs": graph.num_outputs + 1,
        "lines": [line._asdict() for line in lines],
        "nodes": [
            asdict(replace(node, lines=()))
            | {"lines": [row[line] for line in node.lines], "module_id": str(node.module_id)}
            for node in graph.nodes
        ],
        "buffers": [{"name": name, "nodes": list(rows)} for name, rows in graph.buffers.items()],
    }


def compiled_from(columns: Columns) -> CompiledCode:
    """What was compiled, of a file that may be anybody's."""
    if _NAME not in columns:
        return NOTHING_COMPILED
    document = Document(columns.blob(_NAME), RECORDING)
    return CompiledCode(
        graphs=tuple(map(_graph_from, document.documents("graphs", at_most=_MAX))),
        cuda_graphs_left_out=document.texts("cuda_graphs_left_out"),
        cuda_graphs_bytes=document.number("cuda_graphs_bytes"),
    )


def _graph_from(document: Document) -> CompiledGraph:
    lines = [line.record(SourceLine) for line in document.documents("lines", at_most=_MAX)]
    nodes = tuple(
        CompiledNode(
            node.text("name"),
            tuple(lines[row] for row in node.numbers("lines", below=len(lines))),
            _module_id(node.text("module_id")),
            node.text("module"),
            node.truth("is_recomputed"),
            node.truth("has_stack"),
        )
        for node in document.documents("nodes", at_most=_MAX)
    )
    buffers = document.documents("buffers", at_most=_MAX)
    return CompiledGraph(
        path=document.text("path"),
        text=document.source("text"),
        compile_id=document.text("compile_id"),
        is_backward=document.truth("is_backward"),
        num_outputs=document.number("num_outputs") - 1,
        nodes=nodes,
        buffers={buffer.text("name"): buffer.numbers("nodes", below=len(nodes)) for buffer in buffers},
        outputs=document.texts("outputs"),
    )


def _module_id(text: str) -> int:
    """Parse an `id()`, stored as text since JSON readers lose digits of large numbers."""
    if not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise RecordingError("The number of a module is none.", hint=DAMAGED)
    return int(text)


Table = TypeVar("Table")
Arrays = dict[str, npt.NDArray[Any]]

TABLES: dict[str, type] = {
    "allocations": Allocations,
    "keys": Keys,
    "flow": DataFlow,
    "ops": Ops,
    "calls": Calls,
    "spans": Spans,
    "frames": Frames,
    "modules": Modules,
    "kernels": Kernels,
}
KEY_LISTS = ("gradient_keys", "parameter_keys", "optimizer_state_keys")


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
    "flow.edge_node": Index("flow.nodes", can_lack=False),
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
}
_KINDS: dict[str, int] = {"ops.kind": max(OpKind), "calls.kind": max(CallKind)}
_SIGNED_BYTES = {"allocations.size_bytes", "allocations.total_allocated_bytes", "allocations.total_reserved_bytes"}
_NODES = ("node_time_ns", "node_backward")


def recording_columns(recording: Recording, prefix: str) -> Arrays:
    """A recording's columns, each with its name behind the prefix."""
    arrays: Arrays = {
        **text_columns(f"{prefix}.strings", recording.strings),
        **text_columns(f"{prefix}.devices", recording.devices),
        **_shape_columns(recording, f"{prefix}.shapes"),
    }
    for name in TABLES:
        if (table := getattr(recording, name)) is not None:
            arrays |= {f"{prefix}.{name}.{field.name}": getattr(table, field.name) for field in fields(table)}
    return arrays | {f"{prefix}.{name}": getattr(recording, name) for name in KEY_LISTS}


def _shape_columns(recording: Recording, name: str) -> Arrays:
    """Sizes of all, where each tensor's shape ends among them, and where each set ends among the tensors."""
    tensors = [shape for shapes in recording.shapes for shape in shapes]
    return {
        f"{name}.sizes": np.array([size for shape in tensors for size in shape], np.int64),
        f"{name}.shape_ends": np.cumsum([len(shape) for shape in tensors], dtype=np.int64),
        f"{name}.set_ends": np.cumsum([len(shapes) for shapes in recording.shapes], dtype=np.int64),
    }


def recording_from(columns: Columns, prefix: str, *, num_events: int) -> Recording:
    """The recording of which these are the columns.

    Args:
        prefix: Before the names of this recording's, as `recording_columns` was given it.
    """
    reader = _TableReader(columns, prefix)
    tables: dict[str, Any] = {name: reader.table(name, kind) for name, kind in TABLES.items() if name != "kernels"}
    has_kernels = f"{prefix}.kernels.launched_ns" in columns
    recording = Recording(
        strings=reader.strings,
        devices=reader.devices,
        shapes=reader.shapes,
        **tables,
        **{name: reader.column(name, None) for name in KEY_LISTS},
        num_events=num_events,
        kernels=reader.table("kernels", Kernels) if has_kernels else None,
    )
    _check_keys(recording)
    _check_allocations(recording.allocations)
    _check_flow(recording.flow)
    return recording


class _TableReader:
    """Takes the tables of one cycle."""

    def __init__(self, columns: Columns, prefix: str) -> None:
        self._columns, self._prefix = columns, prefix
        self.strings = columns.texts(f"{prefix}.strings")
        self.devices = columns.texts(f"{prefix}.devices")
        self.shapes = self._shapes(f"{prefix}.shapes")
        self._lengths = {name: self._length(name, kind) for name, kind in TABLES.items() if name != "kernels"}
        self._lengths |= {"strings": len(self.strings), "devices": len(self.devices), "shapes": len(self.shapes)}
        self._lengths["flow"] = columns.length(f"{prefix}.flow.edge_node")
        self._lengths["flow.nodes"] = columns.length(f"{prefix}.flow.node_time_ns")
        if f"{prefix}.kernels.launched_ns" in columns:
            self._lengths["kernels"] = columns.length(f"{prefix}.kernels.launched_ns")

    def _length(self, name: str, kind: type) -> int:
        return self._columns.length(f"{self._prefix}.{name}.{fields(kind)[0].name}")

    def _shapes(self, name: str) -> tuple[tuple[tuple[int, ...], ...], ...]:
        sizes = self._columns.ints(f"{name}.sizes", low=-1, high=MAX_BYTES).tolist()
        num_tensors = self._columns.length(f"{name}.shape_ends")
        shape_ends = self._columns.ends(f"{name}.shape_ends", total=len(sizes))
        set_ends = self._columns.ends(f"{name}.set_ends", total=num_tensors)
        tensors = [tuple(sizes[start:end]) for start, end in _pieces(shape_ends)]
        return tuple(tuple(tensors[start:end]) for start, end in _pieces(set_ends))

    def table(self, name: str, kind: type[Table]) -> Table:
        """A table, with as many rows in every column as in its first."""
        columns = {}
        for column, type_ in get_type_hints(kind).items():
            rows = "flow.nodes" if name == "flow" and column in _NODES else name
            columns[column] = self.column(f"{name}.{column}", self._lengths[rows], is_bool=type_ == Bools)
        return kind(**columns)

    def column(self, name: str, length: int | None, *, is_bool: bool = False) -> Any:
        """A column, checked by what its name says of its values."""
        at = f"{self._prefix}.{name}"
        if is_bool:
            return self._columns.bools(at, length=length)
        if (index := INDEXES.get(name)) is not None:
            low, high = -1 if index.can_lack else 0, self._lengths[index.table] - 1
            rows = self._columns.ints(at, low=low, high=high, length=length)
            if index.is_before and (rows >= np.arange(len(rows))).any():
                raise RecordingError(f"Column {at} has rows that enclose themselves.", hint=DAMAGED)
            return rows
        if name in _KINDS:
            return self._columns.ints(at, low=0, high=_KINDS[name], length=length)
        if name.endswith("_bytes"):
            return self._bytes(at, length, is_signed=name in _SIGNED_BYTES)
        if name.endswith(("_ns", "thread")):
            return self._columns.ints(at, low=-1, length=length)
        return self._columns.ints(at, length=length)

    def _bytes(self, at: str, length: int | None, *, is_signed: bool) -> Ints:
        """The counters are not sums of their own rows, so only each of them has a bound."""
        if ".total_" in at:
            return self._columns.ints(at, low=-MAX_BYTES, high=MAX_BYTES, length=length)
        return self._columns.bytes_column(at, low=-MAX_BYTES if is_signed else 0, length=length)


def _pieces(ends: Ints) -> Iterator[tuple[int, int]]:
    return zip([0, *ends.tolist()], ends.tolist(), strict=False)


def _check_keys(recording: Recording) -> None:
    """The shape of a storage is that of a tensor."""
    if any(len(recording.shapes[row]) != 1 for row in set(recording.keys.shape.tolist()) - {-1}):
        raise RecordingError("Storages of the recording have no shape, or several.", hint=DAMAGED)


def _check_allocations(allocations: Allocations) -> None:
    """Each number is allocated once, and freed once and later, as `event_tree` leaves them."""
    size, number = allocations.size_bytes, allocations.allocation_id
    for rows in (size > 0, size < 0):
        if len(np.unique(number[rows])) < np.count_nonzero(rows):
            raise RecordingError("Allocations of the recording have the same number.", hint=DAMAGED)


def _check_flow(flow: DataFlow) -> None:
    """Nodes are in time order, and edges in that of node and key, each pair once."""
    node, key = np.diff(flow.edge_node), np.diff(flow.edge_key)
    if (np.diff(flow.node_time_ns) < 0).any() or (node < 0).any() or ((node == 0) & (key <= 0)).any():
        raise RecordingError("The recording's data flow is not in order.", hint=DAMAGED)


def known_columns(known: KnownStorages) -> Arrays:
    """The columns of what was observed."""
    observed = ("time_ns", "address", "size_bytes", "role", "name", "device")
    names = (*observed, "walks_ns", "ends_ns", "ends_address", "ends_device", *_ASLEEP)
    return {
        **{f"known.{name}": getattr(known, name) for name in names},
        **text_columns("known.names", known.names),
        **text_columns("known.devices", known.devices),
        **text_columns("known.threads", known.threads),
        **text_columns("known.lines", tuple(known.lines)),
        **text_columns("known.lines_file", tuple(line.file for line in known.lines.values())),
        "known.lines_line": np.array([line.line for line in known.lines.values()], np.int64),
    }


def known_from(columns: Columns) -> KnownStorages:
    """Observations, of which these are the columns."""
    names, devices = columns.texts("known.names"), columns.texts("known.devices")
    length, num_ends = columns.length("known.time_ns"), columns.length("known.ends_ns")
    return KnownStorages(
        time_ns=columns.ints("known.time_ns", low=0),
        address=columns.ints("known.address", length=length),
        size_bytes=columns.ints("known.size_bytes", low=0, high=MAX_BYTES, length=length),
        role=columns.ints("known.role", low=0, high=max(Role), length=length),
        name=columns.ints("known.name", low=0, high=len(names) - 1, length=length),
        device=columns.ints("known.device", low=0, high=len(devices) - 1, length=length),
        names=names,
        devices=devices,
        walks_ns=columns.ints("known.walks_ns", low=0),
        ends_ns=columns.ints("known.ends_ns", low=0),
        ends_address=columns.ints("known.ends_address", length=num_ends),
        ends_device=columns.ints("known.ends_device", low=0, high=len(devices) - 1, length=num_ends),
        **_asleep(columns, len(devices)),
        threads=columns.texts("known.threads"),
        lines=_lines(columns),
    )


_ASLEEP = ("asleep_address", "asleep_size_bytes", "asleep_device", "asleep_ns", "awake_ns")


def _asleep(columns: Columns, num_devices: int) -> Arrays:
    """The columns of what was unmapped, by name."""
    length = columns.length("known.asleep_ns")
    return {
        "asleep_address": columns.ints("known.asleep_address", length=length),
        "asleep_size_bytes": columns.ints("known.asleep_size_bytes", low=0, high=MAX_BYTES, length=length),
        "asleep_device": columns.ints("known.asleep_device", low=0, high=num_devices - 1, length=length),
        "asleep_ns": columns.ints("known.asleep_ns", low=0),
        "awake_ns": columns.ints("known.awake_ns", low=0, length=length),
    }


def _lines(columns: Columns) -> dict[str, SourceLine]:
    """The lines that made what was observed, by name."""
    lines = columns.ints("known.lines_line", low=0)
    names, files = (columns.texts(f"known.{name}", length=len(lines)) for name in ("lines", "lines_file"))
    return dict(zip(names, map(SourceLine, files, lines.tolist()), strict=True))
