"""Large tensors of the host on the null GPU: unwritten until somebody reads them, and then as torch makes them."""

from __future__ import annotations

import pytest

from tests.null_gpu.started import assert_well, needs_null_gpu, programs_in, run_program

ALONE: dict[str, dict[str, str]] = {
    "memory_is_not_taken": {},
    "many_small_tensors": {},
    "threads_that_fill": {},
    "all_are_written": {"NULL_GPU_HOST_TENSORS": "real"},
    "a_destructor_when_python_ends": {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"},  # A Python of its own, which ends
}
OF_THREADS = ("processes_and_threads", "copies_of_tensors")
LONG = ("one_call_for_many_pieces", "chains_of_operations")
TOGETHER = programs_in("untouched_programs.py", but=[*ALONE, *LONG])


@needs_null_gpu
@pytest.mark.parametrize(
    ("threads", "programs"), [("1", TOGETHER), ("2", OF_THREADS), pytest.param("1", LONG, marks=pytest.mark.slow)]
)
def test_readers_find_what_torch_would_have_made(threads: str, programs: list[str]) -> None:
    pytest.importorskip("safetensors")
    ended = run_program(*programs, module="untouched_programs", variables={"OMP_NUM_THREADS": threads})
    assert_well(ended, *programs)


@needs_null_gpu
@pytest.mark.parametrize("program", ALONE)
def test_what_a_process_alone_shows(program: str) -> None:
    ended = run_program(program, module="untouched_programs", variables=ALONE[program])
    assert_well(ended, program)
    assert ended.stderr.count("reads zeros") == (program == "a_destructor_when_python_ends")
