"""Where torch's inside has another shape, the user's compilation goes on, and a note says what is missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.pieces import Pieces
from tests.truth.isolate import value_in_fresh_process
from tracer.capture.compile_watch import CompileWatch, _node
from tracer.capture.torch_private import torch_compile
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule


def fail(*_: Any) -> Any:
    raise AttributeError("GraphLowering has no compile_to_module")


def test_a_torch_that_cannot_be_watched_is_a_fault_of_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = CompileWatch()
    monkeypatch.setattr(torch_compile, "watch_inductor", fail)
    watch._compilation_begins()
    watch._compilation_begins()
    assert str(watch.fault) == "GraphLowering has no compile_to_module"
    watch.stop()


def test_a_graph_that_cannot_be_read_is_one(tmp_path: Path) -> None:
    watch = CompileWatch()
    watch._lowered(SimpleNamespace(module=None), str(tmp_path / "generated.py"), 1)
    assert isinstance(watch.fault, AttributeError)


class HashableNode(SimpleNamespace):
    """As torch's are, by identity."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def fx_node(name: str, *, users: tuple[Any, ...] = (), target: str = "aten.mm.default", **meta: Any) -> Any:
    stack = meta.pop("line", None)
    if stack is not None:
        meta["stack_trace"] = f'  File "/home/somebody/net.py", line {stack}, in forward\n    x\n'
    return HashableNode(name=name, op="call_function", target=target, args=(), users=users, meta=meta)


@pytest.mark.parametrize(
    ("is_backward", "tag", "target", "is_recomputed"),
    [
        (True, "is_forward", "aten.mm.default", True),
        (True, "is_backward", "aten.mm.default", False),
        (True, None, "aten.mm.default", False),
        (False, "is_forward", "aten.mm.default", False),
        # Views and parts of a result are no work.
        (True, "is_forward", "aten.view.default", False),
        (True, "is_forward", "<built-in function getitem>", False),
    ],
)
def test_what_of_forwards_stands_in_a_backward_graph_is_computed_again(
    is_backward: bool, tag: str | None, target: str, is_recomputed: bool
) -> None:
    node = fx_node("one", target=target, line=7, partitioner_tag=tag)
    node.args = (fx_node("given"),)
    assert _node(node, is_backward=is_backward).is_recomputed == is_recomputed


def test_a_node_that_a_pass_has_put_in_says_what_its_parts_say() -> None:
    """As dropout's, once its random state is kept: torch leaves the new node without a stack."""
    part = fx_node("getitem_1", target="<built-in function getitem>", line=7, partitioner_tag="is_forward")
    pair = fx_node("getitem", target="<built-in function getitem>", users=(part,))
    found = _node(fx_node("run_with_rng_state", users=(pair,)), is_backward=True)
    assert [line.line for line in found.lines] == [7]
    assert found.is_recomputed and found.has_stack
    alone = _node(fx_node("run_with_rng_state", users=(fx_node("mm", line=7),)), is_backward=True)
    assert (alone.lines, alone.has_stack) == ((), False)


@pytest.mark.parametrize("stack", ["nn_module_stack", "fwd_nn_module_stack"])
def test_a_node_of_torchs_own_modules_is_made_for_the_line_that_called_the_graph(stack: str) -> None:
    """Torch leaves out its own lines: what it knows of such a node are the modules around it."""
    node = fx_node("mm")
    node.meta[stack] = {"7@1": ("L['fn'].0", nn.Linear)}
    found = _node(node, is_backward=False)
    assert (found.lines, found.module, found.has_stack) == ((), "0", True)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ((0, []), (0, []), ()),
        ((0, []), (2, []), ("",)),
        ((1, ["old"]), (1, ["old"]), ()),
        ((1, ["old"]), (4, ["old", "new\n more", "new", "other"]), ("new", "other")),
    ],
)
def test_cuda_graphs_that_were_not_made_are_those_of_the_run(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, list[str]], after: tuple[int, list[str]], told: tuple[str, ...]
) -> None:
    watch = CompileWatch()
    monkeypatch.setattr(torch_compile, "cuda_graphs_left_out", lambda: before)
    watch.start()
    monkeypatch.setattr(torch_compile, "cuda_graphs_left_out", lambda: after)
    watch.stop()
    assert watch._cuda_graphs_left_out() == told


def test_it_is_said_in_a_note() -> None:
    model = Pieces().model
    session = ProfileSession(nn.Sequential(model), schedule=Schedule(0, 1, 1, 1))
    assert not [note for note in session.notes if "torch.compile" in note]
    session._compile_watch.fault = AttributeError("no nodes")
    (note,) = (note for note in session.notes if "torch.compile" in note)
    assert note == (
        "What torch.compile generated could not be read, so its memory has the name of its region: "
        "AttributeError: no nodes"
    )


def told_apart() -> list[bool]:
    """Of a graph that torch.compile made, a model, a module with an attribute `meta` of its own, and a traced model."""
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    class Results(nn.Module):  # as Lightning's collection of results
        meta = object()

    model = nn.Linear(2, 2)
    torch.compile(model, backend=backend)(torch.ones(1, 2))
    modules = [graphs[0], model, Results(), torch.fx.symbolic_trace(model)]
    return [torch_compile.is_graph_of_compiler(module) for module in modules]


def test_graphs_that_torch_compile_made_are_told_from_models() -> None:
    """In a process of its own: hooks know whether anything was ever compiled in one."""
    assert value_in_fresh_process(told_apart) == [True, False, False, False]
