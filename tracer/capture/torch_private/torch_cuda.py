"""When torch begins to use CUDA, also in a forked process, and what its allocator gives to cuBLAS and cublasLt."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable

import torch

from tracer.capture.before_call import before_next_call
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
    """
    torch.cuda._is_in_bad_fork = _is_never


def set_allocator_settings(text: str) -> None:
    """Set what PYTORCH_CUDA_ALLOC_CONF says, where torch may have read it before it changed."""
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        torch._C._accelerator_setAllocatorSettings(text)
    else:
        torch.cuda.memory._set_allocator_settings(text)


def _is_never() -> bool:
    return False


_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
# Since when cards after Hopper are given as much as Hopper.
_AS_MUCH_AS_HOPPER = (2, 12)
_ONE_FOR_EACH_CALL = (2, 15)


def are_workspaces_kept() -> bool:
    """Whether torch keeps a workspace for each handle and stream; from 2.15 on each call has its own, unless told."""
    return _TORCH < _ONE_FOR_EACH_CALL or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def workspace_bytes(capability: tuple[int, int]) -> int:
    """Bytes of cuBLAS's workspace on a card: CUBLAS_WORKSPACE_CONFIG's pairs of KiB and number, or torch's choice.

    Source:
        aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize; seen on the null GPU with 2.11 to 2.15.
    """
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(size_kib) * int(count) * KIB for size_kib, count in pairs)
    is_large = capability >= (9, 0) if _TORCH >= _AS_MUCH_AS_HOPPER else capability == (9, 0)
    return 32 * MIB if is_large else 4096 * KIB * 2 + 16 * KIB * 8


def workspace_sizes(device: torch.device) -> set[int]:
    """Bytes of a workspace of cuBLAS's and of one of cublasLt's: torch tells them since 2.13."""
    names = ("_cuda_getCublasWorkspaceSize", "_cuda_getCublasLtWorkspaceSize")
    if all(hasattr(torch._C, name) for name in names):
        return {int(getattr(torch._C, name)()) for name in names} - {0}
    lt_kib = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    lt_bytes = int(lt_kib) * KIB if lt_kib.isdecimal() else MIB
    return {workspace_bytes(torch.cuda.get_device_capability(device)), lt_bytes} - {0}
