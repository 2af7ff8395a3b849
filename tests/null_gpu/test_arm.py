"""The null GPU of a 64-bit ARM processor: built by a cross compiler, its calls run under an emulator, without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.null_gpu.started import needs_null_gpu
from tracer.null_gpu import build
from tracer.null_gpu.build import find_toolchain, read_torch, torch_folder
from tracer.null_gpu.cards import H100
from tracer.null_gpu.process import environment

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
pytestmark = [
    needs_null_gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR) and LIBRARIES.is_dir()),
        reason="needs Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user",
    ),
]
PROGRAM = r"""
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
uint64_t null_gpu_used_bytes(int device), null_gpu_launches(void);
int main(void) {
  struct cudaDeviceProp properties;
  char host[4096], back[4096] = {0};
  void *block, *large;
  int count;
  cudaGetDeviceCount(&count);
  cudaGetDeviceProperties(&properties, 0);
  printf("%d %s %zu\n", count, properties.name, properties.totalGlobalMem);
  cudaMalloc(&block, 3 << 20);
  printf("%llu\n", (unsigned long long)null_gpu_used_bytes(0));
  memset(host, 7, sizeof host);
  cudaMemcpy(block, host, sizeof host, cudaMemcpyHostToDevice);
  cudaMemcpy(back, block, sizeof back, cudaMemcpyDeviceToHost);
  printf("%d %d\n", memcmp(host, back, sizeof host), cudaMalloc(&large, (size_t)90 << 30));
  cudaLaunchKernel((void *)main, (dim3){1, 1, 1}, (dim3){32, 1, 1}, NULL, 0, NULL);
  cudaFree(block);
  printf("%llu %llu %zu\n", (unsigned long long)null_gpu_launches(), (unsigned long long)null_gpu_used_bytes(0),
         sizeof properties);
}
"""


def compiled(compiler: str, folder: Path, includes: list[str]) -> Path:
    """Build the program beside the libraries of a folder."""
    source, program = folder / "program.c", folder / "program"
    source.write_text(PROGRAM)
    linked = [f"-L{folder}", f"-l:{build.NAME}", f"-Wl,-rpath,{folder}"]
    subprocess.run([compiler, *includes, source, "-o", program, *linked], check=True, capture_output=True)
    return program


def test_it_is_built_and_answers_as_on_x86(tmp_path: Path) -> None:
    torch = read_torch(torch_folder())
    toolchain = replace(find_toolchain(torch), compiler=COMPILER)
    build._build(torch, toolchain, tmp_path)
    program = compiled(COMPILER, tmp_path, build._includes(toolchain))
    variables = environment([H100])
    variables.pop("LD_PRELOAD")  # of this processor
    ended = subprocess.run(
        [EMULATOR, "-L", LIBRARIES, program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    first, used, copied, last = ended.stdout.splitlines()
    assert first == f"1 {H100.name} {H100.memory_bytes}"
    assert (used, copied) == (str(4 << 20), "0 2")  # in 2 MiB; the same bytes, and out of memory
    assert last.split()[:2] == ["1", "0"]
