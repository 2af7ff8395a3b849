"""Factories, inputs, blocks and the models that come along: how they are found, a sentence for each mistake."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import main
from models import lstm
from tracer.errors import UserModelError
from tracer.workloads.factory import is_shipped, load_factory, parse_arguments, shipped_model, shipped_models
from tracer.workloads.module_steps import repeated_blocks
from tracer.workloads.random_inputs import parse_input, random_batches
from tracer.workloads.step_options import StepOptions
from tracer.workloads.user_model import as_workload
from tracer.workloads.workload import all_tensors


def test_arguments_are_literals_or_else_strings() -> None:
    given = ["a=1", "b=(2, 3)", "c=None", "d=gelu", "e=x=y", "f=false", "g='1'", "h=1e-3"]
    expected = {"a": 1, "b": (2, 3), "c": None, "d": "gelu", "e": "x=y", "f": False, "g": "1", "h": 1e-3}
    assert parse_arguments("--model-arg", given) == expected
    with pytest.raises(UserModelError, match="--model-arg width is not of the form key=value"):
        parse_arguments("--model-arg", ["width"])


def test_names_may_have_dots() -> None:
    assert load_factory("models.lstm:Forecaster.forward") is lstm.Forecaster.forward


OWN_PACKAGE = {
    # No __init__.py: it would lose against a package that has one. gpt is a name that this program has as well.
    "models/gpt.py": "from torch import nn\nclass Theirs(nn.Linear):\n    pass\n",
    "models/late.py": "WIDTH = 7\n",
    "src/beside.py": "NAME = 'beside'\n",
    "src/net.py": """
        import beside
        from models.gpt import Theirs
        def build():
            from models.late import WIDTH
            return Theirs(WIDTH, 2)
    """,
}


@pytest.mark.slow  # a process that loads torch
def test_a_project_may_have_a_package_of_the_same_name(tmp_path: Path) -> None:
    """In a process of its own, which forgets ours for good."""
    for name, text in OWN_PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text).lstrip())
    program = """
        from tracer.workloads.factory import load_factory
        from tracer.workloads.step_options import StepOptions
        from tracer.workloads.user_model import build_user_workload
        print(load_factory("models.gpt:Theirs").__name__)
        workload = build_user_workload("src/net.py:build", device="cpu", options=StepOptions(inputs=["7"]))
        print(workload.model.in_features, type(workload).__name__)
    """
    root = str(Path(main.__file__).parent)
    variables = os.environ | {"PYTHONPATH": root}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines() == ["Theirs", "7 ModuleWorkload"], ended.stderr


CPU = torch.device("cpu")


def test_inputs_are_what_was_asked_for_and_follow_from_the_seed() -> None:
    texts = ["3x4", "ids=5:int64:2-7", "mask=5:bool", "label=scalar:int32:-3-0", "half=2:bfloat16", "z=2:complex64"]
    specs = [parse_input(text) for text in texts]
    args, named = random_batches(specs, batch_size=64, device=CPU, seed=1)()
    assert [tuple(tensor.shape) for tensor in args] == [(64, 3, 4)]
    assert {name: (tuple(t.shape), t.dtype) for name, t in named.items()} == {
        "ids": ((64, 5), torch.int64),
        "mask": ((64, 5), torch.bool),
        "label": ((64,), torch.int32),
        "half": ((64, 2), torch.bfloat16),
        "z": ((64, 2), torch.complex64),
    }
    assert sorted(named["ids"].unique().tolist()) == [2, 3, 4, 5, 6]
    assert sorted(named["label"].unique().tolist()) == [-3, -2, -1]
    again, _ = random_batches(specs, batch_size=64, device=CPU, seed=1)()
    assert torch.equal(args[0], again[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3xa", "3xa is not a shape"),
        ("", "nothing is not a shape"),
        ("3x0", "every size must be at least 1"),
        ("3:float99", "torch has no dtype float99"),
        ("3:nn", "torch has no dtype nn"),
        ("3:int64", "has integers and does not say which"),
        ("3:int64:5-5", "leaves no integer"),
        ("3:int8:0-300", "int8 cannot hold that range"),
        ("3:float32:0-1", "only integers have a range"),
        ("a=b=3", "is not a shape"),
    ],
)
def test_an_input_that_is_none(text: str, message: str) -> None:
    with pytest.raises(UserModelError, match=message):
        parse_input(text)


class Repeated(nn.Module):
    """A block as people write them: a part with parts of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())


class Around(nn.Module):
    """A module that has its parts as attributes, by the names given."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def two() -> nn.ModuleList:
    return nn.ModuleList([Repeated(), Repeated()])


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (nn.Sequential(Around(layers=two()), nn.Linear(4, 4)), ["0.layers.0", "0.layers.1"]),
        (nn.Sequential(Around(layers=two()), Around(layers=two())), ["0", "1"]),
        (
            Around(encoder=Around(layers=two()), decoder=Around(layers=two())),
            [f"{c}coder.layers.{n}" for c in ("en", "de") for n in (0, 1)],
        ),
        (Around(down=Repeated(), up=Repeated(), head=nn.Linear(4, 4)), ["down", "up"]),
        (Around(layers=nn.ModuleDict({"0": Repeated(), "1": Repeated()})), ["layers.0", "layers.1"]),
        (nn.ModuleList([two(), two()]), ["0.0", "0.1", "1.0", "1.1"]),
        (nn.Sequential(Repeated(), nn.Linear(4, 4)), ["0"]),
        (Around(features=nn.Sequential(nn.Linear(4, 4)), head=nn.Sequential(nn.Linear(4, 4))), []),
    ],
)
def test_blocks_are_the_parts_that_repeat_at_any_depth(model: nn.Module, names: list[str]) -> None:
    name_of = {module: name for name, module in model.named_modules()}
    assert [name_of[block] for block in repeated_blocks(model)] == names


HERE = Path(main.__file__).parent / "models"


@pytest.fixture
def no_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a folder that is not the checkout: nothing is called `models`."""
    monkeypatch.delitem(sys.modules, "models", raising=False)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not (Path(entry) / "models").is_dir()])


def test_a_checkout_has_them_in_its_folder() -> None:
    assert shipped_models() == HERE
    module = shipped_model("fno_workload")
    assert module.__file__ == str(HERE / "fno_workload.py")
    assert shipped_model("fno_workload") is module
    assert module.FNO.__module__.partition(".")[0] == module.__name__.partition(".")[0] != "models"


@pytest.mark.usefixtures("no_other_models")
def test_names_that_are_ours_where_nobody_else_has_models() -> None:
    assert is_shipped("models.gpt")
    assert not is_shipped("models.nothing") and not is_shipped("models") and not is_shipped("mine.gpt")


@pytest.mark.usefixtures("no_other_models")
def test_a_package_of_the_users_hides_them_and_a_folder_does_not(tmp_path: Path) -> None:
    # Not `monkeypatch.syspath_prepend`: undone behind the fixture's own change, it leaves the fixture's path behind.
    sys.path.insert(0, str(tmp_path))
    (tmp_path / "models").mkdir()
    assert is_shipped("models.gpt")
    (tmp_path / "models" / "__init__.py").touch()
    assert not is_shipped("models.gpt")


# ------------------------------------------------------------------------------------------------------- module tensors
def test_a_list_that_hides_the_method_hides_no_buffer() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    expected = [*model.parameters(), *model.buffers()]
    model.buffers = ["mine"]  # type: ignore[assignment,method-assign,list-item]
    found = list(all_tensors(model))
    assert len(found) == len(expected) == 7
    assert all(one is other for one, other in zip(found, expected, strict=True))


# ------------------------------------------------------------------------------------------------------------ compiling
def linear() -> Any:
    return as_workload(nn.Linear(8, 2), device=torch.device("cpu"), options=StepOptions(inputs=["8"]))
