"""Where a null GPU cannot be had, one sentence says why, and a hint what to do."""

from __future__ import annotations

import importlib.util
import platform
import sys
from pathlib import Path

import pytest

from tracer.errors import NullGpuError
from tracer.null_gpu import build
from tracer.null_gpu.build import Torch, find_toolchain, read_torch


def installed(folder: Path, *, version: str = "2.15.0+cu132", cuda: str | None = "13.2", hip: str = "None") -> Path:
    """A torch, as far as it is read."""
    (folder / "torch").mkdir()
    (folder / "torch" / "version.py").write_text(
        f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = {hip}\n"
    )
    return folder / "torch"


@pytest.mark.skipif(sys.platform != "linux", reason="says that it is not Linux")
def test_which_torch_it_is(tmp_path: Path) -> None:
    folder = installed(tmp_path)
    assert read_torch(folder) == Torch(folder, "2.15.0+cu132", "13.2")


@pytest.mark.skipif(sys.platform != "linux", reason="says that it is not Linux")
@pytest.mark.parametrize(("hip", "built_for"), [("None", "the CPU alone"), ("'6.4'", "ROCm")])
def test_another_build_of_torch(tmp_path: Path, hip: str, built_for: str) -> None:
    folder = installed(tmp_path, version="2.15.0+cpu", cuda=None, hip=hip)
    with pytest.raises(NullGpuError, match=f"torch 2.15.0\\+cpu is built for {built_for}") as caught:
        read_torch(folder)
    assert "pip install" in caught.value.hint


@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows"), ("sunos5", "sunos5")])
def test_another_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, name: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    needs = f"needs Linux, torch with CUDA and a C compiler, and this is {name}"
    with pytest.raises(NullGpuError, match=needs) as caught:
        read_torch(installed(tmp_path))
    assert "docker run" in caught.value.hint and "--on" not in caught.value.hint


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NullGpuError, match="torch is not installed"):
        build.torch_folder()


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(NullGpuError, match="there is no C compiler `cc` here") as caught:
        find_toolchain(Torch(tmp_path, "2.15.0", "13.2"))
    assert "apt-get install gcc" in caught.value.hint


@pytest.mark.parametrize(("cuda", "wheel"), [("13.2", "nvidia-cuda-runtime"), ("12.8", "nvidia-cuda-runtime-cu12")])
def test_missing_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str, wheel: str) -> None:
    compiler = tmp_path / "cc"
    compiler.touch(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(NullGpuError, match=r"cuda_runtime_api.h is not among the packages") as caught:
        find_toolchain(Torch(tmp_path / "torch", "2.15.0", cuda))
    assert caught.value.hint == f"pip install {wheel}"


def test_another_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(NullGpuError, match="this is riscv64"):
        find_toolchain(Torch(tmp_path, "2.15.0", "13.2"))


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = ["/bin/sh", "-c", "echo 'memory.c:7: error: no such thing' >&2; exit 1"]
    with pytest.raises(NullGpuError, match=r"could not be compiled: memory\.c:7: error: no such thing"):
        build._run(command)


@pytest.mark.skipif(sys.platform != "linux", reason="says that it is not Linux")
def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(build, "find_toolchain", lambda torch: None)
    with pytest.raises(NullGpuError, match=r"cannot be written to .*Not a directory") as caught:
        build.library(installed(tmp_path))
    assert "XDG_CACHE_HOME" in caught.value.hint
