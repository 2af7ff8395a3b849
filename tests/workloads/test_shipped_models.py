"""The models that come with the program: by path, under a name of their own, and never instead of the user's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import main
from tracer.workloads.shipped_models import is_shipped, shipped_model, shipped_models

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
