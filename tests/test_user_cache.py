"""Which builds are deleted from the cache, and which stay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.null_gpu.started import ROOT
from tracer.user_cache import NUM_KEPT, UNUSED_SECONDS, locked, mark_used, prune


@pytest.fixture
def builds(tmp_path: Path) -> list[Path]:
    """Two more than are kept, the first used longest ago, all unused for more than a day."""
    folders = [tmp_path / f"torch2.{number}" for number in range(NUM_KEPT + 2)]
    for number, folder in enumerate(folders):
        _make(folder, UNUSED_SECONDS + 1000 - number)
    return folders


def _make(folder: Path, unused_seconds: float) -> None:
    folder.mkdir()
    (folder / "library").touch()
    os.utime(folder, (time.time() - unused_seconds,) * 2)


def _left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_the_last_used_stay(builds: list[Path], tmp_path: Path) -> None:
    prune(tmp_path, "torch")
    assert _left(tmp_path) == [build.name for build in builds[2:]]


def test_one_that_is_used_stays(builds: list[Path], tmp_path: Path) -> None:
    mark_used(builds[0])
    prune(tmp_path, "torch")
    assert _left(tmp_path) == [builds[0].name, *(build.name for build in builds[3:])]


def test_what_was_used_within_a_day_stays(tmp_path: Path) -> None:
    for number in range(NUM_KEPT + 2):
        _make(tmp_path / f"torch2.{number}", UNUSED_SECONDS / 2 + number)
    prune(tmp_path, "torch")
    assert len(_left(tmp_path)) == NUM_KEPT + 2


def test_one_that_another_holds_stays(builds: list[Path], tmp_path: Path) -> None:
    with locked(builds[0]):
        prune(tmp_path, "torch")
    assert _left(tmp_path) == [builds[0].name, *(build.name for build in builds[2:])]


def test_what_was_left_half_built_goes_and_what_is_built_now_stays(tmp_path: Path) -> None:
    _make(tmp_path / ".torch2.1-ended", UNUSED_SECONDS + 1)
    _make(tmp_path / ".torch2.1-now", 1)
    _make(tmp_path / "other", UNUSED_SECONDS + 1)
    prune(tmp_path, "torch")
    assert _left(tmp_path) == [".torch2.1-now", "other"]


def test_a_build_that_is_not_there_is_not_marked(tmp_path: Path) -> None:
    mark_used(tmp_path / "cache" / "torch2.1")
    assert list(tmp_path.iterdir()) == []


def test_ten_processes_delete_at_once(builds: list[Path], tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom tracer.user_cache import prune\nprune(Path(sys.argv[1]), 'torch')"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(10)]
    assert [process.wait(60) for process in processes] == [0] * 10
    assert _left(tmp_path) == [build.name for build in builds[2:]]
