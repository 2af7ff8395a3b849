"""Finds what cuBLAS works in where no C++ frame says it: by its size, and by what happens around it."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracer.arrays import Bools
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import DeviceState
from tracer.snapshot.replay import Lives

# What torch gives cuBLAS to work in, 8.125 MiB; on Hopper and Blackwell 32 MiB, which many other blocks have too.
# Source: ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize, of which `:4096:2:16:8` is the default.
WORKSPACE_BYTES: Final = 8_519_680
LARGE_WORKSPACE_BYTES: Final = 33_554_432
# What cublasLt works in, where torch calls it for a linear layer with a bias.
# Source: ATen/cuda/CUDABlas.cpp, `_parseChosenWorkspaceSize`.
LT_WORKSPACE_BYTES: Final = 1_048_576


def brief_workspaces(state: DeviceState, lives: Lives, has_stack: Bools, in_layer: Bools) -> Bools:
    """What one call of cuBLAS made and freed again; torch before 2.15 keeps it instead [lives].

    Args:
        state: State of the device.
        lives: Its blocks.
        has_stack: The stack that made it is known [lives].
        in_layer: It was made in the forward of a layer with one weight [lives].
    """
    is_large = lives.requested_bytes == LARGE_WORKSPACE_BYTES
    after_result = has_stack & _is_after_one_of_its_stack(state, lives)
    is_allocated = lives.alloc_entry >= 0
    # The last one may be in use yet.
    is_last = is_allocated & (lives.alloc_entry == _last_made(state)) & (lives.end == len(state.trace))
    at_once = is_allocated & (lives.free_entry == lives.alloc_entry + 1)
    large = at_once & is_large
    if at_once[is_large & ~is_last].all():
        large |= is_last & is_large & large.any()
    else:
        of_product = large & (in_layer | after_result)
        large = of_product | (large & ~has_stack & of_product.any())
    is_workspace: Bools = large | ((at_once | is_last) & (lives.requested_bytes == WORKSPACE_BYTES))
    is_workspace |= at_once & in_layer & after_result & (lives.requested_bytes == LT_WORKSPACE_BYTES)
    return is_workspace


def _is_after_one_of_its_stack(state: DeviceState, lives: Lives) -> Bools:
    """Which blocks were made right after another one of the same stack, as a product's result is, but for segments."""
    allocs = state.trace.where(Action.ALLOC)
    others = np.flatnonzero(~np.isin(state.trace.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)))
    is_after = np.zeros(len(state.trace) + 1, dtype=np.bool_)
    before = others[np.maximum(np.searchsorted(others, allocs) - 1, 0)]
    is_after[allocs] = (
        (before < allocs) & (state.trace.action[before] == Action.ALLOC)
        & (state.trace.stack[before] == state.trace.stack[allocs])
    )  # fmt: skip
    return is_after[lives.alloc_entry]


def _last_made(state: DeviceState) -> int:
    """The last entry that made a block, if nothing but the free of that block was requested since; else -1."""
    action, addr = state.trace.action, state.trace.addr
    entry = int(np.flatnonzero(action == Action.ALLOC).max(initial=-1))
    if entry < 0:
        return -1
    is_free = np.isin(action[entry + 1 :], (Action.FREE_REQUESTED, Action.FREE_COMPLETED))
    return entry if (addr[entry + 1 :][is_free] == addr[entry]).all() else -1
