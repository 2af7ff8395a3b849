"""What a script sets before it imports torch is set before this program does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tracer.commands.launchers import set_environment_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {"OMP_NUM_THREADS": "5", "MKL_NUM_THREADS": "6"}
    monkeypatch.setattr(os, "environ", found)
    monkeypatch.delitem(sys.modules, "torch")
    return found


def script(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text, "utf-8")
    return str(folder / "train.py")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os; os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'", {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
        ("from os import environ\nenviron['OMP_NUM_THREADS'] = str(2)", {"OMP_NUM_THREADS": "2"}),
        ("os.environ.setdefault('OMP_NUM_THREADS', '1')\nos.environ.setdefault('KMP_X', '1')", {"KMP_X": "1"}),
        ("os.environ.update({'OMP_NUM_THREADS': '1'}, TORCH_X='2')", {"OMP_NUM_THREADS": "1", "TORCH_X": "2"}),
        ("del os.environ['MKL_NUM_THREADS']\nos.environ.pop('OMP_NUM_THREADS', None)", None),
        (
            "import numpy as np\nimport argparse\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'",
            {"CUDA_VISIBLE_DEVICES": "1"},
        ),
        ("import settings\nos.environ['NCCL_X'] = '1'", {"NCCL_X": "1", "OMP_NUM_THREADS": "3"}),
        # Too late in Python, too.
        ("import torch\nos.environ['OMP_NUM_THREADS'] = '1'", {}),
        ("from torch import nn\nos.environ['OMP_NUM_THREADS'] = '1'", {}),
        ("import lightning\nos.environ['OMP_NUM_THREADS'] = '1'", {}),
        ("import trains\nos.environ['OMP_NUM_THREADS'] = '1'", {}),
        ("def main():\n    os.environ['OMP_NUM_THREADS'] = '1'", {}),
        # Torch does not read them, or whoever starts processes does.
        ("os.environ['RANK'] = '1'\nos.environ['PYTHONPATH'] = '/'\nos.environ['LD_PRELOAD'] = 'x'", {}),
        ("os.environ['OMP_NUM_THREADS'] = '1'\nthis is no Python", {}),
    ],
)
def test_constants_that_are_set_before_torch_is_imported(
    text: str, expected: dict[str, str] | None, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "settings.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '3'", "utf-8")
    (tmp_path / "trains.py").write_text("import torch", "utf-8")
    before = {"OMP_NUM_THREADS": "5", "MKL_NUM_THREADS": "6"}
    assert set_environment_of(script(tmp_path, text), is_module=False) == ()
    environment.pop("PYTEST_CURRENT_TEST", None)
    assert environment == ({} if expected is None else before | expected)


def test_what_only_the_running_script_knows_is_said(tmp_path: Path, environment: dict[str, str]) -> None:
    text = "import os, sys\nif sys.argv[1:]:\n    os.environ['OMP_NUM_THREADS'] = sys.argv[1]\nimport torch\n"
    assert set_environment_of(script(tmp_path, text), is_module=False) == (
        "Note: train.py:3 sets OMP_NUM_THREADS when this command has loaded torch already: set it before the command.",
    )
    assert environment["OMP_NUM_THREADS"] == "5"


def test_modules_are_read_as_python_m_runs_them(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '3'", "utf-8")
    (package / "__main__.py").write_text("import os\nos.environ['MKL_NUM_THREADS'] = '4'", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    set_environment_of("own_package", is_module=True)
    environment.pop("PYTEST_CURRENT_TEST", None)
    assert environment == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "4"}


@pytest.mark.slow  # a process that has not loaded torch; what is set, and when, is tested above
def test_torch_reads_what_the_script_sets(tmp_path: Path) -> None:
    text = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint('threads', torch.get_num_threads())"
    ended = subprocess.run(
        [sys.executable, str(ROOT / "main.py"), "run", script(tmp_path, text)],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "2"},
        check=False,
    )  # fmt: skip
    assert "threads 1" in ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("command", "given", "is_short"),
    [
        ("run", {}, True),
        pytest.param("run", {"OMP_WAIT_POLICY": "ACTIVE"}, False, marks=pytest.mark.slow),
        pytest.param("profile", {}, True, marks=pytest.mark.slow),
    ],
)
def test_threads_spin_shortly_unless_the_user_says_for_how_long(
    command: str, given: dict[str, str], is_short: bool, tmp_path: Path
) -> None:
    """The library prints what it has read as it was loaded; the script sees the environment as it was."""
    text = "import os, torch\nprint([os.environ.get(name) for name in ('GOMP_SPINCOUNT', 'KMP_BLOCKTIME')])"
    words = ["run", script(tmp_path, text)] if command == "run" else ["--device", "none"]
    taken = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")
    variables = {name: value for name, value in os.environ.items() if name not in taken}
    ended = subprocess.run(
        [sys.executable, ROOT / "main.py", *words],
        env={**variables, **given, "OMP_DISPLAY_ENV": "VERBOSE"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    read = ended.stderr.replace(" ", "").replace("[host]", "")
    if "GOMP_SPINCOUNT" not in read:
        pytest.skip("torch is loaded with another OpenMP than libgomp")
    assert ("GOMP_SPINCOUNT='1000'" in read) == is_short
    if command == "run":
        assert "[None, None]" in ended.stdout
