"""The process that has loaded torch: its card, allocator, history, profiler and copies of CUDA's libraries."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from tracer.capture.device import devices
from tracer.capture.torch_private import torch_history, torch_profiler
from tracer.errors import RecordingError
from tracer.null_gpu.build import NAME
from tracer.null_gpu.cards import named_card
from tracer.null_gpu.cudnn import FOLDER_VARIABLE
from tracer.null_gpu.process import is_active
from tracer.results.doctor import Outcome, failed, passed, skipped
from tracer.sessions.doctor.installed import SUPPORTED_TORCH, TRY_NULL_GPU, torch_pins
from tracer.units import format_bytes

_FAMILIES = ("cudart", "cublas", "cublasLt", "cudnn", "cufft", "cusolver", "cusparse", "nccl", "nvrtc", "cupti")
_LIBRARY = re.compile(rf"lib({'|'.join(_FAMILIES)})(?:\.so|-[0-9a-f]+\.so)")
INJECTION_VARIABLES = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
"""Variables by which another profiler, such as Nsight Systems, loads itself into a process that uses CUDA."""
_LEAST_FREE_PART = 0.5
_SAME_MEMORY = 0.03
"""By how much a card's memory may differ from the table's: drivers and ECC keep more or less."""


def torch_parts(device: torch.device) -> Outcome:
    """Has torch the private parts that reading a recording needs?"""
    try:
        torch_profiler.check_event_types()
    except RecordingError as error:
        return failed(str(error), SUPPORTED_TORCH)
    lacking = devices.lacks(device, has_history=torch_history.has_allocator_history(device), has_kernels=True)
    if lacking is not None:
        return failed(lacking, TRY_NULL_GPU)
    return passed("torch has the event types, history and counters that are read.")


def card(device: torch.device) -> Outcome:
    """Is the device one that this torch has code for, and is most of its memory free?"""
    if not devices.is_accelerator(device):
        return skipped("torch sees no GPU here: all is checked on the CPU.", TRY_NULL_GPU)
    name, memory = devices.device_name(device), devices.device_memory(device)
    if memory is None:
        return skipped(f"{name or device} does not say how much memory it has.")
    free, total = memory
    facts: dict[str, int | str | None] = {"name": name, "memory": total, "free": free}
    facts["devices"] = devices.num_devices(device)
    known = named_card(name)
    if hasattr(devices.module_of(device), "get_arch_list"):
        capability = torch.cuda.get_device_capability(device)
        facts["capability"] = ".".join(map(str, capability))
        if not _has_code_for(capability):
            return failed(
                f"{name} has compute capability {facts['capability']}, and this torch has code for "
                f"{', '.join(torch.cuda.get_arch_list())}.",
                "install torch's build for CUDA 12.6, or for a newer card a newer one (pytorch.org, Get Started)",
                **facts,
            )
    words = f"{name}, {format_bytes(total)}"
    if free < _LEAST_FREE_PART * total:
        return failed(
            f"{words}: only {format_bytes(free)} are free, so that other processes' memory is in every figure.",
            "nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
            **facts,
        )
    if known is None:
        slice_ = " It is a MIG slice, and sizes follow the whole card." if "MIG" in name else ""
        return passed(f"{words}; it is not in the table of cards, so that --on needs a size.{slice_}", **facts)
    if abs(known.memory_bytes / total - 1) > _SAME_MEMORY:
        difference = (
            f"the table has {format_bytes(known.memory_bytes)}; write --on {known.label}:{total / 2**30:.2f}GiB"
        )
        return passed(f"{words}; {difference}.", **facts)
    return passed(f"{words}, as in the table of cards.", **facts)


def _has_code_for(capability: tuple[int, int]) -> bool:
    """Whether the kernels of this torch run there: the same major number and no newer, or PTX that can be compiled."""
    built = torch.cuda.get_arch_list()
    if not built:  # torch's own list is empty without a device
        return True
    for name in built:
        if (match := re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", name)) is not None:
            of = int(match[2]), int(match[3])
            if of <= capability and (match[1] == "compute" or of[0] == capability[0]):
                return True
    return False


def allocator(device: torch.device) -> Outcome:
    """Is torch's own caching allocator in place, which alone can be recorded?"""
    if not devices.is_accelerator(device):
        return passed("The CPU's allocations are seen by torch.profiler.")
    try:
        torch_history.allocator_history_enabled(device)
    except RecordingError as error:
        return failed(str(error), "unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF")
    if (allowed := devices.allowed_bytes(device)) is not None:
        sentence = f"A memory fraction leaves this process {format_bytes(allowed)}; every figure keeps to it."
        return passed(sentence, allowed=allowed)
    return passed("torch's own caching allocator is in place.")


def history(device: torch.device) -> Outcome:
    """Is the allocator's history off, so that a run can switch it on?"""
    if not torch_history.has_allocator_history(device):
        return skipped(
            f"The {device.type.upper()} has no allocator history; torch.profiler has its allocations.", TRY_NULL_GPU
        )
    try:
        is_on = torch_history.allocator_history_enabled(device)
    except RecordingError as error:
        return skipped(str(error), "unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF")
    if is_on:
        return failed(
            "The allocator's history is on already: what Python loads at its start, such as sitecustomize, has "
            "switched it on, and its length and stacks decide what can be explained.",
            'python -c "import torch; torch.cuda.memory._record_memory_history(None)"  # put it there',
        )
    return passed("The allocator's history is off until a run switches it on.")


def profiler(device: torch.device) -> Outcome:
    """Is torch's profiler free, and no other profiler of CUDA loaded?"""
    if torch_profiler.is_recorded_by_profiler():
        return failed(
            "Another torch.profiler is recording in this process, and only one can.",
            "python -X importtime -c pass 2>&1 | grep custom  # the module that starts it when Python starts",
        )
    found = [name for name in INJECTION_VARIABLES if os.environ.get(name)]
    if found:
        return failed(
            f"Another profiler of CUDA is loaded into this process ({', '.join(found)}); CUPTI serves one.",
            f"unset {' '.join(found)}  # or run without nsys and ncu",
        )
    return passed("torch.profiler is free.")


def cuda_copies(device: torch.device) -> Outcome:
    """Is each of CUDA's libraries loaded once?"""
    paths = loaded_libraries(_maps())
    if not paths:
        return skipped("None of CUDA's libraries are loaded.", TRY_NULL_GPU)
    for family, copies in paths.items():
        if len(copies) > 1:
            names = " and ".join(copies)
            return failed(f"lib{family} is loaded in {len(copies)} copies: {names}.", _mend_copies(copies))
    return passed(f"{len(paths)} of CUDA's libraries are loaded, each in one copy.", families=sorted(paths))


def _mend_copies(copies: list[str]) -> str:
    search = [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    if any(Path(copy).is_relative_to(entry) for copy in copies for entry in search):
        return "unset LD_LIBRARY_PATH"
    outside = [copy for copy in copies if "site-packages/nvidia" not in copy and "dist-packages/nvidia" not in copy]
    owner = re.search(r"(?:site|dist)-packages/(\w+)", " ".join(outside))
    return f"pip uninstall {owner[1].removesuffix('_libs')}" if owner else "pip install --force-reinstall torch"


def loaded_libraries(maps: str) -> dict[str, list[str]]:
    """Return paths of CUDA's libraries in the text of /proc/self/maps, by family: `cudart`: [`/.../libcudart.so.13`].

    Those of the null GPU are left out: they stand in front of CUDA's, of which torch loads some all the same.
    """
    lines = (line.partition("/") for line in maps.splitlines())
    paths = dict.fromkeys(Path(f"/{rest}".removesuffix(" (deleted)")) for _, slash, rest in lines if slash)
    null_gpu = {path.parent for path in paths if path.name == NAME}
    found: dict[str, list[str]] = {}
    for path in paths:
        if (match := _LIBRARY.match(path.name)) is not None and path.parent not in null_gpu:
            found.setdefault(match[1], []).append(str(path))
    return found


def _maps() -> str:
    try:
        return Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return ""


def cudnn(device: torch.device) -> Outcome:
    """Is the cuDNN that is loaded the one that torch was built with?"""
    if not torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
        return skipped("This torch has no cuDNN.", TRY_NULL_GPU)
    if is_active() and os.environ.get(FOLDER_VARIABLE):
        return skipped(f"{FOLDER_VARIABLE} names another cuDNN for the null GPU.", f"unset {FOLDER_VARIABLE}")
    try:
        loaded = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    except RuntimeError as error:  # torch compares its own version with the library's
        return failed(f"The cuDNN that is loaded is a wrong one: {str(error).splitlines()[0]}", _wanted_cudnn()[1])
    wanted, mend = _wanted_cudnn()
    facts = {"loaded": loaded, "wanted": wanted, "files": loaded_libraries(_maps()).get("cudnn", [])}
    if wanted and loaded != wanted:
        return failed(
            f"cuDNN {_dotted(loaded or 0)} is loaded, and torch was built with {_dotted(wanted)}: the algorithms that "
            "it chooses, and their workspaces, are others.",
            mend,
            **facts,
        )
    return passed(f"cuDNN {_dotted(loaded or 0)}, the one that torch was built with.", **facts)


def _wanted_cudnn() -> tuple[int, str]:
    """The number of the cuDNN that torch pins, 91900 for 9.19.0 and 0 for unknown, and the command that installs it."""
    for name, version in torch_pins().items():
        if name.startswith("nvidia-cudnn-cu"):
            major, minor, patch = map(int, version.split(".")[:3])
            mend = f"pip install {name}=={version}"
            mend = f"unset LD_LIBRARY_PATH  &&  {mend}" if os.environ.get("LD_LIBRARY_PATH") else mend
            return major * 10_000 + minor * 100 + patch, mend
    return 0, "pip install --force-reinstall torch"


def _dotted(number: int) -> str:
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
