"""Finds what cuBLAS works in where no C++ frame says it: by its size, and by what happens around it."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracer.arrays import Bools, Ints
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import DeviceState
from tracer.snapshot.replay import BEFORE, Lives
from tracer.snapshot.stacks import NO_STACK

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
        has_stack: The stack that made it is known [lives].
        in_layer: It was made in the forward of a layer with one weight [lives].
    """
    is_large = lives.requested_bytes == LARGE_WORKSPACE_BYTES
    after_result = has_stack & _is_after_one_of_its_stack(state, lives)
    is_allocated = lives.alloc_entry >= 0
    # The last one may be in use yet.
    is_last = is_allocated & (lives.alloc_entry == _last_made(state)) & (lives.end == len(state.trace))
    at_once = is_allocated & (lives.free_entry == lives.alloc_entry + 1)
    large, of_lt = at_once & is_large, at_once & in_layer & after_result & (lives.requested_bytes == LT_WORKSPACE_BYTES)
    if at_once[is_large & ~is_last & ~_is_of_reduction(state, lives)].all():
        large |= is_last & is_large & large.any()
    else:
        of_product = large & (in_layer | after_result)
        large = of_product | (large & ~has_stack & (of_product | of_lt).any())
    is_workspace: Bools = large | ((at_once | is_last) & (lives.requested_bytes == WORKSPACE_BYTES)) | of_lt
    return is_workspace


def kept_workspaces(state: DeviceState, lives: Lives, has_stack: Bools, in_layer: Bools, *, has_cpp: bool) -> Bools:
    """What the first call of cuBLAS made and nothing freed, as torch before 2.15 keeps it for each thread [lives].

    One of the uncommon size needs no other proof. One of a common size is the only one of its size that its line ever
    made, right behind a product's result. In a layer that result is gone by now, or no line of a layer made two blocks
    before; elsewhere it is gone, and its line has made it again since. In backward, where there is no stack, it is the
    only one that is left.

    Args:
        has_stack: The stack that made it is known [lives].
        in_layer: It was made in the forward of a layer with one weight, which is no convolution: cuDNN keeps none
            [lives].
    """
    is_at_end = lives.end == len(state.trace)
    is_kept: Bools = is_at_end & (lives.requested_bytes == WORKSPACE_BYTES) & (~has_stack | (not has_cpp))
    if has_cpp:
        return is_kept
    is_common = np.isin(lives.requested_bytes, (LARGE_WORKSPACE_BYTES, LT_WORKSPACE_BYTES))
    after_result = has_stack & _is_after_one_of_its_stack(state, lives)
    results, num_made = _made_before(lives), _num_of_its_line(lives)
    of_layer = np.flatnonzero(in_layer & after_result)
    first = lives.stack[of_layer[np.argmin(lives.begin[of_layer])]] if len(of_layer) else NO_STACK
    once = is_at_end & is_common & after_result & (num_made == 1)
    is_kept |= once & in_layer & (~is_at_end[results] | (lives.stack == first))
    is_kept |= once & ~is_at_end[results] & (num_made[results] > 1)
    silent = is_at_end & ~has_stack & (lives.begin > BEFORE) & (lives.requested_bytes == LARGE_WORKSPACE_BYTES)
    if silent.sum() == 1 and (is_kept & (lives.requested_bytes == LARGE_WORKSPACE_BYTES)).any():
        is_kept |= silent
    return is_kept


def _is_of_reduction(state: DeviceState, lives: Lives) -> Bools:
    """Which blocks a reduction made to sum in, which is no result's size: its counters come and go meanwhile, no more.

    Source: ATen/native/cuda/Reduce.cuh, `gpu_reduce_kernel`: buffer and semaphores.
    """
    is_request = np.isin(state.trace.action, (Action.ALLOC, Action.FREE_REQUESTED))
    place = np.concatenate([[0], np.cumsum(is_request)])
    made_before, made = _made_before(lives), np.zeros(len(lives), dtype=np.bool_)
    made[made_before] = (
        (lives.alloc_entry[made_before] >= 0)
        & (place[lives.alloc_entry] == place[lives.alloc_entry[made_before]] + 1)
        & (place[lives.free_entry] == place[lives.alloc_entry] + 1)
        & (place[lives.free_entry[made_before]] == place[lives.free_entry] + 1)
        & (lives.stack == lives.stack[made_before])
        & (lives.requested_bytes < lives.requested_bytes[made_before])
    )
    return made


def _num_of_its_line(lives: Lives) -> Ints:
    """How many blocks of its size the stack of each made [lives]."""
    pairs = np.stack([lives.stack.astype(np.int64), lives.requested_bytes])
    order = np.lexsort(pairs)
    is_first = np.append(True, (np.diff(pairs[:, order]) != 0).any(axis=0))[: len(order)]
    group = np.cumsum(is_first) - 1
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.bincount(group, minlength=1)[group]
    return number


def _made_before(lives: Lives) -> Ints:
    """The block that was made before each; of the first, the last [lives]."""
    order = np.argsort(lives.alloc_entry, kind="stable")
    before = np.empty_like(order)
    before[order] = np.roll(order, 1)
    return before


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
