"""Programs on the null GPU, as they would run on a card."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.null_gpu.started import assert_well, needs_null_gpu, programs_in, run_program
from tracer.null_gpu.build import torch_folder
from tracer.null_gpu.cards import H100
from tracer.null_gpu.process import environment

pytestmark = needs_null_gpu

ALONE = {
    "an_allocator_of_somebody_else": {},
    "expandable_segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "pools_of_the_driver": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "workers_of_a_loader": {},
    "children_end_well": {},
    "compiled": {},
}
TOGETHER = programs_in("programs.py", but=(*ALONE, "eight_devices", "visible_devices"))


def test_one_process_after_the_other() -> None:
    ended = run_program(*TOGETHER)
    assert_well(ended, *TOGETHER)
    assert 'cudaArrayGetInfo is not written; it answered "not supported"' in ended.stderr
    assert (
        ended.stderr.count("more than 65536 pieces of device memory were written; their values now read as zero") == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variables"), ALONE.items(), ids=ALONE)
def test_a_program(name: str, variables: dict[str, str]) -> None:
    assert_well(run_program(name, variables=variables), name)


@pytest.mark.slow
def test_several_devices() -> None:
    assert_well(run_program("eight_devices", cards=[H100] * 8), "eight_devices")
    assert_well(
        run_program("visible_devices", cards=[H100] * 8, variables={"CUDA_VISIBLE_DEVICES": "5,2"}), "visible_devices"
    )


@pytest.fixture
def static_runtime() -> Iterator[Path]:
    found = next((torch_folder().parent / "nvidia").glob("*/lib/libcudart_static.a"), None)
    if found is None:
        pytest.skip("needs libcudart_static.a, which comes with CUDA 13's wheel of the runtime")
    yield found


@pytest.mark.slow
def test_a_runtime_linked_into_a_library_is_named(static_runtime: Path, tmp_path: Path) -> None:
    source, library = tmp_path / "own.c", tmp_path / "own_runtime.so"
    source.write_text("int cudaGetDeviceCount(int *); int count(void) { int n; return cudaGetDeviceCount(&n); }\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", source, "-Wl,--exclude-libs,ALL", "-o", library, static_runtime,
         "-ldl", "-lpthread", "-lrt"], check=True
    )  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({str(library)!r}).count())"],
        env=environment([H100]), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout == "801\n"
    assert f"{library} has a copy of CUDA's runtime linked into it" in ended.stderr
