"""Source files and the lines of operators in them."""

from __future__ import annotations

import importlib
import json
import sys
import sysconfig
import tempfile
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

import main
import models.fno
import tests.training_steps
import tracer.sessions.profile_session
from tests import inline_zoo
from tests.training_steps import build_workload, record
from tracer.blocks.from_recording.attribution import attribute
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.sources import source_files
from tracer.capture.sources.operator_lines import function_source, source_text
from tracer.capture.sources.source_files import (
    ProjectFiles,
    cell_name,
    file_of_cell,
    forget_files,
    is_cell,
    is_own_code,
    is_user_code,
    project_root,
    whole_path,
)
from tracer.sessions.timeline_tracer import TimelineTracer

# ---- Source files: whose each is, what a project's are called, where a project begins, lines of files that are gone.


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that the profiler would cut off, with a file in it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.py").touch()
    forget_files()
    yield tmp_path
    forget_files()


def test_a_session_looks_at_files_anew(on_path: Path) -> None:
    written = on_path / "mine" / "later.py"
    assert whole_path("mine/later.py") == "mine/later.py" and not is_user_code("mine/later.py")
    written.touch()
    assert whole_path("mine/later.py") == "mine/later.py", "once a session"
    TimelineTracer()
    assert whole_path("mine/later.py") == str(written) and is_user_code("mine/later.py")


def test_of_files_of_the_same_name_it_is_the_one_that_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same_name.py").touch()
        monkeypatch.syspath_prepend(tmp_path / folder)
    module = types.ModuleType("same_name")
    for folder in ("a", "b", "c"):
        file = str(tmp_path / folder / "same_name.py")
        monkeypatch.setattr(module, "__file__", file, raising=False)
        monkeypatch.setitem(sys.modules, "same_name", module)
        forget_files()
        assert whole_path("same_name.py") == file
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "a" / "same_name.py")])
    forget_files()
    assert whole_path("same_name.py") == str(tmp_path / "a" / "same_name.py"), "the script, whatever else is imported"


def test_a_shortened_name_is_made_whole(on_path: Path) -> None:
    whole = str(on_path / "mine" / "model.py")
    assert whole_path("mine/model.py") == whole
    assert whole_path(whole) == whole
    assert is_user_code("mine/model.py")


@pytest.mark.parametrize("name", ["<string>", "<frozen importlib._bootstrap>", "no/such/file.py", ""])
def test_what_cannot_be_found_stays_as_it_is_and_is_nobodys(name: str) -> None:
    assert whole_path(name) == name
    assert not is_user_code(name)


def test_a_script_that_is_called_by_a_path_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("work", "sub"):
        (tmp_path / name).mkdir()
    for script in (tmp_path / "train.py", tmp_path / "work" / "sub.py"):
        script.write_text("")
    monkeypatch.chdir(tmp_path / "work")
    forget_files()
    assert whole_path("../train.py") == str(tmp_path / "train.py") and is_user_code("../train.py")
    assert whole_path("../work/sub.py") == str(tmp_path / "work" / "sub.py")


def test_a_folder_is_not_a_file(on_path: Path) -> None:
    assert whole_path("mine") == "mine"


@pytest.mark.parametrize("module", [models.fno, tests.training_steps], ids=lambda module: module.__name__)
def test_models_and_scripts_are_the_users(module: object) -> None:
    assert is_user_code(str(module.__file__))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "file",
    [
        torch.__file__,
        torch.nn.functional.__file__,
        np.__file__,
        pytest.__file__,
        json.__file__,
        tracer.sessions.profile_session.__file__,
    ],
    ids=["torch", "torch.nn", "numpy", "pytest", "stdlib", "this program"],
)
def test_packages_python_and_this_program_are_not(file: str) -> None:
    assert not is_user_code(file)


def test_the_name_that_torch_shortens_is_not_the_users_either() -> None:
    """The profiler writes `torch/nn/modules/module.py` and `contextlib.py`."""
    assert whole_path("torch/nn/modules/module.py") == torch.nn.modules.module.__file__
    assert not is_user_code("torch/nn/modules/module.py")
    assert whole_path("contextlib.py") == str(Path(sysconfig.get_path("stdlib")) / "contextlib.py")
    assert not is_user_code("contextlib.py")


def test_a_virtual_environment_inside_the_project_is_not_the_users() -> None:
    here = Path(tests.training_steps.__file__).parent
    assert not is_user_code(str(here / ".venv" / "lib" / "python3" / "site-packages" / "somebody" / "model.py"))
    assert is_user_code(str(here / "somebody" / "model.py"))


def test_frames_of_a_recording_name_files_that_can_be_opened() -> None:
    built = build_workload("zero_grad_at_end")
    recording = read_recording(record(built.step)[0])
    files = {recording.strings[file] for file in recording.frames.file[recording.frames.user].tolist()}
    assert tests.training_steps.__file__ in files
    assert all(Path(file).is_file() for file in files)
    others = {recording.strings[file] for file in recording.frames.file[~recording.frames.user].tolist()}
    assert any(file.startswith("torch/") for file in others)


def test_a_module_that_must_not_be_imported_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "not_to_be_imported", None)  # type: ignore[arg-type]
    forget_files()
    assert str(Path(main.__file__).resolve()) in source_files._hidden_files()
    forget_files()


def test_the_models_inside_an_installed_package_are_as_good_as_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "site-packages" / "tracer"
    monkeypatch.setattr(source_files, "_TRACER_FOLDER", inside)
    monkeypatch.setattr(source_files, "_SHIPPED_MODELS", inside / "_models")
    assert is_user_code(str(inside / "_models" / "fno.py")) and not is_own_code(str(inside / "_models" / "fno.py"))
    assert is_own_code(str(inside / "runs" / "session.py")) and not is_user_code(str(inside / "runs" / "session.py"))


def test_a_command_that_a_package_installed_is_not_the_users() -> None:
    assert not is_user_code(str(Path(sysconfig.get_path("scripts")) / "torch-timeline"))


def test_a_module_that_a_library_has_written_into_the_temporary_folder_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyTorch Geometric writes the propagation of each layer; a script in that folder is still the user's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script, generated = tmp_path / "train.py", tmp_path / "some_library.nn.conv_propagate_x1.py"
    for file in (script, generated):
        file.touch()
    forget_files()
    assert is_user_code(str(script)) and not is_user_code(str(generated))


# ------------------------------------------------------------------------------------------------------- notebook cells
FIRST, OTHER = "/tmp/ipykernel_3191/2037443439.py", "/tmp/ipykernel_3191/1.py"


@pytest.fixture
def ipython(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {FIRST: ("Cell", "In[3]"), "<ipython-input-7-abc>": ("Cell", "In[7]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=known.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


@pytest.mark.usefixtures("ipython")
def test_a_cell_has_the_number_of_its_input() -> None:
    assert [cell_name(file) for file in (FIRST, "<ipython-input-7-abc>")] == ["cell 3", "cell 7"]
    assert file_of_cell("cell 3") == FIRST
    assert is_cell("cell 3") and not is_cell(FIRST)


@pytest.mark.usefixtures("ipython")
@pytest.mark.parametrize("file", [OTHER, "/home/me/train.py", "<string>", ""])
def test_what_ipython_does_not_know_is_no_cell(file: str) -> None:
    assert cell_name(file) is None
    assert file_of_cell(file) == file


def test_without_ipython_nothing_is_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert cell_name(FIRST) is None


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


# ---- Lines of `a + b`: beside what Python itself says while the same functions run.

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
