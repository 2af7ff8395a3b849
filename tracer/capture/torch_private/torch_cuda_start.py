"""The moment at which torch begins to use CUDA, and a process that was forked just before it."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import torch

from tracer.capture.before_call import before_next_call


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
