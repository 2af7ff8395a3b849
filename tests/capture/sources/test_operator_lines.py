"""Lines of `a + b`: beside what Python itself says while the same functions run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

from tests import inline_zoo
from tracer.blocks.from_recording.attribution import attribute
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.sources.operator_lines import function_source, source_text

NAMES = {"add", "sub", "rsub", "mul", "div", "neg", "select", "slice", "gt", "lt", "reciprocal", "relu", "tanh", "copy"}
Lines = list[tuple[str, int]]


def plain(name: str) -> str:
    return name.removeprefix("aten::").rstrip("_")


class WatchedByPython(TorchDispatchMode):
    """Notes the line of the zoo that runs each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Lines = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != inline_zoo.__file__:
            frame = frame.f_back  # type: ignore[assignment]
        name = plain(func._schema.name)
        if frame is not None and name in NAMES:
            self.lines.append((name, frame.f_lineno))
        return func(*args, **(kwargs or {}))


def by_python(function: Callable[..., Tensor], *inputs: Tensor) -> Lines:
    with WatchedByPython() as watched:
        function(*inputs)
    return watched.lines


def by_profiler(function: Callable[..., Tensor], *inputs: Tensor) -> Lines:
    with profile(record_shapes=True, profile_memory=True, with_stack=True) as prof:
        function(*inputs)
    recording = read_recording(prof)
    attribution, strings, frames = attribute(recording), recording.strings, recording.frames
    lines = []
    for name, frame in zip(recording.ops.name.tolist(), attribution.op_frame.tolist(), strict=True):
        if plain(strings[name]) in NAMES and frame >= 0 and strings[frames.file[frame]] == inline_zoo.__file__:
            lines.append((plain(strings[name]), int(frames.line[frame])))
    return lines


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 4), torch.randn(4, 4)


@pytest.mark.parametrize("function", inline_zoo.TOLD, ids=lambda function: function.__name__)
def test_lines_are_those_that_python_runs(function: Callable[..., Tensor]) -> None:
    found, expected = by_profiler(function, *inputs()), by_python(function, *inputs())
    assert found == expected
    assert len(found) > 1


def test_lines_of_a_module() -> None:
    module = inline_zoo.Residual()
    assert by_profiler(module, *inputs()) == by_python(module, *inputs())


def test_where_two_lines_are_possible_it_stays_at_the_call_before() -> None:
    found = by_profiler(inline_zoo.nobody_can_tell, *inputs())
    first = inline_zoo.nobody_can_tell.__code__.co_firstlineno
    assert [(name, line - first) for name, line in found] == [("relu", 1), ("add", 1)]
    found = by_profiler(inline_zoo.a_loop_without_calls, *inputs())
    first = inline_zoo.a_loop_without_calls.__code__.co_firstlineno
    assert [(name, line - first) for name, line in found] == [("relu", 1), *[("add", 1)] * 3]


def line_of(source: str, name: str, **where: Any) -> int | None:
    found = function_source(source, 1, "f")
    assert found is not None
    return found.line_of(name, **where)


def test_the_next_call_decides_between_two_lines() -> None:
    source = "def f(x):\n    if x:\n        x = x + 1\n        a(x)\n    else:\n        x = x + 2\n        b(x)\n"
    assert line_of(source, "aten::add", after=None, before=4) == 3
    assert line_of(source, "aten::add", after=None, before=7) == 6
    assert line_of(source, "aten::add", after=None, before=None) is None
    assert line_of(source, "aten::mul", after=None, before=4) is None
    assert line_of(source, "aten::add", after=99, before=4) is None


def test_a_formula_of_a_thousand_terms_has_no_lines() -> None:
    """Written by a program; a recording is not to be lost because its source is too deep to be walked."""
    assert function_source("def f(x):\n    return " + " + ".join(["x"] * 1000) + "\n", 1, "f") is None


def test_handlers_of_exception_groups_are_alternatives() -> None:
    source = (
        "def f(x):\n    try:\n        a(x)\n    except* ValueError:\n        b(x)\n        x = x + 1\n    x = x + 2\n"
    )
    assert line_of(source, "aten::add", after=3, before=None) == 7


def test_without_source_there_is_none(tmp_path: Any) -> None:
    assert source_text(str(tmp_path / "gone.py")) == ""
    assert function_source("", 1, "f") is None
    assert function_source("def f(:\n", 1, "f") is None
