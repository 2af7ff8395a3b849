"""What a frame is, by the path of its file."""

from __future__ import annotations

import numpy as np
import pytest

from tracer.analysis.snapshots.frames import (
    autograd_frames,
    compiled_graph,
    compiled_region,
    is_label,
    is_python,
    is_users,
    node_name,
    torch_file,
)
from tracer.capture import recording as wrapper
from tracer.capture.torch_private import torch_compile
from tracer.changes.kinds import bf16
from tracer.snapshot.columns import Frame, Stacks

SITE = "/usr/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("file", "inside"),
    [
        (f"{SITE}/torch/nn/functional.py", "nn/functional.py"),
        ("C:\\py\\Lib\\site-packages\\torch\\optim\\adam.py", "optim/adam.py"),
        ("/home/me/pytorch/torch/nn/modules/module.py", "nn/modules/module.py"),
        ("/home/me/torch/train.py", None),
        (f"{SITE}/torchvision/models/resnet.py", None),
    ],
)
def test_torchs_own_files(file: str, inside: str | None) -> None:
    assert torch_file(Frame("f", file, 1)) == inside


@pytest.mark.parametrize(
    ("file", "is_theirs"),
    [
        ("/home/me/model.py", True),
        ("<stdin>", True),
        ("/tmp/ipykernel_5/77.py", True),
        (f"{SITE}/transformers/trainer.py", True),
        (f"{SITE}/torch/nn/functional.py", False),
        (f"{SITE}/einops/einops.py", False),
        (torch_compile.__file__, False),
        (bf16.__file__, False),
        (wrapper.__file__, False),
        (f"{SITE}/tracer/capture/recording.py", False),
        (f"{SITE}/tracer/_models/fno.py", True),
        ("/opt/copy/tracer/capture/recording.py", False),
        ("/home/me/tracer/errors.py", True),
        ("/home/me/tracer/capture/train.py", True),
        ("/usr/lib/python3.11/threading.py", False),
        ("<frozen runpy>", False),
        ("/tmp/torchinductor_me/ab/cabcdefgh.py", False),
    ],
)
def test_the_programs_files(file: str, is_theirs: bool) -> None:
    frame = Frame("f", file, 1)
    assert is_python(frame) and is_users(frame) is is_theirs


@pytest.mark.parametrize("name", ["__torch_function__", "__torch_dispatch__"])
def test_the_method_of_a_kind_of_tensor_is_no_line_of_the_programs(name: str) -> None:
    assert not is_users(Frame(name, f"{SITE}/monai/data/meta_tensor.py", 336))


def test_what_inductor_writes_is_named_by_its_graph() -> None:
    assert compiled_graph(Frame("call", "/tmp/torchinductor_me/ab/cabcdefghij.py", 1)) == "cabcdefg"
    assert compiled_graph(Frame("call", "/home/me/cabcdefghij.py", 1)) == ""
    hashed = f"cab{'c2' * 20}"
    assert compiled_graph(Frame("call", f"/scratch/cache/ab/{hashed}.py", 1)) == "cabc2c2c"
    assert compiled_graph(Frame("call", f"D:\\cache\\ab\\{hashed}.py", 1)) == "cabc2c2c"
    assert compiled_graph(Frame("call", f"/scratch/cache/xy/{hashed}.py", 1)) == ""


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("<eval_with_key>.12", "fx 12"),
        ("<eval_with_key>.3 from /home/me/net.py:7 in forward", "fx 3"),
        ("fx_generated__0a1b2c3d4e.py", "0a1b2c3d"),
        ("<stdin>", ""),
    ],
)
def test_what_torch_fx_compiles_is_generated_too(file: str, name: str) -> None:
    frame = Frame("forward", file, 1)
    assert is_python(frame) and compiled_graph(frame) == name
    assert is_users(frame) == (not name)


def test_a_compiled_region_is_no_line_of_anybodys() -> None:
    region = Frame("Torch-Compiled Region: 0/0", "??", 0)
    assert compiled_region(region) == region.name and not is_python(region)
    assert compiled_region(Frame("Torch-Compiled Region", "/home/me/net.py", 1)) == ""
    assert compiled_region(Frame("at::mul", "??", 0)) == ""


def test_cpp_and_labels() -> None:
    assert not is_python(Frame("at::mul", "??", 0))
    assert is_label(Frame("x", "<explained as gradient>", 0)) and not is_label(Frame("x", "<stdin>", 1))


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
