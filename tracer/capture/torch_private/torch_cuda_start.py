"""The moment at which torch begins to use CUDA, and a process that was forked just before it."""

from __future__ import annotations

from collections.abc import Callable

import torch


def before_cuda_begins(act: Callable[[], object]) -> Callable[[], None]:
    """Have something called right before torch initializes CUDA in this process.

    Args:
        act: Called once at most.

    Returns:
        What ends that; more than once does no harm.
    """
    begin = torch._C._cuda_init

    def end() -> None:
        torch._C._cuda_init = begin

    def begin_later() -> None:
        end()
        act()
        begin()

    torch._C._cuda_init = begin_later
    return end


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
