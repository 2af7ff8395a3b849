"""Files that cannot be written end in status 1, a folder that cannot work is refused before training."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import run_python
from tests.skips import by_default
from tracer.errors import OutputError
from tracer.exporters.files import check_folder

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, sys, torch
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.Adam(model.parameters())
for number in range(4):
    if number == 1 and sys.argv[1:]:
        os.mkdir(sys.argv[1])
        os.chdir(sys.argv[1])
        if sys.argv[2:]:
            os.rmdir(os.getcwd())
    optimizer.zero_grad()
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
print("trained")
sys.exit(0)
"""


def run(folder: Path, *options: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM)
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    return run_python("-m", "tracer", "run", *options, "train.py", *arguments, folder=folder, variables=variables)


def test_a_file_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "out" / "peak.json").mkdir(parents=True)
    found = run(tmp_path, "--save-dir", "out")
    assert found.returncode == 1 and "trained" in found.stdout and "Peak: " in found.stdout
    assert "peak.json cannot be written: Is a directory" in found.stderr
    (tmp_path / "watched" / "watch.json").mkdir(parents=True)
    found = run(tmp_path, "--watch", "--save-dir", "watched")
    assert found.returncode == 1 and "trained" in found.stdout


@pytest.mark.parametrize("arguments", [pytest.param(("elsewhere",), marks=pytest.mark.slow), ("elsewhere", "deleted")])
def test_a_program_may_leave_its_folder(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    found = run(tmp_path, "--save-dir", "out", arguments=arguments)
    assert found.returncode == 0 and "Peak: " in found.stdout and "train.py:" in found.stdout, found.stderr
    assert (tmp_path / "out" / "peak.json").is_file() and f"Files in {tmp_path / 'out'}: max_mem.txt" in found.stderr


@pytest.mark.parametrize(
    "command",
    by_default(["run train.py", "doctor", "predict --on h100 train.py", "--n-active-steps 1"], {"run train.py"}),
)
def test_a_working_folder_that_is_gone_is_a_sentence(tmp_path: Path, command: str) -> None:
    """torch itself ends the process there: oneMKL does not find its library."""
    (tmp_path / "gone").mkdir()
    words = f'rmdir ../gone; exec "{sys.executable}" "{ROOT / "main.py"}" {command}'
    done = subprocess.run(["sh", "-c", words], cwd=tmp_path / "gone", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: The working folder has been deleted, and torch does not run without one.\n")


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at all")
    for folder in (tmp_path / "link", tmp_path / "link" / "inside"):
        with pytest.raises(OutputError, match="leads nowhere"):
            check_folder(folder)


def test_a_folder_that_takes_no_byte_is_refused(tmp_path: Path) -> None:
    """A full disk takes an empty file, and so does a limit of the size of files."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OutputError, match="cannot be written"):
            check_folder(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
