"""A script's own modules, named like ours, a library's or Python's, beside ours, which go on loading."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import run_python
from tracer.commands import script
from tracer.commands.script import modules_of

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import importlib, pickle
import tracer, typer, statistics
from tracer import mine, Own
assert typer.MINE == 2 and statistics.MINE == 3 and importlib.import_module("tracer") is tracer
assert pickle.loads(pickle.dumps(Own())).__class__ is tracer.Own
import tracer.parts.inner as inner
assert inner.MINE == 4
import numpy, torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
print("mine", mine)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    parts = tmp_path / "tracer" / "parts"
    parts.mkdir(parents=True)
    (tmp_path / "tracer" / "__init__.py").write_text("from .parts import inner\nmine = 1\nclass Own: pass\n")
    (parts / "__init__.py").touch()
    (parts / "inner.py").write_text("import tracer.parts\nMINE = 4\n")
    (tmp_path / "typer.py").write_text("MINE = 2\n")
    (tmp_path / "statistics.py").write_text("MINE = 3\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_script_has_its_own_modules_and_the_answer_comes(folder: Path) -> None:
    """In a process that has loaded nothing yet: ours are loaded beside the script's."""
    found = subprocess.run(
        [sys.executable, "-P", "-m", "tracer", "run", "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert_trained(found, folder)


def test_a_module_has_its_own_modules_and_the_answer_comes(folder: Path) -> None:
    assert_trained(run_python("-m", "tracer", "run", "-m", "train", folder=folder), folder)


def assert_trained(found: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert found.returncode == 0, found.stderr
    assert "mine 1" in found.stdout and "Peak: " in found.stdout
    assert (folder / "profiler_outputs" / "memory_timeline.html").is_file()


def test_all_is_as_before_when_the_script_has_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    before, ours = __import__, sys.modules["tracer"]
    import statistics

    with modules_of(folder):
        assert importlib.import_module("tracer").mine == 1
        with pytest.raises(ModuleNotFoundError):  # the script's `tracer` has no such module
            exec("import tracer.units", {"__file__": str(folder / "train.py")})
        exec("import tracer.units", {"__file__": script.__file__})
    assert sys.modules["tracer"] is ours and sys.modules["statistics"] is statistics and __import__ is before
    assert "tracer.parts" not in sys.modules


def test_nothing_changes_where_no_name_clashes(tmp_path: Path) -> None:
    (tmp_path / "sys.py").touch()  # Python never looks for it there
    (tmp_path / "torch").mkdir()  # no package
    (tmp_path / "helpers.py").touch()
    before = __import__
    with modules_of(tmp_path):
        assert __import__ is before
