"""The line of a stack that is responsible for an allocation."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tracer.arrays import Bools, Ints
from tracer.blocks.from_snapshot.frames import (
    LABEL,
    AutogradFrames,
    autograd_frames,
    compiled_graph,
    compiled_region,
    is_label,
    is_python,
    is_users,
    torch_file,
)
from tracer.blocks.from_snapshot.stack_facts import (
    constructors_of_stacks,
    facts_of_stacks,
    is_module_call,
    layers_of_stacks,
    model_calls_of_stacks,
)
from tracer.blocks.kinds import LABEL_BEFORE, kind_named
from tracer.own_files import frames_of_program, is_own_file
from tracer.snapshot.columns import DeviceState, Frame, Stacks

NO_FRAMES: Final = "no stack recorded"
NO_PYTHON_FRAME: Final = "no Python frame"


@dataclass(frozen=True, slots=True)
class Site:
    """The frame that decides where an allocation belongs."""

    frame: str  # Name of the function; of an allocation without Python frames, the autograd node or operation
    file: str | None = None  # Its file, or None where there is no Python frame
    line: int | None = None  # Its line, or None where there is no Python frame


_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+?)(?:_apply_functional|::apply|::accumulateGrad)\b")
_OPERATION = re.compile(r"\bat::_ops::(\w+)::")
# What lies between an operation and the allocator, the dispatcher, and the interpreter itself: true of every stack.
_PLUMBING = re.compile(
    r"^(?:torch::unwind|torch::CapturedTraceback|torch::cuda::\(anonymous namespace\)::gather|c10::|std::|void c10::"
    r"|at::detail::empty|at::native::empty|at::_ops::empty|at::empty|torch::autograd::Engine"
    r"|torch::autograd::python::PythonEngine"
    r"|_?Py[A-Z_]|_PyEval|__?\w*libc|_start$|__clone|clone$|start_thread|pthread_|\?\?$|$|_object\*)"
)
# What of torch calls generated code: everything else behind it is of the node.
_RUNS_GRAPHS: Final = ("_inductor/", "_functorch/", "_dynamo/", "fx/", "_compile.py", "autograd/function.py")
_RECORDS_GRAPHS: Final = ("cuda/graphs.py", "_inductor/cudagraph_trees.py")


class Sites:
    """The deciding frame and the facts of every stack of a snapshot, each worked out once.

    The deciding frame is the innermost Python frame outside of torch, of Python's own library and of libraries that
    only pass calls on; else the innermost Python frame; else the autograd node or the operation that the C++ frames
    name. Frames of the unwinder, the allocator, the dispatcher and the interpreter never decide.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._sites: dict[int, Site] = {}

    @cached_property
    def facts(self) -> Ints:
        """The `Fact`s of every stack [stacks]."""
        return facts_of_stacks(self._stacks)

    @cached_property
    def autograd(self) -> AutogradFrames:
        """The operation or the node that every stack is in."""
        return autograd_frames(self._stacks)

    @cached_property
    def constructors(self) -> Ints:
        """The number of every stack's outermost constructor, -1 where it has none [stacks]."""
        return constructors_of_stacks(self._stacks, self.facts)

    @cached_property
    def model_calls(self) -> Ints:
        """The number of the line that calls every stack's outermost module, -1 where none does [stacks]."""
        return model_calls_of_stacks(self._stacks, self.facts)

    @cached_property
    def layers(self) -> Ints:
        """The number of the layer's call that every stack is in, -1 where it is in none [stacks]."""
        return layers_of_stacks(self._stacks, self.facts)

    @cached_property
    def is_captured(self) -> Bools:
        """True for each stack that is in a capture of a CUDA graph [stacks]."""
        return self._stacks.with_one_of([torch_file(frame) in _RECORDS_GRAPHS for frame in self._stacks.frames])

    @cached_property
    def labels(self) -> Ints:
        """The `Kind` in our own label on top of every stack, also that nothing is known; -1 for none [stacks]."""
        matches = (LABEL.match(frame.file) for frame in self._stacks.frames)
        kinds = (None if match is None else kind_named(match.group(1)) for match in matches)
        of_frame = np.array([-1 if kind is None else kind for kind in kinds], np.int64)
        labels, deep = np.full(len(self._stacks), -1, np.int64), np.flatnonzero(np.diff(self._stacks.offset))
        labels[deep] = of_frame[self._stacks.frame_of[self._stacks.offset[deep]]]
        return labels

    def site(self, stack: int) -> Site:
        """The deciding frame of a stack."""
        site = self._sites.get(stack)
        if site is None:
            site = self._sites[stack] = _deciding_site(self._stacks[stack])
        return site

    def site_of_backward(self, stack: int, forward: int) -> Site:
        """Site of a block of backward: the line of its operation of forward, if that stack is known (not -1)."""
        site = self.site(forward) if forward >= 0 else None
        if site is None or site.file is None:
            return self.site(stack)
        return Site(f"backward of {site.frame}", site.file, site.line)

    def is_in_models_caller(self, stack: int, forward: int) -> bool:
        """Return True if the function that calls the outermost module of a forward is also in another stack."""
        python = [frame for frame in self._stacks[forward] if is_python(frame)]
        calls = [place for place, frame in enumerate(python) if is_module_call(frame)]
        if not calls or calls[-1] + 1 == len(python):
            return False
        caller = python[calls[-1] + 1]
        return any((frame.name, frame.file) == (caller.name, caller.file) for frame in self._stacks[stack])

    def readable(self, stack: int) -> tuple[str, ...]:
        """A stack for people, innermost first, without the plumbing and the program's start."""
        frames = [frame for frame in self._stacks[stack] if not _is_plumbing(frame)]
        return tuple(_spelled(frames[at]) for at in frames_of_program([frame.file for frame in frames]))

    def operation(self, stack: int) -> str:
        """The autograd node or the operation that the C++ frames of a stack name, or the empty text."""
        return _node_or_operation(self._stacks[stack])

    def users_lines(self, stack: int) -> tuple[tuple[str, int], ...]:
        """File and line of each frame outside of torch, Python's own library and passing libraries, innermost first."""
        frames = self._stacks[stack]
        return tuple((frame.file, frame.line) for frame in frames if is_python(frame) and is_users(frame))

    def callers(self, stack: int) -> tuple[Site, ...]:
        """The lines that led to the deciding frame, from its caller on outwards."""
        python = _others_python(self._stacks[stack])
        chosen = [frame for frame in python if is_users(frame)] or python
        return tuple(Site(frame.name, frame.file, frame.line) for frame in chosen[1:])

    def without_lines(self, stack: int) -> tuple[str, ...]:
        """Return a stack without line numbers: the node or operation, and the functions and files that led to it."""
        frames = self._stacks[stack]
        below = _node_or_operation(frames)
        python = _others_python(frames)
        chosen = [frame for frame in python if is_users(frame)] or python
        return ((below,) if below else ()) + tuple(f"{frame.name} ({_short_file(frame.file)})" for frame in chosen)


def _deciding_site(frames: list[Frame]) -> Site:
    if not frames or all(is_label(frame) and frame.name.endswith(LABEL_BEFORE) for frame in frames):
        return Site(NO_FRAMES)
    python = _others_python(frames)
    best = next(filter(is_users, python), python[0] if python else None)
    region = next(filter(None, map(compiled_region, frames)), "")
    if best is None:
        below = _node_or_operation(frames)
        names = (frame.name.split("(")[0][:120] for frame in frames if not _is_plumbing(frame))
        return Site(", ".join(filter(None, (below, region))) or next(names, frames[0].name[:120]))
    graph, own = _in_generated_code(python)
    if own is not None:
        return Site(f"{own.name}, compiled graph {graph}", own.file, own.line)
    where = f"compiled graph {graph}" if graph else region
    # Where no more than the region is known, the line is the one that called it, and the row says so.
    return Site(f"{where}, called in {best.name}" if where else best.name, best.file, best.line)


def _others_python(frames: list[Frame]) -> list[Frame]:
    """Return the Python frames outside of this program: its own wrappers and commands are no line of the user's."""
    return [frame for frame in frames if is_python(frame) and not is_own_file(frame.file)]


def _in_generated_code(python: list[Frame]) -> tuple[str, Frame | None]:
    """The graph that a stack is in, and the innermost line of the user's that its code was generated for.

    torch puts the stack of the node right behind the frame of the generated code; what calls that code is torch's own.
    """
    at, graph = next(((at, name) for at, frame in enumerate(python) if (name := compiled_graph(frame))), (-1, ""))
    if at < 0:
        return "", None
    if at and (inner := next(filter(is_users, python[:at]), None)) is not None:
        return graph, inner  # generated code has called the user's
    own = list(itertools.takewhile(lambda frame: not _runs_graphs(frame), python[at + 1 :]))
    # Without an end by torch's own code it is the caller's stack: nothing tells that a node's is in between.
    is_nodes = at + 1 + len(own) < len(python)
    return graph, next(filter(is_users, own), None) if is_nodes else None


def _runs_graphs(frame: Frame) -> bool:
    """True if a frame is of generated code, or of torch's code that runs it."""
    return (torch_file(frame) or "").startswith(_RUNS_GRAPHS) or bool(compiled_graph(frame))


def _node_or_operation(frames: list[Frame]) -> str:
    """The innermost autograd node, or else the outermost operation, which is the one that was called."""
    names = [frame.name for frame in frames if not is_python(frame)]
    node = next((match.group(1) for name in names if (match := _NODE.search(name))), "")
    operations = [match.group(1) for name in names if (match := _OPERATION.search(name))]
    return node or (operations[-1] if operations else "")


def _is_plumbing(frame: Frame) -> bool:
    return is_label(frame) or (not is_python(frame) and bool(_PLUMBING.search(frame.name)))


def _spelled(frame: Frame) -> str:
    if is_python(frame):
        return f"{frame.name} ({frame.file}:{frame.line})"
    return frame.name if len(frame.name) <= 160 else frame.name[:157] + "..."


def _short_file(file: str) -> str:
    """A path without what differs from machine to machine."""
    parts = re.split(r"[/\\]", file)
    for root in ("site-packages", "dist-packages"):
        if root in parts:
            return "/".join(parts[parts.index(root) + 1 :])
    return "/".join(parts[-2:])


# torch numbers in the first place the pool that a CUDA graph makes for itself, and in the second one those that are
# asked for: by `graph_pool_handle`, as torch.compile does, and by `MemPool`.
_OF_ONE_GRAPH = re.compile(r"^[1-9]\d*,0$")


def pools_of_graphs(state: DeviceState, sites: Sites) -> frozenset[int]:
    """Numbers of the pools in which something was allocated while a CUDA graph was recorded."""
    trace, blocks, segments = state.trace, state.blocks, state.segments
    named = [trace.pool[(trace.pool >= 0) & sites.is_captured[trace.stack]]] if len(trace) else []
    if len(segments) and len(blocks):
        order = np.argsort(segments.address, kind="stable")
        at = order[np.maximum(np.searchsorted(segments.address[order], blocks.address, side="right") - 1, 0)]
        pool = segments.pool[at]
        named.append(pool[(pool >= 0) & sites.is_captured[blocks.stack]])
    return frozenset(number for pools in named for number in np.unique(pools).tolist())


def pool_words(name: str, *, is_of_graphs: bool = False) -> str:
    """A private pool for people.

    Source:
        `MemPool::MemPool` and `graph_pool_handle` in torch's CUDA allocator.
    """
    if _OF_ONE_GRAPH.match(name):
        return f"private pool {name} of a CUDA graph"
    return f"private pool {name} of CUDA graphs" if is_of_graphs else f"private pool {name}"
