"""Watches torch.compile at work: what it generates is described at the moment when it is generated.

Nothing is switched on before the first compilation, and all is put back at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tracer.capture.device.device_blocks import pool_bytes
from tracer.capture.recording import Recording
from tracer.capture.sources.compiled_code import (
    NOTHING_COMPILED,
    CompiledCode,
    CompiledGraph,
    CompiledNode,
    is_generated,
)
from tracer.capture.sources.operator_lines import source_text
from tracer.capture.sources.source_files import is_package_code, is_user_code, whole_path
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_private import torch_compile

_STACK_LINE = re.compile(r'^\s*File "(.+)", line (\d+), in ', re.MULTILINE)
_VIEWS = {
    *("_unsafe_view", "alias", "as_strided", "detach", "expand", "permute", "reshape", "select", "slice", "split"),
    *("squeeze", "t", "transpose", "unsqueeze", "view"),
}
_ROOT = re.compile(r"^[LG]\['[^']*'\]\.?")


class CompileWatch:
    """Notes every graph that is compiled between `start` and `stop`."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self._graphs: dict[str, CompiledGraph] = {}
        self._ends: list[Callable[[], None]] = []
        self._is_watching = False

    def start(self) -> None:
        """Wait for the first compilation."""
        self._ends.append(torch_compile.on_compile_start(self._compilation_begins))

    def _compilation_begins(self) -> None:
        if self._is_watching:
            return
        self._is_watching = True
        try:
            self._ends.append(torch_compile.watch_inductor(self._lowered))
        except Exception as fault:  # a torch whose inside is another: the user's compilation goes on
            self.fault = self.fault or fault

    def _lowered(self, lowering: Any, path: str, num_outputs: int | None) -> None:
        """Describe a graph; what goes wrong here is no fault of the user's compilation."""
        try:
            self._graphs[path] = _inductor_graph(lowering, path, num_outputs)
        except Exception as fault:
            self.fault = self.fault or fault

    def stop(self) -> None:
        """Put all back."""
        ends, self._ends = self._ends, []
        for end in reversed(ends):
            end()

    def code(self, recordings: Iterable[Recording]) -> CompiledCode:
        """Return the compiled code of the run, with every generated file that the recordings name."""
        named = {
            recording.strings[file]
            for recording in recordings
            for file in np.unique(recording.frames.file).tolist()
            if is_generated(recording.strings[file])
        }
        if not named and not self._is_watching:
            return NOTHING_COMPILED
        known = _run_as_they_are(named) | self._graphs
        graphs = (known.get(path) or CompiledGraph(path, source_text(path)) for path in sorted(named))
        return CompiledCode(tuple(graphs), cuda_graphs_bytes())


def cuda_graphs_bytes() -> int:
    """Return the bytes reserved now for the pools of torch.compile's CUDA graphs, on all devices."""
    num_devices = torch.cuda.device_count() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    pools = ((device, torch_compile.cuda_graph_pool(device)) for device in range(num_devices))
    found = (pool_bytes(device, {pool}) for device, pool in pools if pool is not None)
    return sum(size.reserved_bytes for sizes in found for size in sizes.values())


def compiled_wrapper_names(module_names: Mapping[int, str]) -> dict[int, str]:
    """Names for the wrappers that torch.compile has put around modules: those of what they wrap.

    Args:
        module_names: Dotted names of modules by `id()`; one that is "" goes by its class.
    """
    if not torch_compile.has_compiled():
        return {}
    wrapped = torch_compile.wrapped_modules()
    return {wrapper: module_names.get(id(inner)) or type(inner).__name__ for wrapper, inner in wrapped.items()}


# ------------------------------------------------------------------------------------------------------- reading graphs
def _inductor_graph(lowering: Any, path: str, num_outputs: int | None) -> CompiledGraph:
    fx_nodes = list(lowering.module.graph.nodes)
    rows = {node.name: row for row, node in enumerate(fx_nodes) if node.op != "placeholder"}
    is_forward = not lowering.is_backward and not lowering.is_inference
    return CompiledGraph(
        path=path,
        text=Path(path).read_text(encoding="utf-8"),
        compile_id=torch_compile.compile_id(),
        is_backward=bool(lowering.is_backward),
        num_outputs=num_outputs if is_forward and num_outputs is not None else -1,
        nodes=tuple(_node(node, is_backward=bool(lowering.is_backward)) for node in fx_nodes),
        buffers={name: nodes for name, buffer in lowering.name_to_buffer.items() if (nodes := _made_of(buffer, rows))},
        outputs=_outputs(fx_nodes),
    )


def _made_of(buffer: Any, rows: dict[str, int]) -> tuple[int, ...]:
    """Rows of the nodes that a buffer is made of, first the one that it stands for: the last in the graph's order.

    A kernel from outside computes one node, whatever was fused into what it is given.
    """
    stands_for = getattr(buffer, "origin_node", None)
    origins = sorted(_rows(getattr(buffer, "origins", ()), rows), reverse=True)
    nodes = dict.fromkeys([*_rows([stands_for] if stands_for is not None else (), rows), *origins])
    is_extern = "Extern" in type(buffer).__name__ or "Fallback" in type(buffer).__name__
    return tuple(nodes)[: 1 if is_extern else None]


def _rows(fx_nodes: Iterable[Any], rows: dict[str, int]) -> set[int]:
    """Rows of nodes, of a view that of what computed it: arguments of the graph have none."""
    return {rows[node.name] for node in map(_computed, fx_nodes) if node.name in rows}


def _computed(node: Any) -> Any:
    while str(node.target).startswith("aten.") and str(node.target).split(".")[1] in _VIEWS and node.args:
        node = node.args[0]
    return node


def _outputs(fx_nodes: list[Any]) -> tuple[str, ...]:
    returned = next((node.args[0] for node in reversed(fx_nodes) if node.op == "output"), ())
    many = returned if isinstance(returned, tuple | list) else (returned,)
    return tuple(str(getattr(node, "name", "")) for node in many)


def _node(node: Any, *, is_backward: bool) -> CompiledNode:
    meta = _meta(node)
    module_id, module = _module(meta)
    # Of which half of the joint graph a node is torch notes before it cuts that in two.
    is_recomputed = is_backward and node.op == "call_function" and meta.get("partitioner_tag") == "is_forward"
    is_recomputed &= _computed(node) is node and not _is_item(node)
    stack = meta.get("stack_trace")
    # Torch leaves out lines of its own: of modules of torch.nn that no other module calls no line is left.
    has_stack = bool(stack) or bool(_module_stack(meta))
    return CompiledNode(str(node.name), _lines(stack), module_id, module, is_recomputed, has_stack)


def _meta(node: Any) -> dict[str, Any]:
    """Return the metadata of a node; a node that replaced another in a pass has that of the parts of its result."""
    known = node
    while not known.meta.get("stack_trace"):
        parts = [user for user in known.users if _is_item(user)]
        if not parts:
            return dict(node.meta)
        known = parts[-1]
    return dict(known.meta)


def _is_item(node: Any) -> bool:
    return "getitem" in str(node.target)


def _lines(stack_trace: str | None) -> tuple[SourceLine, ...]:
    """The lines of a stack that somebody may want to see: not torch's own."""
    lines = (SourceLine(whole_path(file), int(line)) for file, line in _STACK_LINE.findall(stack_trace or ""))
    return tuple(line for line in lines if is_user_code(line.file) or is_package_code(line.file))


def _module(meta: dict[str, Any]) -> tuple[int, str]:
    """`id()` and name of the innermost module around a node, or of the one that it is the backward of."""
    stack = _module_stack(meta)
    if not stack:
        return -1, ""
    key, (name, *_) = list(stack.items())[-1]
    number = str(key).partition("@")[0]
    return int(number) if number.isdecimal() else -1, _ROOT.sub("", str(name))


def _module_stack(meta: dict[str, Any]) -> dict[str, Any]:
    return meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}


def _run_as_they_are(paths: set[str]) -> dict[str, CompiledGraph]:
    """Graphs that Python runs without Inductor, as the backend aot_eager does, by the name of their code."""
    if not any(path.startswith("<") for path in paths):
        return {}
    graphs = {}
    for module in torch_compile.graph_modules():
        forward = getattr(type(module), "forward", None)
        path = str(getattr(getattr(forward, "__code__", None), "co_filename", ""))
        if path in paths and path not in graphs:
            fx_nodes = list(module.graph.nodes)
            is_backward = any(node.name.startswith("tangents_") for node in fx_nodes if node.op == "placeholder")
            graphs[path] = CompiledGraph(
                path=path,
                text=source_text(path),
                is_backward=is_backward,
                nodes=tuple(_node(node, is_backward=is_backward) for node in fx_nodes),
                buffers={node.name: (row,) for row, node in enumerate(fx_nodes)},
                outputs=_outputs(fx_nodes),
            )
    return graphs
