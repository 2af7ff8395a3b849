"""What a frame is, by the path of its file."""

from __future__ import annotations

import pytest

from tracer.analysis.snapshots.frames import (
    compiled_graph,
    compiled_region,
    is_label,
    is_python,
    is_users,
    torch_file,
)
from tracer.snapshot.columns import Frame

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
