"""Classes of stack frames: a line of Python, of torch's own, of the program's, or our label; an operation or a node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from tracer.arrays import Bools, Ints
from tracer.capture.torch_names import OVERRIDES
from tracer.own_files import is_own_file
from tracer.snapshot.columns import Frame, Stacks
from tracer.snapshot.stacks import COMPILE_CONTEXT

_OPERATION = re.compile(r"torch::autograd::VariableType::\(anonymous namespace\)::(\w+)\(")
_NODE = re.compile(r"torch::autograd::generated::(\w+?)Backward\d*(?:_apply_functional|::apply)\b")
_ENGINE = re.compile(r"torch::autograd::Engine::(?:evaluate_function|call_function|thread_main)\b")
# What C++ appends to the name of an operation that exists for several kinds of arguments.
_OVERLOAD = re.compile(r"^[A-Z]|^(?:dim|int|correction|names|mode|memory|sizes|self|other|p|default)$")
_NONE: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class AutogradFrames:
    """Operation or node of each stack [stacks], by torch's name of the operation, without `Backward0`."""

    names: tuple[str, ...]
    operation: Ints  # Number of the forward operation's name, -1 for none
    node: Ints  # Number of the name of the node that the engine evaluates, -1 for none
    call: Ints  # Equal for stacks that differ only within the operation, -1 where there is none
    recomputes: Bools  # Forward runs again within backward


def autograd_frames(stacks: Stacks) -> AutogradFrames:
    """Look at every frame once."""
    of_frames = [_FrameFacts.of(frame) for frame in stacks.frames]
    frames_of_stacks = [_see([of_frames[number] for number in stacks.frame_ids(stack)]) for stack in range(len(stacks))]
    nodes = {node for _, node, _, _ in frames_of_stacks if node}
    numbers: dict[str, int] = {}
    calls: dict[tuple[int, ...], int] = {}
    columns = np.full((4, len(stacks)), _NONE, dtype=np.int64)
    for stack, (operation, node, depth, recomputes) in enumerate(frames_of_stacks):
        if operation:
            columns[0, stack] = numbers.setdefault(node_name(operation, nodes), len(numbers))
            columns[2, stack] = calls.setdefault(tuple(stacks.frame_ids(stack)[depth:]), len(calls))
        if node:
            columns[1, stack] = numbers.setdefault(node, len(numbers))
        columns[3, stack] = recomputes
    return AutogradFrames(tuple(numbers), columns[0], columns[1], columns[2], columns[3].astype(np.bool_))


def node_name(operation: str, nodes: set[str]) -> str:
    """Return torch's name of an operation's node; a suffix that C++ appends for an overload is removed if that fits."""
    base = operation.strip("_")
    parts = [part for part in base.split("_") if part]
    for num_parts in range(len(parts), 0, -1):
        name = "".join(part.title() for part in parts[:num_parts]).removesuffix("Forward")
        if name in nodes and (num_parts == len(parts) or _OVERLOAD.match(parts[num_parts])):
            return name
    return base


@dataclass(frozen=True, slots=True)
class _FrameFacts:
    """Facts of one frame: its operation or node, and whether it is Python, the engine or checkpointing."""

    operation: str
    node: str
    is_python: bool
    is_engine: bool
    is_checkpoint: bool

    @classmethod
    def of(cls, frame: Frame) -> _FrameFacts:
        if is_python(frame) or is_label(frame):
            return cls("", "", not is_label(frame), False, torch_file(frame) == "utils/checkpoint.py")
        operation, node = _OPERATION.search(frame.name), _NODE.search(frame.name)
        return cls(
            operation.group(1) if operation else "",
            node.group(1) if node else "",
            False,
            bool(_ENGINE.search(frame.name)),
            False,
        )


def _see(frames: Sequence[_FrameFacts]) -> tuple[str, str, int, bool]:
    """Operation, node, depth of the operation's frame, and whether it recomputes.

    Only what lies within the innermost line of Python counts: what that line called. Of several operations the
    outermost is the one that autograd records, and of several nodes the outermost is the one that the engine evaluates:
    linkers fold equal functions within it into one, under any of their names.
    """
    operation, node, depth = "", "", 0
    for place, frame in enumerate(frames):
        if frame.is_python or frame.is_engine:
            break
        if frame.operation:
            operation, depth = frame.operation, place
        node = frame.node or node
    if any(frame.is_engine for frame in frames):
        return "", node, 0, any(frame.is_checkpoint for frame in frames)
    return operation, "", depth, False


# The path of torch's own Python files, installed or in a checkout; a group has what follows `torch/`.
_TORCH_FILE = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]torch[/\\](.+)"
    r"|(?:^|[/\\])torch[/\\]((?:nn|optim|autograd|utils|cuda|amp|distributed|fx|_dynamo|_inductor|jit|func)[/\\].+"
    r"|(?:functional|tensor|storage|random|serialization|_\w+)\.py)$"
)
_STDLIB_FILE = re.compile(
    r"[/\\]lib[/\\]python3\.\d+[/\\](?!site-packages|dist-packages)|^<frozen "
    r"|[/\\]Lib[/\\](?!site-packages)[^/\\]+\.py$"
)
# Libraries that only pass a call on: blaming them would hide the line that made it.
_WRAPPER_FILE = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?:einops|opt_einsum|jaxtyping|beartype|typeguard|functorch)[/\\]"
)
# What Inductor writes for a graph: a file named after its content, in a folder of the first letters, wherever that is;
# and what torch.fx compiles from memory, under a number or under a name after the content.
_GENERATED_FILE = re.compile(
    r"torchinductor_[^/\\]*[/\\](?:.+[/\\])?(c\w+)\.py$|[/\\]([a-z2-7]{2})[/\\](c\2[a-z2-7]{30,})\.py$"
    r"|^<eval_with_key>\.(\d+)|(?:^|[/\\])fx_generated_+(\w+)\.py$"
)
_REGION = re.compile(r"^Torch-Compiled Region(?:: .+)?$")
_PYTHON_FILE = re.compile(r"\.pyx?$|^<(?!explained as ).+>$|^<eval_with_key>\.|^/tmp/ipykernel")
_GRAPH_LETTERS: Final = 8
_MOST_FILES: Final = 4096  # Remembered: millions of frames have a few hundred files
# Our own label on top of a stack, see exporters/memory_snapshot.py; no code has run there.
LABEL: Final = re.compile(r"^<explained as (\w+)>$")


def is_python(frame: Frame) -> bool:
    """Return True if a frame is a line of Python."""
    return _is_python_file(frame.file)


@lru_cache(maxsize=_MOST_FILES)
def _is_python_file(file: str) -> bool:
    return bool(_PYTHON_FILE.search(file))


def is_label(frame: Frame) -> bool:
    """Return True if a frame is this program's own label."""
    return bool(LABEL.match(frame.file))


def torch_file(frame: Frame) -> str | None:
    """The file's path below `torch/`, with slashes, if it is one of torch's own."""
    return _path_below_torch(frame.file)


@lru_cache(maxsize=_MOST_FILES)
def _path_below_torch(file: str) -> str | None:
    match = _TORCH_FILE.search(file)
    return (match.group(1) or match.group(2)).replace("\\", "/") if match else None


def compiled_graph(frame: Frame) -> str:
    """The name of the graph whose generated code this is; empty for other code. It changes with the graph.

    Source:
        `PyCodeCache.write` and `get_path` in torch/_inductor/codecache.py; `_exec_with_source` and `recompile` in
        torch/fx/graph_module.py.
    """
    match = _GENERATED_FILE.search(frame.file)
    if match is None:
        return ""
    inductors, _, elsewhere, number, content = match.groups()
    return f"fx {number}" if number else (inductors or elsewhere or content)[:_GRAPH_LETTERS]


def compiled_region(frame: Frame) -> str:
    """Torch's name of the compiled region that an entry was in, which `snapshot.rows` puts outermost; else empty."""
    return frame.name if frame.file == COMPILE_CONTEXT and _REGION.match(frame.name) else ""


def is_users(frame: Frame) -> bool:
    """Return True for a frame outside of torch, generated code, Python's library, this program and wrappers."""
    file = frame.file
    if is_own_file(file) or compiled_graph(frame) or frame.name in OVERRIDES:
        return False
    return torch_file(frame) is None and not _STDLIB_FILE.search(file) and not _WRAPPER_FILE.search(file)
