"""The begin of torch's use of CUDA, also in a forked process; cuBLAS's workspaces, and the allocator's peaks."""

from __future__ import annotations

import mmap
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from tracer.loaded_modules import before_next_call
from tracer.units import KIB, MIB


def before_cuda_begins(act: Callable[[], object]) -> Callable[[], None]:
    """Have something called once, right before torch initializes CUDA in this process; what is returned ends that."""
    return before_next_call(torch._C, ("_cuda_init",), act)


def when_cuda_has_begun(act: Callable[[], None]) -> None:
    """Call something now, or where CUDA has not begun yet, right after it has; also from within `before_cuda_begins`.

    `torch.cuda._lazy_call` would wait there for the lock that is held while CUDA begins.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        act()
    else:
        torch.cuda._queued_calls.append((act, traceback.format_stack()))


def can_begin_in_fork() -> None:
    """Let torch use CUDA in this forked process although its parent asked for the number of GPUs.

    A driver would refuse. The null GPU has none, so that nothing of the parent's is left behind in it.

    torch makes its pool of threads anew at the first use in a fork, which is that of autograd's threads, one for each
    GPU: where two come at once, one finds none and ends the process ("Invalid thread pool!", ParallelOpenMP.cpp). So
    it is used here, by the one thread that there is.
    """
    torch.cuda._is_in_bad_fork = lambda: False
    torch.set_num_threads(torch.get_num_threads())


def set_allocator_settings(text: str) -> None:
    """Set what PYTORCH_CUDA_ALLOC_CONF says, where torch may have read it before it changed."""
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        torch._C._accelerator_setAllocatorSettings(text)
    else:
        torch.cuda.memory._set_allocator_settings(text)


TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
# Since when cards after Hopper are given as much as Hopper.
_AS_MUCH_AS_HOPPER = (2, 12)
_ONE_FOR_EACH_CALL = (2, 15)


def are_workspaces_kept() -> bool:
    """True if torch keeps a workspace for each handle and stream; from 2.15 on, each call has its own by default."""
    return TORCH < _ONE_FOR_EACH_CALL or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def workspace_bytes(capability: tuple[int, int]) -> int:
    """Bytes of cuBLAS's workspace on a card: CUBLAS_WORKSPACE_CONFIG's pairs of KiB and number, or torch's choice.

    Source:
        aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize; seen on the null GPU with 2.11 to 2.15.
    """
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(size_kib) * int(count) * KIB for size_kib, count in pairs)
    is_large = capability >= (9, 0) if TORCH >= _AS_MUCH_AS_HOPPER else capability == (9, 0)
    return 32 * MIB if is_large else 4096 * KIB * 2 + 16 * KIB * 8


def workspace_sizes(device: torch.device) -> set[int]:
    """Bytes of a workspace of cuBLAS's and of one of cublasLt's: torch tells them since 2.13."""
    names = ("_cuda_getCublasWorkspaceSize", "_cuda_getCublasLtWorkspaceSize")
    if all(hasattr(torch._C, name) for name in names):
        return {int(getattr(torch._C, name)()) for name in names} - {0}
    lt_kib = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    lt_bytes = int(lt_kib) * KIB if lt_kib.isdecimal() else MIB
    return {workspace_bytes(torch.cuda.get_device_capability(device)), lt_bytes} - {0}


_Peaks = dict[tuple[str, str], int]
"""By name of a counter and pool, such as `allocated_bytes` and `all`; the pool is empty where it has none."""
_PEAK: Final = "peak"
_READERS: Final = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETTERS: Final = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class PeakCounters:
    """Resets the peak counters at moments of its own, which the program does not notice.

    torch has one set of them. From `follow` on, the functions of torch that read them return the larger of the counter
    and its peak before each reset here; a reset by the program is one for both.
    """

    def __init__(self) -> None:
        self._of_program: dict[int, _Peaks] = {}
        self._own: dict[int, _Peaks] = {}
        self._original: dict[str, Callable[..., Any]] = {}

    def follow(self) -> None:
        """Notice resets by the program from now on, also before CUDA begins."""
        if not self._original:
            names = [name for name in (*_READERS, *_RESETTERS) if hasattr(torch._C, name)]
            self._original = {name: getattr(torch._C, name) for name in names}
            for name, function in self._original.items():
                own = self._read_by_program if name in _READERS else self._reset_by_program
                setattr(torch._C, name, partial(own, function))

    def reset(self, device: int) -> None:
        """Begin a new stretch for `peak_bytes`."""
        self.follow()
        _raise_to(self._of_program.setdefault(device, {}), self._peaks(device))
        self._own.pop(device, None)
        self._original[_RESETTERS[0]](device)

    def peak_bytes(self, device: int, counter: str) -> int:
        """Return the peak of a counter, such as `allocated_bytes`, since the last `reset`, or since the beginning."""
        if not self._original:
            return int(torch._C._cuda_memoryStats(device)[counter]["all"][_PEAK])
        key = (counter, "all")
        return max(self._peaks(device).get(key, 0), self._own.get(device, {}).get(key, 0))

    def _peaks(self, device: int) -> _Peaks:
        return {key: counter[_PEAK] for key, counter in _counters(self._original[_READERS[0]](device))}

    def _read_by_program(self, read: Callable[[int], Any], device: int) -> Any:
        stats, before = read(device), self._of_program.get(device, {})
        for key, counter in _counters(stats):
            counter[_PEAK] = max(counter[_PEAK], before.get(key, 0))
        return stats

    def _reset_by_program(self, reset: Callable[[int], Any], device: int) -> Any:
        _raise_to(self._own.setdefault(device, {}), self._peaks(device))
        self._of_program.pop(device, None)
        return reset(device)


def _counters(stats: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], dict[str, int]]]:
    """Yield the counters that have a peak: most are of three pools, some, as `oversize_segments`, of none.

    Those of private pools, which lie deeper, are left as they are.
    """
    for name, values in stats.items():
        pools = values if isinstance(values, Mapping) and _PEAK not in values else {"": values}
        for pool, counter in pools.items():
            if isinstance(counter, Mapping) and _PEAK in counter:
                yield (name, pool), counter  # type: ignore[misc]


def _raise_to(kept: _Peaks, peaks: _Peaks) -> None:
    for key, peak in peaks.items():
        kept[key] = max(peak, kept.get(key, 0))


PEAKS: Final = PeakCounters()
"""This process's counters; it has one set."""


_TORCHS_CUDA: Final = b"libc10_cuda.so"


def extensions_on_cuda() -> tuple[str, ...]:
    """Names of loaded extension modules that link torch's CUDA library, such as those of flash-attn.

    Their functions may launch kernels that no operator of torch names.
    """
    files = {name: vars(module).get("__file__") for name, module in list(sys.modules.items()) if module is not None}
    own = str(Path(torch.__file__).parent)
    return tuple(
        name
        for name, file in files.items()
        if isinstance(file, str) and file.endswith(".so") and not file.startswith(own) and _links_cuda(Path(file))
    )


def _links_cuda(path: Path) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(_TORCHS_CUDA) >= 0
    except (OSError, ValueError):  # gone, or empty
        return False
