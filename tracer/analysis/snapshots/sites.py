"""Which line of a stack is to blame, and what else a stack proves about the allocation or free that it belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracer.snapshot.columns import Frame, Stacks

NO_FRAMES: Final = "no stack recorded"
NO_PYTHON_FRAME: Final = "no Python frame"
BEFORE_RECORDING: Final = "before recording"


class Fact(IntFlag):
    """What a stack proves. A stack may prove several facts, or none."""

    NONE = 0
    STACK = 1  # there is one at all
    CPP = 2  # it has C++ frames, so that the absence of one means something
    ENGINE = 4  # inside the backward pass, in a node that autograd's engine evaluates
    ACCUMULATE_GRAD = 8  # inside the node that writes a leaf's .grad
    RELEASE_SAVED = 16  # autograd lets go of what a forward operation saved for backward
    OPTIMIZER_STEP = 32  # inside the step of a torch optimizer
    OPTIMIZER_STATE = 64  # where torch's optimizers create their state
    ZERO_GRAD = 128  # inside zero_grad
    WORKSPACE = 256  # a library's workspace (cuBLAS, cuDNN, ...)
    MODULE_SETUP = 512  # where modules create parameters and buffers or move them to a device


@dataclass(frozen=True, slots=True)
class Site:
    """The frame that decides where an allocation belongs.

    Attributes:
        frame: Name of the function; of an allocation without Python frames, the autograd node or operation.
        file: Its file, or None where there is no Python frame.
        line: Its line, or None where there is no Python frame.
    """

    frame: str
    file: str | None = None
    line: int | None = None


# The path of torch's own Python files, installed or in a checkout; a group has what follows `torch/`.
_TORCH_FILE = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]torch[/\\](.+)"
    r"|(?:^|[/\\])torch[/\\]((?:nn|optim|autograd|utils|cuda|amp|distributed|fx|_dynamo|_inductor|jit|func)[/\\].+"
    r"|(?:functional|tensor|storage|_\w+)\.py)$"
)
_STDLIB_FILE = re.compile(
    r"[/\\]lib[/\\]python3\.\d+[/\\](?!site-packages|dist-packages)|^<frozen "
    r"|[/\\]Lib[/\\](?!site-packages)[^/\\]+\.py$"
)
# Libraries that only pass a call on: blaming them would hide the line that made it.
_WRAPPER_FILE = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?:einops|opt_einsum|jaxtyping|beartype|typeguard|functorch)[/\\]"
)
_PYTHON_FILE = re.compile(r"\.pyx?$|^<(?!explained as ).+>$|^/tmp/ipykernel")
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+?)(?:_apply_functional|::apply|::accumulateGrad)\b")
_OPERATION = re.compile(r"\bat::_ops::(\w+)::")
_BACKWARD_CALL = re.compile(r"torch::autograd::Engine::(?:evaluate_function|call_function|thread_main)\b")
_RELEASE = re.compile(r"::release_variables\(|torch::autograd::SavedVariable::")
_WORKSPACE = re.compile(r"[wW]orkspace|getCurrentCUDABlasHandle|CublasHandlePool")
# What lies between an operation and the allocator, the dispatcher, and the interpreter itself: true of every stack.
_PLUMBING = re.compile(
    r"^(?:torch::unwind|torch::CapturedTraceback|torch::cuda::\(anonymous namespace\)::gather|c10::|std::|void c10::"
    r"|at::detail::empty|at::native::empty|at::_ops::empty|at::empty|torch::autograd::Engine"
    r"|torch::autograd::python::PythonEngine"
    r"|_?Py[A-Z_]|_PyEval|__?\w*libc|_start$|__clone|clone$|start_thread|pthread_|\?\?$|$|_object\*)"
)
# Our own label on top of a stack, see exporters/memory_snapshot.py; no code has run there.
_LABEL = re.compile(r"^<explained as (\w+)>$")
LABEL_BEFORE: Final = ", made before recording"
_OPTIMIZER_STEPS = ("step", "wrapper", "_init_group", "_use_grad", "_multi_tensor_", "_single_tensor_", "_fused_")
_MODULE_SETUP_NAMES = ("__init__", "_apply", "convert", "reset_parameters", "to_empty", "register_buffer")


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
    def facts(self) -> NDArray[np.int64]:
        """The `Fact`s of every stack [S]."""
        of_frame = np.array(
            [0 if _LABEL.match(frame.file) else int(_facts_of(frame) | Fact.STACK) for frame in self._stacks.frames],
            dtype=np.int64,
        )
        facts = np.zeros(len(self._stacks), dtype=np.int64)
        depth = np.diff(self._stacks.offset)
        stack_of = np.repeat(np.arange(len(self._stacks)), depth)
        np.bitwise_or.at(facts, stack_of, of_frame[self._stacks.frame_of])
        return facts

    @cached_property
    def labels(self) -> list[str]:
        """The kind in our own label on top of every stack, as `optimizer_state`; empty where there is none [S]."""
        matches = (_LABEL.match(frame.file) for frame in self._stacks.frames)
        of_frame = ["" if match is None else match.group(1) for match in matches]
        deep = np.flatnonzero(np.diff(self._stacks.offset))
        top = self._stacks.frame_of[self._stacks.offset[deep]]
        labels = [""] * len(self._stacks)
        for stack, frame in zip(deep.tolist(), top.tolist(), strict=True):
            labels[stack] = of_frame[frame]
        return labels

    def site(self, stack: int) -> Site:
        """The deciding frame of a stack."""
        found = self._sites.get(stack)
        if found is None:
            found = self._sites[stack] = _deciding_site(self._stacks[stack])
        return found

    def readable(self, stack: int) -> tuple[str, ...]:
        """A stack for people, innermost first, without the plumbing."""
        return tuple(_spelled(frame) for frame in self._stacks[stack] if not _is_plumbing(frame))

    def operation(self, stack: int) -> str:
        """The autograd node or the operation that the C++ frames of a stack name, or the empty text."""
        return _node_or_operation(self._stacks[stack])

    def users_lines(self, stack: int) -> tuple[tuple[str, int], ...]:
        """File and line of each frame outside of torch, Python's own library and passing libraries, innermost first."""
        frames = self._stacks[stack]
        return tuple((frame.file, frame.line) for frame in frames if is_python(frame) and _is_users(frame))

    def without_lines(self, stack: int) -> tuple[str, ...]:
        """What stays the same when lines move: the node or operation, and the functions and files that led to it."""
        frames = self._stacks[stack]
        below = _node_or_operation(frames)
        python = [frame for frame in frames if is_python(frame)]
        chosen = [frame for frame in python if _is_users(frame)] or python
        return ((below,) if below else ()) + tuple(f"{frame.name} ({_short_file(frame.file)})" for frame in chosen)


def is_python(frame: Frame) -> bool:
    """Whether a frame is a line of Python."""
    return bool(_PYTHON_FILE.search(frame.file))


def _torch_file(frame: Frame) -> str | None:
    """The file's path below `torch/`, with slashes, if it is one of torch's own."""
    found = _TORCH_FILE.search(frame.file)
    return (found.group(1) or found.group(2)).replace("\\", "/") if found else None


def _facts_of(frame: Frame) -> Fact:
    return _python_facts(frame) if is_python(frame) else _cpp_facts(frame.name)


def _cpp_facts(name: str) -> Fact:
    facts = Fact.CPP if "::" in name else Fact.NONE
    if _BACKWARD_CALL.search(name):
        facts |= Fact.ENGINE
    if "torch::autograd::AccumulateGrad::" in name:
        facts |= Fact.ACCUMULATE_GRAD
    if _RELEASE.search(name):
        facts |= Fact.RELEASE_SAVED
    if _WORKSPACE.search(name):
        facts |= Fact.WORKSPACE
    return facts


def _python_facts(frame: Frame) -> Fact:
    facts = Fact.ZERO_GRAD if frame.name == "zero_grad" else Fact.NONE
    path = _torch_file(frame)
    if path is None:
        return facts
    if frame.name == "_engine_run_backward":
        facts |= Fact.ENGINE
    if path.startswith("optim/") and frame.name.startswith(_OPTIMIZER_STEPS) and "lr_scheduler" not in path:
        facts |= Fact.OPTIMIZER_STEP
    if path.startswith("optim/") and frame.name in ("_init_group", "load_state_dict"):
        facts |= Fact.OPTIMIZER_STATE
    if path.startswith(("nn/modules/", "nn/init.py")) and frame.name in _MODULE_SETUP_NAMES:
        facts |= Fact.MODULE_SETUP
    return facts


def _deciding_site(frames: list[Frame]) -> Site:
    if not frames or all(_LABEL.match(frame.file) and frame.name.endswith(LABEL_BEFORE) for frame in frames):
        return Site(NO_FRAMES)
    python = [frame for frame in frames if is_python(frame)]
    best = next(filter(_is_users, python), python[0] if python else None)
    if best is not None:
        return Site(best.name, best.file, best.line)
    return Site(_node_or_operation(frames) or _innermost_function(frames))


def _is_users(frame: Frame) -> bool:
    file = frame.file
    return _torch_file(frame) is None and not _STDLIB_FILE.search(file) and not _WRAPPER_FILE.search(file)


def _node_or_operation(frames: list[Frame]) -> str:
    """The innermost autograd node, or else the outermost operation, which is the one that was called."""
    names = [frame.name for frame in frames if not is_python(frame)]
    node = next((found.group(1) for name in names if (found := _NODE.search(name))), "")
    operations = [found.group(1) for name in names if (found := _OPERATION.search(name))]
    return node or (operations[-1] if operations else "")


def _innermost_function(frames: list[Frame]) -> str:
    return next((frame.name.split("(")[0][:120] for frame in frames if not _is_plumbing(frame)), frames[0].name[:120])


def _is_plumbing(frame: Frame) -> bool:
    return bool(_LABEL.match(frame.file)) or (not is_python(frame) and bool(_PLUMBING.search(frame.name)))


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
