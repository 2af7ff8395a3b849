"""What is read of NVIDIA's headers, and what a function that nobody wrote answers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tracer.null_gpu.torch_symbols import read_library, read_prototypes, stub_source

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
