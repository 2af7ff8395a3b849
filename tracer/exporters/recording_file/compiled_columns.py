"""What torch.compile made, in recording.npz: a document of its own, and back."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from tracer.capture.sources.compiled_code import (
    NOTHING_COMPILED,
    CompiledCode,
    CompiledFunction,
    CompiledGraph,
    CompiledNode,
    GraphBreak,
    MemoryBudget,
    RecomputedTensor,
)
from tracer.capture.sources.source_line import SourceLine
from tracer.errors import RecordingError
from tracer.exporters.document import Document
from tracer.exporters.recording_file.checked_columns import DAMAGED, RECORDING, Columns
from tracer.exporters.recording_file.recording_columns import Arrays

_NAME = "compiled"
_MAX = 1_000_000


def compiled_columns(code: CompiledCode) -> Arrays:
    """The document as a column; none where nothing was compiled."""
    if code == NOTHING_COMPILED:
        return {}
    document = {
        "graphs": [_graph(graph) for graph in code.graphs],
        "functions": [_flat(function) for function in code.functions],
        "breaks": [_flat(graph_break) for graph_break in code.breaks],
        "budgets": [
            asdict(budget)
            | {"budget": str(budget.budget), "recomputed": [_flat(tensor) for tensor in budget.recomputed]}
            for budget in code.budgets
        ],
        "cuda_graphs_left_out": list(code.cuda_graphs_left_out),
        "cuda_graphs_bytes": code.cuda_graphs_bytes,
    }
    return {_NAME: np.frombuffer(json.dumps(document).encode(), np.uint8)}


def _flat(record: CompiledFunction | GraphBreak | RecomputedTensor) -> dict[str, Any]:
    """A record's fields, with file and line of its line among them."""
    values = asdict(record)
    del values["line"]
    return values | _line(record.line)


def _line(line: SourceLine | None) -> dict[str, Any]:
    return {"file": "", "line": 0} if line is None else line._asdict()


def _graph(graph: CompiledGraph) -> dict[str, Any]:
    lines = {line: None for node in graph.nodes for line in node.lines}
    row = {line: number for number, line in enumerate(lines)}
    return asdict(replace(graph, nodes=(), buffers={})) | {
        "num_outputs": graph.num_outputs + 1,
        "lines": [_line(line) for line in lines],
        "nodes": [
            asdict(replace(node, lines=()))
            | {"lines": [row[line] for line in node.lines], "module_id": str(node.module_id)}
            for node in graph.nodes
        ],
        "buffers": [{"name": name, "nodes": list(rows)} for name, rows in graph.buffers.items()],
    }


def compiled_from(columns: Columns) -> CompiledCode:
    """What was compiled, of a file that may be anybody's.

    Raises:
        RecordingError: The document is damaged.
    """
    if _NAME not in columns:
        return NOTHING_COMPILED
    document = Document(columns.blob(_NAME), RECORDING)
    return CompiledCode(
        graphs=tuple(map(_graph_from, document.documents("graphs", at_most=_MAX))),
        functions=tuple(
            CompiledFunction(
                entry.text("compile_id"), entry.text("name"), entry.record(SourceLine), entry.text("reason")
            )
            for entry in document.documents("functions", at_most=_MAX)
        ),
        breaks=tuple(
            GraphBreak(entry.text("reason"), _line_from(entry)) for entry in document.documents("breaks", at_most=_MAX)
        ),
        budgets=tuple(map(_budget_from, document.documents("budgets", at_most=_MAX))),
        cuda_graphs_left_out=document.texts("cuda_graphs_left_out"),
        cuda_graphs_bytes=document.number_or_none("cuda_graphs_bytes") or 0,  # older files have none
    )


def _budget_from(document: Document) -> MemoryBudget:
    recomputed = document.documents("recomputed", at_most=_MAX)
    return MemoryBudget(
        budget=_fraction(document.text("budget")),
        kept_bytes=document.number("kept_bytes"),
        default_bytes=document.number("default_bytes"),
        recomputed=tuple(
            RecomputedTensor(tensor.number("size_bytes"), _line_from(tensor), tensor.text("module"))
            for tensor in recomputed
        ),
    )


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise RecordingError("A memory budget is no number from 0 to 1.", hint=DAMAGED)
    return value


def _line_from(document: Document) -> SourceLine | None:
    return document.record(SourceLine) if document.text("file") else None


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
