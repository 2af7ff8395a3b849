"""What C++ frames say of autograd: operations of forward and nodes of backward."""

from __future__ import annotations

import numpy as np
import pytest

from tracer.analysis.snapshots.frames import autograd_frames, node_name
from tracer.snapshot.columns import Frame, Stacks

KERNEL = Frame("at::_ops::mm::redispatch(c10::DispatchKeySet)", "??", 0)
MM = Frame("torch::autograd::VariableType::(anonymous namespace)::mm(c10::DispatchKeySet)", "VariableType_3.cpp", 0)
NODE = Frame("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "??", 0)
FOLDED = Frame("torch::autograd::generated::KthvalueBackward0_apply_functional(std::vector<at::Tensor>&&)", "??", 0)
ENGINE = Frame("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)", "??", 0)
LINE = Frame("forward", "/home/me/model.py", 7)
CHECKPOINT = Frame("unpack_hook", "/x/site-packages/torch/utils/checkpoint.py", 9)
FRAMES = (KERNEL, MM, NODE, FOLDED, ENGINE, LINE, CHECKPOINT)


def stacks_of(*stacks: tuple[Frame, ...]) -> Stacks:
    offset = np.cumsum([0, *map(len, stacks)], dtype=np.int64)
    flat = np.array([FRAMES.index(frame) for stack in stacks for frame in stack], dtype=np.int32)
    return Stacks(frames=FRAMES, offset=offset, frame_of=flat)


def test_forward_and_backward_of_one_operation_have_one_name() -> None:
    found = autograd_frames(stacks_of((), (KERNEL, MM, LINE), (KERNEL, MM, NODE, ENGINE)))
    assert found.operation.tolist() == [-1, 0, -1]
    assert found.node.tolist() == [-1, -1, 0]
    assert found.names == ("Mm",)


def test_the_outermost_node_is_the_one_that_the_engine_runs() -> None:
    found = autograd_frames(stacks_of((FOLDED, NODE, ENGINE)))
    assert found.names[found.node[0]] == "Mm"


def test_stacks_that_differ_within_the_operation_are_one_call() -> None:
    found = autograd_frames(stacks_of((KERNEL, MM, LINE), (MM, LINE), (MM, LINE, LINE)))
    assert found.call[0] == found.call[1] != found.call[2]


def test_forward_within_backward_is_a_recomputation_and_no_node_of_its_own() -> None:
    found = autograd_frames(stacks_of((KERNEL, MM, LINE, CHECKPOINT, NODE, ENGINE)))
    assert found.recomputes.tolist() == [True]
    assert found.operation.tolist() == found.node.tolist() == [-1]


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("mm", "Mm"),
        ("div_Tensor", "Div"),
        ("max_dim", "Max"),
        ("_log_softmax", "LogSoftmax"),
        ("nll_loss_forward", "NllLoss"),
        ("max_pool2d_with_indices", "MaxPool2DWithIndices"),
        ("addmm", "Addmm"),
    ],
)
def test_nodes_are_named_after_their_operations(operation: str, name: str) -> None:
    assert node_name(operation, {"Mm", "Div", "Max", "Log", "LogSoftmax", "NllLoss", name}) == name


def test_the_beginning_of_a_name_is_not_another_operation() -> None:
    assert node_name("log_softmax", {"Log"}) == "log_softmax"
    assert node_name("max_pool2d_with_indices", {"Max"}) == "max_pool2d_with_indices"
