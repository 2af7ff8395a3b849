"""Programs that share a null GPU: `python node_programs.py NAME ...`. Those but the last need nothing of torch."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Any

from tracer.capture.device.processes import processes_on
from tracer.null_gpu import process

GIB = 1 << 30
HERE = [sys.executable, __file__]


def free_bytes() -> int:
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert ctypes.CDLL(None).cudaMemGetInfo(ctypes.byref(left), ctypes.byref(total)) == 0
    return left.value


def take(size_bytes: int) -> int:
    """Allocate; the address, or 0 where there is no room."""
    pointer = ctypes.c_void_p()
    status = ctypes.CDLL(None).cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
    assert (status == 2) == (not pointer.value)  # cudaErrorMemoryAllocation
    return pointer.value or 0


def hold(size_bytes: int) -> subprocess.Popen[str]:
    """A process that holds so much until it is killed."""
    child = subprocess.Popen(
        [*HERE, "holder", str(size_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().split() == ["held"]
    return child


def kill(*children: subprocess.Popen[str]) -> None:
    for child in children:
        child.kill()
    for child in children:
        child.communicate()


def holder(size_bytes: str) -> None:
    print("held" if take(int(size_bytes)) else "full", flush=True)
    sys.stdin.read()


def together() -> None:
    """Another process's bytes and its context are gone from what is left, and what does not fit beside them fails."""
    context = int(os.environ["NULL_GPU_MEMORY"]) - int(os.environ["NULL_GPU_USABLE_MEMORY"])
    alone = free_bytes()
    other = hold(45 * GIB)
    assert free_bytes() == alone - 45 * GIB - context
    assert not take(45 * GIB) and take(20 * GIB)
    assert free_bytes() == alone - 65 * GIB - context
    third = subprocess.run([*HERE, "holder", str(20 * GIB)], input="", capture_output=True, text=True, check=True)
    assert third.stdout.split() == ["full"]
    peak = ctypes.CDLL(None).null_gpu_peak_bytes
    peak.restype = ctypes.c_uint64
    assert ctypes.CDLL(None).null_gpu_other_processes() == 2
    assert peak(0) == 65 * GIB + 3 * context  # the third has one as well
    kill(other)
    assert free_bytes() == alone - 20 * GIB and take(45 * GIB)


def kills(number: str) -> None:
    """Of processes that are killed nothing is counted, five at a time."""
    alone = free_bytes()
    for _ in range(int(number) // 5):
        kill(*[hold(10 * GIB) for _ in range(5)])
    assert free_bytes() == alone and take(78 * GIB)


def forks() -> None:
    """A fork of a process that has taken memory is a trial: it takes nothing of its parent, which goes on."""
    held = ctypes.CDLL(None).null_gpu_held_bytes
    held.restype = ctypes.c_uint64
    assert take(45 * GIB)
    before, held_before = free_bytes(), held(0)
    if (child := os.fork()) == 0:
        pointer = take(30 * GIB)
        ctypes.CDLL(None).cudaFree(ctypes.c_void_p(pointer))
        os._exit(not pointer or held(0) != held_before)
    assert os.waitpid(child, 0)[1] == 0
    assert free_bytes() == before and take(30 * GIB)


def tensors() -> None:
    """A tensor that is given to another process is counted once, and has its values there."""
    import torch
    import torch.multiprocessing as multiprocessing

    multiprocessing.set_start_method("spawn")
    given: Any = multiprocessing.Queue()
    back: Any = multiprocessing.Queue()
    child = multiprocessing.Process(target=_receive, args=(given, back))
    child.start()
    large, small = torch.empty(10 * GIB, dtype=torch.uint8, device="cuda"), torch.tensor([1, 2, 3], device="cuda")
    given.put(large)
    assert back.get() == (10 * GIB, 0)
    given.put(small)
    assert back.get() == [1, 2, 3]
    left, total = torch.cuda.mem_get_info()
    context = int(os.environ["NULL_GPU_MEMORY"]) - int(os.environ["NULL_GPU_USABLE_MEMORY"])
    assert total - left == torch.cuda.memory_reserved() + 2 * context
    given.put(None)
    child.join()
    assert child.exitcode == 0 and torch.cuda.mem_get_info()[0] == left + context


def _receive(given: Any, back: Any) -> None:
    import torch

    tensor = given.get()
    back.put((tensor.numel(), torch.cuda.memory_reserved()))
    back.put(given.get().tolist())
    given.get()


def fullest() -> None:
    """Who held the card when all together held the most: 4 GiB in a phase of their own, and 8 of another process."""
    context = int(os.environ["NULL_GPU_MEMORY"]) - int(os.environ["NULL_GPU_USABLE_MEMORY"])
    process.set_phase("train")
    assert take(4 * GIB)
    other = hold(8 * GIB)
    process.set_phase("evaluate")
    kill(other)
    assert take(GIB)
    held = {who: rest for who, *rest in process.peak_holders(0)}
    assert held == {other.pid: [8 * GIB + context, ""], os.getpid(): [4 * GIB + context, "train"]}, held


def listed() -> None:
    """NVML lists both processes of a card by CUDA's name of it; of another name it lists none."""
    context = int(os.environ["NULL_GPU_MEMORY"]) - int(os.environ["NULL_GPU_USABLE_MEMORY"])
    assert take(GIB)
    other = hold(2 * GIB)
    uuid = "6e756c6c-2d67-7075-2d64-657669636530"
    found = {number: (name, size - context) for number, name, size in processes_on(uuid)}
    assert found == {os.getpid(): (sys.executable, GIB), other.pid: (sys.executable, 2 * GIB)}, found
    assert processes_on("another") == []
    kill(other)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
