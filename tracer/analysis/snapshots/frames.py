"""What a stack frame is: a line of Python, of torch's own, of the program's, or our label."""

from __future__ import annotations

import re
from typing import Final

from tracer.capture.torch_names import OVERRIDES
from tracer.snapshot.columns import Frame
from tracer.snapshot.stacks import COMPILE_CONTEXT

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
# Our own label on top of a stack, see exporters/memory_snapshot.py; no code has run there.
LABEL: Final = re.compile(r"^<explained as (\w+)>$")


def is_python(frame: Frame) -> bool:
    """Whether a frame is a line of Python."""
    return bool(_PYTHON_FILE.search(frame.file))


def is_label(frame: Frame) -> bool:
    """Whether it is our own label."""
    return bool(LABEL.match(frame.file))


def torch_file(frame: Frame) -> str | None:
    """The file's path below `torch/`, with slashes, if it is one of torch's own."""
    match = _TORCH_FILE.search(frame.file)
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
    """Whether it is outside of torch, its generated code, Python's own library and what only passes calls on."""
    file = frame.file
    if compiled_graph(frame) or frame.name in OVERRIDES:
        return False
    return torch_file(frame) is None and not _STDLIB_FILE.search(file) and not _WRAPPER_FILE.search(file)
