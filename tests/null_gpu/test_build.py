"""The libraries: built once for a torch, whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu, null_gpu_library
from tracer.errors import NullGpuError
from tracer.null_gpu import build
from tracer.null_gpu.build import SOURCES, cache_folder, declared_prototypes, find_toolchain, read_torch, torch_folder
from tracer.null_gpu.torch_symbols import read_library, torch_symbols

pytestmark = needs_null_gpu


def test_every_prototype_and_every_symbol_that_torch_wants_is_exported() -> None:
    torch = read_torch(torch_folder())
    library = read_library(null_gpu_library())
    assert library is not None
    prototypes = declared_prototypes(find_toolchain(torch))
    assert len(prototypes) > 2000
    assert set(prototypes) - library.defined == set()
    assert torch_symbols(torch.folder).names - library.defined == set()


def test_functions_that_only_cpp_sees_are_exported_as_well() -> None:
    library = read_library(null_gpu_library())
    assert library is not None
    assert {"cublasHgemm", "cublasHgemmBatched", "cublasHgemmStridedBatched"} - library.defined == set()


def test_a_copy_of_cudart_that_a_wheel_has_renamed_is_the_null_gpus() -> None:
    """auditwheel puts a libcudart.3eda8113.so.13 into torchvision's wheel, in which vLLM looks for cudaMemcpy."""
    folder = torch_folder()
    libraries = [read_library(path) for path in folder.parent.glob("torchvision/*.so")]
    if not libraries:
        pytest.skip("needs the package torchvision (group `integrations`)")
    needed = {name for found in libraries if found is not None for name in found.needed if name.startswith("libcudart")}
    assert needed and needed <= set(torch_symbols(folder).sonames)


def test_where_cpp_cannot_be_read_the_functions_of_c_are(tmp_path: Path) -> None:
    """Debian's package gcc says `cannot execute 'cc1plus'`, and clang without a library's headers reads C++ without."""
    toolchain = find_toolchain(read_torch(torch_folder()))
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-std=c++17*) exit 1;; esac\nexec {toolchain.compiler} "$@"\n')
    compiler.chmod(0o755)
    found = declared_prototypes(replace(toolchain, compiler=str(compiler)))
    assert "cublasSgemm_v2" in found and "cublasHgemm" not in found


def test_a_change_of_the_sources_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = read_torch(torch_folder())
    before = cache_folder(torch)
    shutil.copytree(SOURCES.parent, tmp_path / "null_gpu")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "null_gpu" / "sources")
    assert cache_folder(torch) == before
    (tmp_path / "null_gpu" / "sources" / "memory.c").write_text("/* other */")
    assert cache_folder(torch) != before


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fail(torch: object, toolchain: object, folder: Path) -> None:
        (folder / build.NAME).touch()
        raise RuntimeError

    monkeypatch.setattr(build, "_build", fail)
    with pytest.raises(RuntimeError):
        null_gpu_library()
    assert [path for path in (tmp_path / "torch-timeline" / "null-gpu").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -9 $$", "it was killed, as it is where memory runs out."),
        ("exit 4", "it ended with status 4."),
        ("kill -6 $$", "it ended by SIGABRT."),
        ("echo 'a.c:1: error: no such type' >&2; echo 'ended' >&2; exit 1", "a.c:1: error: no such type"),
        ("echo 'cc: cannot write' >&2; exit 1", "cc: cannot write"),
    ],
)
def test_a_compiler_that_fails_is_quoted_or_its_end_is_said(script: str, said: str, tmp_path: Path) -> None:
    compiler = tmp_path / "it"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    with pytest.raises(NullGpuError, match=f"could not be compiled: {re.escape(said)}\n"):
        build._run([str(compiler)])


def test_a_new_build_deletes_old_ones_and_a_use_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "torch-timeline" / "null-gpu"
    for number in range(6):
        (cache / f"torch1.{number}").mkdir(parents=True)
        os.utime(cache / f"torch1.{number}", (number, number))
    monkeypatch.setattr(build, "_build", lambda torch, toolchain, folder: (folder / build.NAME).touch())
    built = null_gpu_library().parent
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {built.name, "torch1.3", "torch1.4", "torch1.5"}
    os.utime(built, (1, 1))
    null_gpu_library()
    assert built.stat().st_mtime > 1


@pytest.mark.slow
def test_ten_processes_build_it_once(tmp_path: Path) -> None:
    program = (
        "from tracer.null_gpu import build\nfrom tracer.null_gpu.build import torch_folder\n"
        "inner = build._build\nbuild._build = lambda *a: (print('built', flush=True), inner(*a))\n"
        "print(build.library(torch_folder()))"
    )
    variables = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    said = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 10
    assert sum("built" in words for words in said) == 1 and len({words[-1] for words in said}) == 1
    folder = Path(said[0][-1]).parent
    assert sorted(path.suffix for path in folder.iterdir() if path.suffix in {".c", ".o"}) == []
