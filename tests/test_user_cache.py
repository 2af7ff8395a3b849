"""The user's cache: which builds are deleted, which stay, and who may have written them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.null_gpu.started import ROOT
from tracer import user_cache
from tracer.errors import NullGpuError
from tracer.null_gpu import build
from tracer.user_cache import (
    NUM_KEPT,
    UNUSED_SECONDS,
    close_to_others,
    how_others_write,
    locked,
    make_private,
    mark_used,
    prune,
)


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


def test_a_home_where_nothing_can_be_written_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache.user_cache() == tmp_path / ".cache" / "torch-timeline"
    monkeypatch.setenv("HOME", str(tmp_path / "not there"))
    assert user_cache.user_cache() == user_cache.temporary_cache()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert user_cache.user_cache() == tmp_path / "mine" / "torch-timeline"


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


# ---- libraries are loaded only from where no other user can have put them


THERE = "torch1.0"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one build, which is this user's alone; /tmp is another folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    build._say_once.cache_clear()
    (tmp_path / "tmp").mkdir(mode=0o700)
    (tmp_path / "tmp").chmod(0o1777)
    folder = tmp_path / "torch-timeline" / "null-gpu"
    make_private(folder / THERE / "bin")
    for path in (folder / THERE / build.NAME, folder / THERE / "bin" / "nvidia-smi"):
        path.touch(mode=0o644)
    return folder


def of_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a path belong to somebody else, as far as is asked: a test may not be root."""
    lstat = Path.lstat

    def changed(self: Path) -> os.stat_result:
        status = lstat(self)
        return os.stat_result((*status[:4], 54321, *status[5:])) if self == path.resolve() else status

    monkeypatch.setattr(Path, "lstat", changed)


def test_a_cache_of_ones_own_is_used(cache: Path, recwarn: pytest.WarningsRecorder) -> None:
    assert build._private_cache(THERE) == cache / THERE
    assert not recwarn


@pytest.mark.parametrize("name", ["..", ".", THERE, f"{THERE}/{build.NAME}", f"{THERE}/bin/nvidia-smi"])
@pytest.mark.parametrize("mode", [0o002, 0o020])
def test_where_others_can_write_nothing_is_loaded(
    cache: Path, name: str, mode: int, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(user_cache, "_is_own_group", lambda number: False)
    path = (cache / name).resolve()
    path.chmod(path.stat().st_mode | mode)
    elsewhere = Path(tempfile.gettempdir(), f"torch-timeline-{os.getuid()}", "null-gpu")
    assert build._private_cache(THERE) == elsewhere / THERE
    who = "all users" if mode == 0o002 else "others of its group"
    said = str(recwarn.pop().message)
    assert f"null GPU: {who} can write to {path}, so that the libraries there are not loaded" in said
    assert said.endswith(f": others are built in {elsewhere}.")
    build._private_cache(THERE)
    assert not recwarn


@pytest.mark.parametrize("name", ["..", ".", THERE, f"{THERE}/{build.NAME}"])
def test_what_belongs_to_another_is_not_loaded(
    cache: Path, name: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    of_another(cache / name, monkeypatch)
    assert build._private_cache(THERE) != cache / THERE
    assert f"{(cache / name).resolve()} belongs to user 54321, so that" in str(recwarn.pop().message)


@pytest.mark.filterwarnings("ignore:null GPU")
def test_what_compilers_leave_is_not_loaded_either(cache: Path) -> None:
    make_private(cache / build.INDUCTOR)
    (cache / build.INDUCTOR).chmod(0o777)
    assert build._private_cache(THERE) != cache / THERE


def test_a_folder_of_ones_name_in_tmp_may_be_planted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / THERE).chmod(0o777)
    planted = Path(tempfile.gettempdir(), f"torch-timeline-{os.getuid()}")
    planted.mkdir()
    of_another(planted, monkeypatch)
    with pytest.raises(NullGpuError, match=f"can change: all users .*, and {planted} belongs to user 54321"):
        build._private_cache(THERE)


def test_a_link_is_looked_at_where_it_leads(cache: Path) -> None:
    (cache / "link").symlink_to(cache / THERE)
    assert how_others_write(cache / "link") is None
    (cache / THERE).chmod(0o777)
    assert how_others_write(cache / "link") == f"all users can write to {(cache / THERE).resolve()}"


def test_a_group_of_ones_own_may_write(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_cache, "_is_own_group", lambda number: True)
    (cache / THERE).chmod(0o775)
    assert how_others_write(cache / THERE) is None


def test_what_is_built_is_ones_own_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b")
        (tmp_path / "a" / "b" / "file").touch()
        close_to_others(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert how_others_write(tmp_path / "a" / "b", with_contents=True) is None
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
