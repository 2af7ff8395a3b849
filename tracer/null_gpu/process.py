"""Run a process on the null GPU: its environment, a restart with it, the libraries before torch, its memory.

For people who look into it, beside the card's variables below:

    NULL_GPU_LOG              1 prints each allocation of the device's, 2 each launch by its name, 3 each copy
    NULL_GPU_READS=real       shows the bytes that are there; else a read gives back what the host wrote
    NULL_GPU_HOST_TENSORS=real  fills large tensors of the host at once; else where they are read
    NULL_GPU_COPY_LIMIT       bytes of one copy from the host that are kept as values, 1 MiB
    NULL_GPU_KERNELS=1        gives torch's profiler kernels, each with the same made-up duration
    NULL_GPU_TAKES            bytes taken where cublas, cudnn, cufft, cusolver, nccl, a module, a graph or a kernel (at
                              its first launch) begins: cudnn=512;kernel=64
    NULL_GPU_CUDNN_WORKSPACE  bytes of each plan of cuDNN; nobody is asked then
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.command_line import replace_process
from tracer.errors import NullGpuError
from tracer.null_gpu.cards import MAX_DEVICES, Card
from tracer.units import GIB, format_bytes

if TYPE_CHECKING:
    import torch

_NODE = "NULL_GPU_NODE"
SAMPLER_VARIABLE = "VLLM_USE_FLASHINFER_SAMPLER"
LEFT_OUT_VARIABLE = "NULL_GPU_LEFT_OUT_SAMPLER"
"""Set if the null GPU, not the user, has set SAMPLER_VARIABLE to 0."""
_PHASE_BYTES = 64  # PHASE in sources/node.c
# Python, torch and its libraries, threads' stacks.
_OF_THE_PROGRAM_BYTES = 24 * GIB

_VARIABLES: dict[str, Callable[[Card], str]] = {
    "NULL_GPU_NAME": lambda card: card.name,
    "NULL_GPU_MEMORY": lambda card: str(card.memory_bytes),
    "NULL_GPU_USABLE_MEMORY": lambda card: str(max(1, card.usable_bytes)),  # 0 would be all of it
    "NULL_GPU_CAPABILITY": lambda card: "{}.{}".format(*card.capability),
    "NULL_GPU_SMS": lambda card: str(card.num_sms),
    "NULL_GPU_L2": lambda card: str(card.l2_bytes),
    "NULL_GPU_SHARED_MEMORY": lambda card: str(card.shared_memory_bytes),
    "NULL_GPU_SHARED_MEMORY_PER_SM": lambda card: str(card.shared_memory_per_sm_bytes),
    "NULL_GPU_THREADS_PER_SM": lambda card: str(card.threads_per_sm),
}


def is_active() -> bool:
    """Return True if this process runs on the null GPU."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "null_gpu_launches")


def shared_bytes() -> int:
    """The most memory that this process, on the null GPU, has given other processes handles for at once.

    Symmetric memory is made so, which torch's allocator does not count.
    """
    count = ctypes.CDLL(None).null_gpu_shared_bytes
    count.restype = ctypes.c_size_t
    return int(count())


def index_on_node(device: int) -> int:
    """The number on the node of a device that this process, on the null GPU, sees; -1 where there is none."""
    return int(ctypes.CDLL(None).null_gpu_index_on_node(device))


def name_on_node(device: int) -> str:
    """Return that number as text; empty where this process is not on the null GPU."""
    return str(index_on_node(device)) if is_active() else ""


def num_other_processes() -> int:
    """Return the number of processes that this one started and that use a null GPU so far; 0 where it has none."""
    return int(ctypes.CDLL(None).null_gpu_other_processes()) if is_active() else 0


def held_bytes(device: torch.device) -> int:
    """Bytes that this process holds of a null GPU now, CUDA's context included."""
    library = ctypes.CDLL(None)
    library.null_gpu_held_bytes.restype = ctypes.c_uint64
    return int(library.null_gpu_held_bytes(device.index))


def set_phase(name: str) -> None:
    """Have it known in which phase this process, on the null GPU, is from now on."""
    ctypes.CDLL(None).null_gpu_set_phase(name.encode())


def peak_holders(device: int) -> Iterator[tuple[int, int, str]]:
    """Yield the processes of the run that held memory of a device when all together held the most.

    Yields:
        The process, the bytes that it held, and its phase then; empty where it was in none.
    """
    if not is_active():
        return
    size_bytes, phase = ctypes.c_uint64(), ctypes.create_string_buffer(_PHASE_BYTES)
    ask, number = ctypes.CDLL(None).null_gpu_peak_holder, 0
    while process := ask(device, number, ctypes.byref(size_bytes), phase):
        yield process, size_bytes.value, phase.value.decode(errors="replace")
        number += 1


def taken_bytes() -> dict[int, int]:
    """The most that was taken at once of each GPU by this process, on the null GPU, and those that it started.

    CUDA's contexts are included. A GPU is listed where this process has a context on it, or a process took memory.
    """
    library = ctypes.CDLL(None)
    library.null_gpu_peak_bytes.restype = ctypes.c_uint64
    indices = {device: index_on_node(device) for device in range(MAX_DEVICES)}
    return {
        index: int(library.null_gpu_peak_bytes(device))
        for device, index in indices.items()
        if index >= 0 and library.null_gpu_peak_bytes(device)
    }


def environment(
    cards: Sequence[Card], base: Mapping[str, str] | None = None, *, taken: Mapping[int, int] | None = None
) -> dict[str, str]:
    """Variables of a process that runs on the null GPU.

    Args:
        taken: [B] By index of a device, the memory that other processes take of it.

    Raises:
        NullGpuError: The null GPU cannot be built here.
    """
    from tracer.null_gpu.build import INDUCTOR, TRITON, VLLM, libraries, library, torch_folder

    # An allocation that finds no address space would look like a card that is full.
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed = sum(card.memory_bytes for card in cards)
    if limit != resource.RLIM_INFINITY and limit < needed + _OF_THE_PROGRAM_BYTES:
        raise NullGpuError(
            f"This process may use {format_bytes(limit)} of address space, and the null GPU's memory alone is "
            f"{format_bytes(needed)} of it.",
            hint="Run `ulimit -v unlimited` before.",
        )
    variables = dict(os.environ if base is None else base)
    path = library(torch_folder())
    variables.update(_of_cards(cards))
    variables[_NODE] = ""  # whose processes count their memory together: those of this one alone
    variables["NULL_GPU_TAKEN"] = ";".join(str((taken or {}).get(device, 0)) for device in range(len(cards)))
    variables["LD_PRELOAD"] = ":".join([*map(str, libraries(path)), *_others(variables.get("LD_PRELOAD", ""), path)])
    variables["PATH"] = os.pathsep.join([str(path.parent / "bin"), variables.get("PATH", os.defpath)])
    variables["TRITON_LIBCUDA_PATH"] = str(path.parent)
    # What a compiler measured on a device that computes nothing is noise: it stays out of real devices' caches.
    variables.setdefault("TORCHINDUCTOR_CACHE_DIR", str(path.parent.parent / INDUCTOR))
    variables.setdefault("TRITON_CACHE_DIR", str(path.parent.parent / TRITON))
    variables.setdefault("VLLM_CACHE_ROOT", str(path.parent.parent / VLLM))
    variables.setdefault("VLLM_NO_USAGE_STATS", "1")  # a run that computes nothing is no use of it
    if SAMPLER_VARIABLE not in variables:  # which nvcc compiles when it is first called
        variables |= {SAMPLER_VARIABLE: "0", LEFT_OUT_VARIABLE: "1"}
    return variables


def _of_cards(cards: Sequence[Card]) -> dict[str, str]:
    from tracer.null_gpu.cudnn import answers_command, device_properties

    if not cards:
        raise NullGpuError("A null GPU needs at least one card.")
    if len(cards) > MAX_DEVICES:
        raise NullGpuError(f"A process sees {MAX_DEVICES} null GPUs at most, and {len(cards)} are asked for.")
    return {name: ";".join(value(card) for card in cards) for name, value in _VARIABLES.items()} | {
        "NULL_GPU_CUDNN_DEVICE": ";".join(json.dumps(device_properties(card)) for card in cards),
        "NULL_GPU_COUNT": str(len(cards)),
        "NULL_GPU_CUDNN": "\n".join(answers_command()),
    }


def _others(preloaded: str, path: Path) -> list[str]:
    return [entry for entry in preloaded.replace(" ", ":").split(":") if entry and Path(entry).parent != path.parent]


def restart_on(cards: Sequence[Card]) -> None:
    """Start the running command again on the null GPU, with its arguments; nothing if it is there already.

    Raises:
        NullGpuError: The null GPU cannot be built here.
    """
    if is_active():
        return
    replace_process(environment(cards))


def load(cards: Sequence[Card]) -> None:
    """Load the null GPU into this process, and set the variables for those that it starts.

    Raises:
        NullGpuError: torch has been imported already, or the null GPU cannot be built here.
    """
    from tracer.null_gpu.build import libraries, library, torch_folder

    if is_active():
        return
    if "torch" in sys.modules:
        raise NullGpuError(
            "The null GPU must be loaded before torch, and torch has been imported already.",
            hint="Call it first, or start the command with --on.",
        )
    os.environ.update(environment(cards))
    for path in libraries(library(torch_folder())):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    node = ctypes.CDLL(None).null_gpu_node
    node.restype = ctypes.c_char_p
    os.environ[_NODE] = node().decode()


WITHOUT_END_BYTES = 4096 * GIB


@contextmanager
def limited_to(limit_bytes: int, num_devices: int) -> Iterator[None]:
    """Memory runs out there meanwhile; what the card says of itself stays. What was before holds again at the end.

    Args:
        limit_bytes: Memory of each device; `WITHOUT_END_BYTES` to see what a program needs.
    """
    limit = ctypes.CDLL(None).null_gpu_limit_bytes
    limit.argtypes, limit.restype = (ctypes.c_int, ctypes.c_size_t), ctypes.c_size_t
    before = [limit(device, limit_bytes) for device in range(num_devices)]
    try:
        yield
    finally:
        for device, before_bytes in enumerate(before):
            limit(device, before_bytes)
