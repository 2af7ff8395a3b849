"""Where a project begins: above the package of the model's code, with or without an `__init__.py`."""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tracer.capture.sources.source_files import ProjectFiles, forget_files, project_root

NET = "from torch import nn\nclass Net(nn.Module):\n    pass\n"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]
    forget_files()


@pytest.mark.parametrize(
    ("files", "module"),
    [
        (["alone.py"], "alone"),
        (["regular/__init__.py", "regular/net.py"], "regular.net"),
        (["inside/__init__.py"], "inside"),
        (["folder/inside/__init__.py"], "folder.inside"),
        (["folder/net.py"], "folder.net"),
        (["folder/sub/net.py"], "folder.sub.net"),
        (["folder/regular/__init__.py", "folder/regular/net.py"], "folder.regular.net"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_root_is_where_imports_begin(
    files: list[str], module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(NET)
    net = importlib.import_module(module).Net()
    assert project_root(net) == tmp_path.resolve()


def test_the_model_that_was_asked_for_is_not_kept() -> None:
    """What is remembered of files is remembered of files alone."""
    model = nn.Linear(2, 2)
    kept = weakref.ref(model)
    project_root(model)
    del model
    assert kept() is None


def test_the_projects_own_files_and_libraries_are_named(tmp_path: Path) -> None:
    root = tmp_path / "project"
    for file in ("a.py", "pkg/b.py", "env/lib/site-packages/c.py", "venv/d.py", "data/site-packages/e.py"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    (root / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "project2").mkdir()
    files = ProjectFiles(root)
    assert files(str(root / "a.py")) == "a.py"
    assert files(str(root / "pkg" / "b.py")) == "pkg/b.py"
    assert files(str(root / "venv/d.py")) is None
    # A library's are named from the folder of packages, wherever that lies; torch's are not named.
    assert files(str(root / "env/lib/site-packages/c.py")) == "c.py"
    assert files(str(root / "data/site-packages/pkg/e.py")) == "pkg/e.py"
    assert files(torch.__file__) is None
    # A name that begins alike is no part of the path.
    assert files(str(tmp_path / "project2" / "f.py")) is None
    assert files("<string>") is None
    assert files("torch/nn/modules/linear.py") is None


def test_a_project_inside_a_virtual_environment_is_one(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").touch()
    root = tmp_path / "src"
    root.mkdir()
    (root / "a.py").touch()
    assert ProjectFiles(root)(str(root / "a.py")) == "a.py"
