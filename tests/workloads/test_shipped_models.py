"""The models that come with the program: by path, under a name of their own, and never instead of the user's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import main
from tests.pieces import Pieces, tiny_fno
from tracer.errors import UserModelError
from tracer.workloads.factory import is_shipped, shipped_model, shipped_models
from tracer.workloads.module_steps import compiled
from tracer.workloads.module_tensors import all_tensors
from tracer.workloads.user_model import StepOptions, as_workload

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


@pytest.mark.parametrize("build", [linear, tiny_fno])
def test_the_model_is_called_through_what_compiles_it(build: Any) -> None:
    plain = build()
    found = compiled(plain, ("backend=eager",))
    assert found.model is not plain.model
    assert [one is other for one, other in zip(found.model.parameters(), plain.model.parameters(), strict=True)]
    assert (found.optimizer, found.next_batch) == (plain.optimizer, plain.next_batch)


def test_a_workload_that_makes_its_own_step_is_refused() -> None:
    with pytest.raises(UserModelError, match="--compile has no meaning for a workload") as caught:
        compiled(Pieces(), ())
    assert "torch.compile in the factory" in caught.value.hint


@pytest.mark.parametrize("argument", ["mode=quick", "speed=high", "backend=none_such", "fullgraph"])
def test_arguments_that_torch_does_not_take_are_a_sentence(argument: str) -> None:
    with pytest.raises(UserModelError) as caught:
        compiled(linear(), (argument,))
    assert argument in str(caught.value)
    assert "\n" not in str(caught.value)
