"""The libraries: built once for a torch, whole or not at all."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu, null_gpu_library
from tests.test_architecture import find_cycle
from tracer.errors import NullGpuError
from tracer.null_gpu import build
from tracer.null_gpu.build import (
    SOURCES,
    Torch,
    cache_folder,
    declared_prototypes,
    find_toolchain,
    read_torch,
    torch_folder,
)
from tracer.null_gpu.torch_symbols import other_fat_binaries, read_library, read_prototypes, stub_source, torch_symbols


@needs_null_gpu
def test_every_prototype_and_every_symbol_that_torch_wants_is_exported() -> None:
    torch = read_torch(torch_folder())
    library = read_library(null_gpu_library())
    assert library is not None
    prototypes = declared_prototypes(find_toolchain(torch))
    assert len(prototypes) > 2000
    assert set(prototypes) - library.defined == set()
    assert torch_symbols(torch.folder).names - library.defined == set()


@needs_null_gpu
def test_functions_that_only_cpp_sees_are_exported_as_well() -> None:
    library = read_library(null_gpu_library())
    assert library is not None
    assert {"cublasHgemm", "cublasHgemmBatched", "cublasHgemmStridedBatched"} - library.defined == set()


@needs_null_gpu
def test_a_copy_of_cudart_that_a_wheel_has_renamed_is_the_null_gpus() -> None:
    """auditwheel puts a libcudart.3eda8113.so.13 into torchvision's wheel, in which vLLM looks for cudaMemcpy."""
    folder = torch_folder()
    libraries = [read_library(path) for path in folder.parent.glob("torchvision/*.so")]
    if not libraries:
        pytest.skip("needs the package torchvision (group `integrations`)")
    needed = {name for found in libraries if found is not None for name in found.needed if name.startswith("libcudart")}
    assert needed and needed <= set(torch_symbols(folder).sonames)


@needs_null_gpu
@pytest.mark.slow
def test_where_cpp_cannot_be_read_the_functions_of_c_are(tmp_path: Path) -> None:
    """Debian's package gcc says `cannot execute 'cc1plus'`, and clang without a library's headers reads C++ without."""
    toolchain = find_toolchain(read_torch(torch_folder()))
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-std=c++17*) exit 1;; esac\nexec {toolchain.compiler} "$@"\n')
    compiler.chmod(0o755)
    found = declared_prototypes(replace(toolchain, compiler=str(compiler)))
    assert "cublasSgemm_v2" in found and "cublasHgemm" not in found


@needs_null_gpu
def test_a_change_of_the_sources_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = read_torch(torch_folder())
    before = cache_folder(torch)
    shutil.copytree(SOURCES.parent, tmp_path / "null_gpu")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "null_gpu" / "sources")
    assert cache_folder(torch) == before
    (tmp_path / "null_gpu" / "sources" / "memory.c").write_text("/* other */")
    assert cache_folder(torch) != before


@needs_null_gpu
def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fail(torch: object, toolchain: object, folder: Path) -> None:
        (folder / build.NAME).touch()
        raise RuntimeError

    monkeypatch.setattr(build, "_build", fail)
    with pytest.raises(RuntimeError):
        null_gpu_library()
    assert [path for path in (tmp_path / "torch-timeline" / "null-gpu").iterdir() if path.is_dir()] == []


@needs_null_gpu
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


@needs_null_gpu
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
@needs_null_gpu
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


# ---- what is read of NVIDIA's headers, and what a function that nobody wrote answers


HEADER = """
typedef int cublasStatus_t; typedef int (*cudaCallback_t)(void *data);
extern __attribute__((visibility("default"))) cudaError_t cudaArrayGetInfo(struct cudaChannelFormatDesc *desc, struct
   cudaExtent *extent, unsigned int *flags, cudaArray_t array);
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, int m, const float *alpha, const float *A, float *C);
cublasStatus_t cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t *mode);
cusolverStatus_t cusolverDnSgetrf_bufferSize(cusolverDnHandle_t handle, int m, float *A, int *Lwork);
cusparseStatus_t cusparseSpMV_bufferSize(cusparseHandle_t handle, size_t *bufferSize);
cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *handle);
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *data, int other), void *data);
static inline int cudaInline(void) { return cublasSgemm_v2(0, 0, 0, 0, 0); }
"""


def stub(name: str, *wanted: str) -> str:
    source = stub_source(read_prototypes(HEADER), wanted)
    (line,) = [line for line in source.splitlines() if f" {name}(" in line]
    return line


def test_all_functions_are_read() -> None:
    found = read_prototypes(HEADER)
    assert set(found) == {
        "cudaArrayGetInfo", "cublasSgemm_v2", "cublasGetAtomicsMode", "cusolverDnSgetrf_bufferSize",
        "cusparseSpMV_bufferSize", "cusolverDnCreate", "cuLaunchHostFunc",
    }  # fmt: skip
    assert found["cudaArrayGetInfo"].parameters[1] == "struct cudaExtent *extent"
    assert found["cuLaunchHostFunc"].parameters[1] == "void (*function)(void *data, int other)"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("cublasSgemm_v2", '{ null_gpu_multiplied("cublasSgemm_v2", *(void **)p0); return 0; }'),
        ("cusolverDnSgetrf_bufferSize", "{ if (p3) *(int *)p3 = 1; return 0; }"),
        ("cusparseSpMV_bufferSize", "{ if (p1) *(size_t *)p1 = 0; return 0; }"),
        ("cusolverDnCreate", "{ if (p0) *(void **)p0 = opaque; return 0; }"),
        ("cublasGetAtomicsMode", '{ return null_gpu_unwritten("cublasGetAtomicsMode"); }'),
        ("cudaArrayGetInfo", '{ return null_gpu_unwritten("cudaArrayGetInfo"); }'),
        ("cuLaunchHostFunc", '{ return null_gpu_unwritten("cuLaunchHostFunc"); }'),
    ],
)
def test_what_is_answered(name: str, answer: str) -> None:
    assert stub(name).endswith(answer)


def test_what_torch_calls_succeeds() -> None:
    assert stub("cublasGetAtomicsMode", "cublasGetAtomicsMode").endswith("{ return 0; }")
    assert stub("nvshmem_something", "nvshmem_something") == "STUB long nvshmem_something(void) { return 0; }"


# ------------------------------------------------------------------------------------------------------------------ elf
def test_other_files_are_none(tmp_path: Path) -> None:
    for content in (b"", b"\x7fEL", b"#!/bin/sh\n" * 10, b"\x7fELF\x01\x01" + bytes(100)):
        (tmp_path / "file").write_bytes(content)
        assert read_library(tmp_path / "file") is None


def test_a_library_that_is_cut_off_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\x7fELF\x02\x01" + bytes(34) + b"\xff" * 30)
    assert read_library(tmp_path / "file") is None


@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("readelf") is None, reason="needs cc and readelf")
def test_a_library(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int wanted(void); double sin(double); int made(void) { return wanted() + sin(1); }")
    path = tmp_path / "a.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-fno-builtin", tmp_path / "a.c", "-o", path, "-lm"], check=True)
    library = read_library(path)
    assert library is not None
    assert {"wanted", "sin"} <= library.undefined and "made" in library.defined
    assert "made" not in library.undefined and "libm.so.6" in library.needed and ".dynsym" in library.sections
    lines = subprocess.run(["readelf", "-W", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
    said = {line.split()[7].split("@")[0] for line in lines.splitlines() if " UND " in line and len(line.split()) > 7}
    assert library.undefined == said


# ---- where a null GPU cannot be had, one sentence says why, and a hint what to do


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


@pytest.mark.skipif(sys.platform != "linux", reason="says that it is not Linux")
@pytest.mark.parametrize(("version", "is_refused"), [("2.7.1+cu126", True), ("2.8.0", True), ("2.9.1+cu128", False)])
def test_a_torch_that_is_too_old(tmp_path: Path, version: str, is_refused: bool) -> None:
    folder = installed(tmp_path, version=version)
    if not is_refused:
        assert read_torch(folder).version == version
        return
    with pytest.raises(NullGpuError, match=re.escape(f"needs torch 2.9 or newer, and this is {version}")):
        read_torch(folder)


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


@pytest.mark.skipif(sys.platform != "linux", reason="says that it is not Linux")
def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(build, "find_toolchain", lambda torch: None)
    with pytest.raises(NullGpuError, match=r"cannot be written to .*Not a directory") as caught:
        build.library(installed(tmp_path))
    assert "XDG_CACHE_HOME" in caught.value.hint


# ---- what is said of a torch that is laid out otherwise than those that were tried


FAT_HEADER = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 512)
ENTRY = struct.pack("<HHIQIIHHI", 2, 257, 64, 400, 400, 0, 8, 1, 90)


@needs_null_gpu
def test_this_torchs_fat_binaries_are_read() -> None:
    assert other_fat_binaries(torch_folder()) is None


@pytest.mark.parametrize(
    ("begin", "is_said"),
    [
        (FAT_HEADER + ENTRY, False),
        (b"", False),
        (b"\0\0\0\0" + FAT_HEADER[4:] + ENTRY, True),
        (FAT_HEADER + ENTRY[:-4] + b"\0\0\0\0", True),
        (struct.pack("<IHHQ", 0xBA55ED50, 2, 24, 512) + ENTRY, True),
    ],
)
def test_another_layout_is_said_with_its_section(begin: bytes, is_said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.null_gpu.torch_symbols.read_section", lambda path, name, most: begin)
    problem = other_fat_binaries(Path())
    assert (problem is not None and ".nv_fatbin" in problem) == is_said


# ---- files of C call each other one way: what two of them need lies in a third one below -----------------------------


_COMMENTS = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"', re.DOTALL)
_DECLARED = re.compile(r"^(?:static inline )?[a-z][\w ]*?[ *](\w+)\([^;{]*\)[^;{]*;", re.MULTILINE)


def test_no_file_of_c_is_called_by_one_that_it_calls() -> None:
    texts = {path.name: _COMMENTS.sub("", path.read_text("utf-8")) for path in SOURCES.glob("*.c")}
    shared = {
        name for path in SOURCES.glob("*.h") for name in _DECLARED.findall(_COMMENTS.sub("", path.read_text("utf-8")))
    }
    home = {
        name: file
        for name in shared
        for file, text in texts.items()
        if re.search(rf"^\w[^;=]*?\b{name}\([^;]*?\) {{", text, re.M)
    }
    assert len(home) > 50 and home["node_hold"] == "node.c"
    calls = {
        file: {home[name] for name in re.findall(r"\b(\w+)\(", text) if name in home} - {file}
        for file, text in texts.items()
    }
    assert find_cycle(calls) is None
