"""Code that torch.compile generated from the user's: the files, and the user's line that each buffer comes from.

Inductor forgets where a buffer comes from as soon as it has written its code, so that is noted at that moment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tracer.capture.sources.source_line import SourceLine

# Inductor's names of files: a hash in base 32, in a folder named after its second and third letter.
_INDUCTORS = re.compile(r"[/\\]([a-z2-7]{2})[/\\]c(\1[a-z2-7]{30,})\.py")
_FX_CODE = "<eval_with_key>."
_WRAPPED = "_orig_mod"


def is_generated(file: str) -> bool:
    """True if a file name is of code that torch.compile generated."""
    return file.startswith(_FX_CODE) or _INDUCTORS.search(file) is not None


def without_wrappers(name: str) -> str:
    """A dotted name without what torch.compile puts into it, where it has wrapped a module."""
    return ".".join(part for part in name.split(".") if part != _WRAPPED) if _WRAPPED in name else name


@dataclass(frozen=True, slots=True)
class CompiledNode:
    """An operator of a compiled graph."""

    name: str  # Name in the graph
    # The lines of the user's or a library's code that led to it, outermost first; none where torch has none.
    lines: tuple[SourceLine, ...]
    module_id: int  # `id()` of the innermost module around it, or -1
    module: str  # Name of that module as torch.compile found it, such as `blocks.0.fc`, or ""
    is_recomputed: bool = False  # Whether it is forward's, and backward computes it again
    # Whether torch knows its stack, or at least its modules; without such lines it was made for the line that called
    # the compiled code.
    has_stack: bool = True


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A generated file and the graph that it was made from."""

    path: str  # Path of the file, as the profiler's frames name it
    text: str  # Source of the file
    compile_id: str = ""  # torch's number of it: function and version, such as `0/0`
    is_backward: bool = False  # Whether it is the backward of a graph
    # How many of the outputs are the caller's; those behind them go to backward. -1 where all are.
    num_outputs: int = -1
    nodes: tuple[CompiledNode, ...] = ()  # Its operators, in order
    # Rows in `nodes` by the name of what they make together: the first is the node that it stands for.
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()  # Names of the nodes that it returns


@dataclass(frozen=True, slots=True)
class CompiledCode:
    """Code that torch.compile generated in a run."""

    # The generated files that were run; one that was compiled before the run has no nodes.
    graphs: tuple[CompiledGraph, ...] = ()
    cuda_graphs_bytes: int = 0  # Reserved at the end for the pools in which CUDA graphs work, of all devices


NOTHING_COMPILED = CompiledCode()
