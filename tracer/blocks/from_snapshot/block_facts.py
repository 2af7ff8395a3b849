"""Facts of single blocks that the rules of `classify_blocks` ask for: how each was made and freed.

A fact is one function of the name that rules know, computed when it is first asked for and kept. What blocks say of
each other is in `counting`.

Shapes: L blocks of one device, E entries of its trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tracer.arrays import Bool, Bools, Int, Ints, at
from tracer.blocks.from_snapshot.phases import DevicePhases
from tracer.blocks.from_snapshot.sites import Sites
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.rules import FactOf
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import DeviceState
from tracer.snapshot.replay import BEFORE, Lives
from tracer.snapshot.stacks import NO_STACK

NONE = -1
# Torch gives cuBLAS a workspace of 8.125 MiB; on Hopper and Blackwell of 32 MiB, a size that many other blocks have.
# Source: ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize, of which `:4096:2:16:8` is the default.
WORKSPACE_BYTES: Final = 8_519_680
LARGE_WORKSPACE_BYTES: Final = 33_554_432
# Workspace of cublasLt, which torch calls for a linear layer with a bias.
# Source: ATen/cuda/CUDABlas.cpp, `_parseChosenWorkspaceSize`.
LT_WORKSPACE_BYTES: Final = 1_048_576
_NOT_THE_PROGRAMS = (
    Fact.ENGINE, Fact.RELEASE_SAVED, Fact.BACKWARD_CALL, Fact.OPTIMIZER_STEP, Fact.ZERO_GRAD, Fact.SET_GRAD,
    Fact.SET_DATA, Fact.SET_BUFFER,
)  # fmt: skip

truth = FactOf["LifeFacts", Bool]
number = FactOf["LifeFacts", Int]


def made_in(*wanted: Fact) -> FactOf[LifeFacts, Bool]:
    """Make a condition: the stack that made a block proves one of these facts."""
    return truth(lambda f: has(f.made, *wanted))


def freed_in(*wanted: Fact) -> FactOf[LifeFacts, Bool]:
    """Make a condition: the stack that freed a block proves one of these facts."""
    return truth(lambda f: has(f.freed, *wanted))


@dataclass(frozen=True, eq=False)
class LifeFacts:
    """Facts of each block by its stacks and its life, columns [lives]."""

    state: DeviceState
    lives: Lives
    phases: DevicePhases
    sites: Sites
    freed: Ints  # Facts of the stacks that freed the blocks

    def __len__(self) -> int:
        return len(self.is_before)

    made = number(lambda f: f.sites.facts[f.lives.stack])  # Facts of the stacks that made the blocks
    begin = number(lambda f: f.lives.begin)
    end = number(lambda f: f.lives.end)
    is_before = truth(lambda f: f.begin == BEFORE)
    is_at_end = truth(lambda f: f.end == len(f.state.trace))
    has_stack = made_in(Fact.STACK)
    # The recording has C++ frames, so that the absence of one means something
    has_cpp = truth(lambda f: np.full(len(f), f.phases.has_cpp))
    # Modules were called in the recording, and neither backward nor an optimizer's step ran
    has_only_forward = truth(lambda f: np.full(len(f), f.phases.has_only_forward))
    is_freed = truth(lambda f: f.lives.free_entry >= 0)

    # ---- where it was made -------------------------------------------------------------------------------------------

    in_workspace = made_in(Fact.WORKSPACE)
    in_state_setup = made_in(Fact.OPTIMIZER_STATE)  # Where torch's optimizers create their state
    in_collective = made_in(Fact.COLLECTIVE)  # Where FSDP, DDP or a pipeline makes the buffers of what is sent
    in_accumulate = made_in(Fact.ACCUMULATE_GRAD)  # In the node that writes .grad
    in_module_setup = made_in(Fact.MODULE_SETUP)  # Where modules create or move parameters and buffers
    in_parameter_copy = made_in(Fact.PARAMETER_COPY)  # Where `copy.deepcopy` copies a Parameter
    in_module = made_in(Fact.MODULE_FORWARD)
    in_compiled_forward = made_in(Fact.COMPILED_FOR_BACKWARD)
    in_functional = made_in(Fact.FUNCTIONAL)  # In a function of torch.nn.functional
    in_layer = made_in(Fact.LAYER)
    in_convolution = made_in(Fact.CONVOLUTION)
    in_backward = made_in(Fact.ENGINE)  # In a node that autograd evaluates
    in_recompute = made_in(Fact.RECOMPUTE)  # In what a checkpoint computes again, and in no backward of its own
    in_optimizer = truth(
        lambda f: has(f.made, Fact.OPTIMIZER_STEP) | (f.has_stack & (f.phases.steps.containing(f.begin) >= 0))
    )
    # Made in the recording, by code that is seen to be neither backward's nor the optimizer's
    outside = truth(lambda f: f.has_stack & ~f.in_backward & ~f.in_optimizer & ~f.is_before)
    # Without a stack, in a recording of a training's Python frames alone: autograd's threads have none
    is_stackless = truth(lambda f: ~f.has_stack & ~f.is_before & f.phases.is_stackless_autograd)
    # In the backward that a call of `torch.autograd.grad` ran, which writes no .grad
    is_of_grad_call = truth(lambda f: f.phases.is_of_grad_call(f.begin))
    # The call of a layer with one weight that it is in, by its line and its callers'
    layer = number(lambda f: np.where(f.is_before, NONE, f.sites.layers[f.lives.stack]))

    @number
    def constructor(self) -> Ints:
        """The outermost constructor of the program's that it is in, and not in a module's call."""
        runs_later = self.in_module | self.in_backward | self.in_optimizer
        return np.where(runs_later, NONE, self.sites.constructors[self.lives.stack])

    in_constructor = truth(lambda f: f.constructor != NONE)

    @cached_property
    def calls(self) -> tuple[Ints, Ints]:
        """The calls of models, see `calls_of_models`."""
        return calls_of_models(self.sites.model_calls[self.state.trace.stack])

    # The call of a model that it was made in: the entries in modules that one line calls, with none outside of them in
    # between
    call = number(lambda f: np.where(f.in_module & ~f.is_before, at(f.calls[0], f.begin, NONE), NONE))

    # ---- what cuBLAS works in, where no C++ frame says it ------------------------------------------------------------

    size = number(lambda f: f.lives.requested_bytes)

    @truth
    def is_brief_workspace(self) -> Bools:
        """One call of cuBLAS made and freed it again; torch before 2.15 keeps it instead.

        It has the size of a workspace, and nothing else happened while it was in use. Where other blocks of a common
        size stay, a layer made it, or it has no stack and there are such blocks of layers.
        """
        is_large, is_allocated = self.size == LARGE_WORKSPACE_BYTES, self.lives.alloc_entry >= 0
        # The last one may be in use yet.
        is_last = is_allocated & (self.lives.alloc_entry == _last_made(self.state)) & self.is_at_end
        at_once = is_allocated & (self.lives.free_entry == self.lives.alloc_entry + 1)
        large = at_once & is_large
        of_lt = at_once & self.in_layer & self.is_after_result & (self.size == LT_WORKSPACE_BYTES)
        if at_once[is_large & ~is_last & ~self.is_of_reduction].all():
            large |= is_last & is_large & large.any()
        else:
            of_product = large & (self.in_layer | self.is_after_result)
            large = of_product | (large & ~self.has_stack & (of_product | of_lt).any())
        is_workspace: Bools = large | ((at_once | is_last) & (self.size == WORKSPACE_BYTES)) | of_lt
        return is_workspace

    @truth
    def is_workspace_kept(self) -> Bools:
        """The first call of cuBLAS made it and nothing freed it, as torch before 2.15 keeps it for each thread.

        One of the uncommon size needs no other proof. One of a common size is the only one of its size that its line
        ever made, right behind a product's result. In a layer that result is gone by now, or no line of a layer made
        two blocks before; elsewhere it is gone, and its line has made it again since. In backward, where there is no
        stack, it is the only one that is left. A convolution is no such layer: cuDNN keeps none.
        """
        is_at_end, is_large, has_cpp = self.is_at_end, self.size == LARGE_WORKSPACE_BYTES, self.phases.has_cpp
        is_kept: Bools = is_at_end & (self.size == WORKSPACE_BYTES) & (~self.has_stack | (not has_cpp))
        if has_cpp:
            return is_kept
        stack, in_layer, num_made = self.lives.stack, self.in_layer & ~self.in_convolution, self.num_of_its_line
        of_layer = np.flatnonzero(in_layer & self.is_after_result)
        first = stack[of_layer[np.argmin(self.begin[of_layer])]] if len(of_layer) else NO_STACK
        is_common = is_large | (self.size == LT_WORKSPACE_BYTES)
        once = is_at_end & is_common & self.is_after_result & (num_made == 1)
        is_gone = ~is_at_end[self.made_before]
        is_kept |= once & in_layer & (is_gone | (stack == first))
        is_kept |= once & is_gone & (num_made[self.made_before] > 1)
        silent = is_at_end & ~self.has_stack & ~self.is_before & is_large
        if silent.sum() == 1 and (is_kept & is_large).any():
            is_kept |= silent
        return is_kept

    @truth
    def is_of_reduction(self) -> Bools:
        """A reduction made it to sum in, which is no result's size: its counters come and go meanwhile, no more.

        Source: ATen/native/cuda/Reduce.cuh, `gpu_reduce_kernel`: buffer and semaphores.
        """
        lives, before = self.lives, self.made_before
        is_request = np.isin(self.state.trace.action, (Action.ALLOC, Action.FREE_REQUESTED))
        place, made = np.concatenate([[0], np.cumsum(is_request)]), np.zeros(len(self), dtype=np.bool_)
        made[before] = (
            (lives.alloc_entry[before] >= 0)
            & (place[lives.alloc_entry] == place[lives.alloc_entry[before]] + 1)
            & (place[lives.free_entry] == place[lives.alloc_entry] + 1)
            & (place[lives.free_entry[before]] == place[lives.free_entry] + 1)
            & (lives.stack == lives.stack[before])
            & (self.size < self.size[before])
        )
        return made

    @number
    def num_of_its_line(self) -> Ints:
        """Number of blocks of its size that the stack made."""
        pairs = np.stack([self.lives.stack.astype(np.int64), self.size])
        order = np.lexsort(pairs)
        is_first = np.append(True, (np.diff(pairs[:, order]) != 0).any(axis=0))[: len(order)]
        group = np.cumsum(is_first) - 1
        number_of = np.empty(len(order), dtype=np.int64)
        number_of[order] = np.bincount(group, minlength=1)[group]
        return number_of

    @number
    def made_before(self) -> Ints:
        """The block that was made before it; of the first, the last."""
        order = np.argsort(self.lives.alloc_entry, kind="stable")
        before = np.empty_like(order)
        before[order] = np.roll(order, 1)
        return before

    @truth
    def is_after_result(self) -> Bools:
        """Made right after another one of the same stack, as a product's result is, but for segments."""
        trace = self.state.trace
        allocs = trace.where(Action.ALLOC)
        others = np.flatnonzero(~np.isin(trace.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)))
        is_after = np.zeros(len(trace) + 1, dtype=np.bool_)
        before = others[np.maximum(np.searchsorted(others, allocs) - 1, 0)]
        is_same = (trace.action[before] == Action.ALLOC) & (trace.stack[before] == trace.stack[allocs])
        is_after[allocs] = (before < allocs) & is_same
        return self.has_stack & is_after[self.lives.alloc_entry]

    # ---- where it was freed ------------------------------------------------------------------------------------------

    freed_by_autograd = freed_in(Fact.ENGINE, Fact.RELEASE_SAVED)  # Or as autograd let go of what it had saved
    freed_as_saved = freed_in(Fact.RELEASE_SAVED)  # Where autograd lets go of what an operation saved for backward
    freed_in_recompute = freed_in(Fact.RECOMPUTE)
    # By a known stack that is none of autograd's, of an optimizer's or of an assignment to .grad
    freed_by_program = truth(lambda f: has(f.freed, Fact.STACK) & ~has(f.freed, *_NOT_THE_PROGRAMS))
    freed_by_zero_grad = truth(
        lambda f: has(f.freed, Fact.ZERO_GRAD) | (f.phases.zero_grads.containing(f.lives.free_entry) >= 0)
    )
    freed_within_step = truth(lambda f: f.is_freed & (f.phases.steps.containing(f.lives.free_entry) >= 0))
    freed_in_step = truth(lambda f: has(f.freed, Fact.OPTIMIZER_STEP) | f.freed_within_step)
    # In a step that was not over when the recording ended
    freed_in_open_step = truth(
        lambda f: f.freed_within_step & (f.phases.steps.end_after(f.lives.free_entry) > len(f.state.trace))
    )
    data_was_set = freed_in(Fact.SET_DATA)  # By an assignment to .data
    buffer_was_set = freed_in(Fact.SET_BUFFER)  # As a module's buffer got another tensor

    @truth
    def freed_stackless(self) -> Bools:
        """Without a stack, likewise."""
        has_none: Bools = at(self.state.trace.stack, self.lives.free_entry, NO_STACK) == NO_STACK
        return self.is_freed & has_none & self.phases.is_stackless_autograd

    # ---- what ran while it was in use --------------------------------------------------------------------------------

    # When the step that made it was over
    outlives_step = truth(lambda f: f.in_optimizer & (f.end >= f.phases.whole_steps.end_after(f.begin)))
    meets_step = truth(lambda f: f.end > f.phases.steps.next_start(f.begin))
    meets_backward = truth(lambda f: f.meets(f.phases.num_backward))
    # An entry of it, or one without a stack
    may_meet_backward = truth(lambda f: f.meets(f.phases.num_maybe_backward))
    # When the run of backward that made it was over
    outlives_backward = truth(lambda f: f.in_backward & (f.end >= f.phases.backwards.end_after(f.begin)))
    # When the thread that calls backward went on
    outlives_stackless_run = truth(lambda f: f.is_stackless & (f.end >= f.phases.stackless_runs.end_after(f.begin)))

    @truth
    def is_long_lived(self) -> Bools:
        """Two or more steps began while it was in use."""
        begun, over = (np.searchsorted(self.phases.steps.start, at, side="right") for at in (self.begin, self.end))
        return np.asarray(over - begun >= 2, np.bool_)

    @truth
    def is_called_again(self) -> Bools:
        """The line that called the model it was made in has called one since."""
        _, line = self.calls
        last = np.zeros(int(line.max(initial=-1)) + 1, dtype=np.int64)
        last[line] = np.arange(len(line))
        return np.append(last[line] > np.arange(len(line)), False)[self.call]

    @truth
    def is_last_before_backward(self) -> Bools:
        """The last layer with a weight before a backward made it."""
        rows = np.flatnonzero(self.in_layer & ~self.in_backward & ~self.in_workspace & ~self.is_brief_workspace)
        rows = rows[np.argsort(self.begin[rows], kind="stable")]
        place = np.searchsorted(self.begin[rows], self.phases.backwards.start) - 1
        is_last = np.zeros(len(self), dtype=np.bool_)
        is_last[rows[place[place >= 0]]] = True
        return is_last

    @truth
    def is_last_of_call(self) -> Bools:
        """The last block of a call of a model that is in use when that is over."""
        (calls, _), call = self.calls, self.call
        entries = np.flatnonzero(calls >= 0)
        over = np.zeros(int(calls.max(initial=-1)) + 2, dtype=np.int64)
        over[calls[entries]] = entries  # of one call, the last entry
        rows = np.flatnonzero((call >= 0) & (self.end > over[call]))
        rows = rows[np.argsort(self.begin[rows], kind="stable")]
        last = np.zeros(len(over), dtype=np.int64)
        last[call[rows]] = rows
        is_last = np.zeros(len(call), dtype=np.bool_)
        is_last[rows] = last[call[rows]] == rows
        return is_last

    # A program may hold it as its output
    is_last_layers = truth(lambda f: f.is_last_before_backward | f.is_last_of_call)

    @truth
    def is_fed(self) -> Bools:
        """True for a block in use as a forward began, and made after the last backward, step or zero_grad before it.

        If it is the first forward, by the function that calls the model, or where a library's training loop moves a
        batch to the device: data sets are there before that too.
        """
        lives, sites, next_forward = self.lives, self.sites, self.phases.next_forward
        forward, first = next_forward[np.maximum(lives.begin, 0)], int(next_forward[0])
        is_fed: Bools = lives.end > forward
        for row in np.flatnonzero(is_fed & (forward == first) & ~self.is_before).tolist():
            stack = int(lives.stack[row])
            is_moved = bool(has(sites.facts[stack], Fact.BATCH_MOVE))
            is_fed[row] = is_moved or sites.is_in_models_caller(stack, int(self.state.trace.stack[first]))
        return is_fed

    def meets(self, count: Ints) -> Bools:
        """Return True for each block during whose life a counted event happened."""
        last = len(count) - 1
        has_changed: Bools = count[np.minimum(self.end, last)] != count[np.clip(self.begin, 0, last)]
        return has_changed


def facts_of_frees(state: DeviceState, lives: Lives, facts: Ints) -> Ints:
    """The facts of the stacks that freed the blocks.

    A recording with `context="alloc"` repeats at every free the stack of the allocation, which proves nothing.
    """
    stack = at(state.trace.stack, lives.free_entry, NO_STACK)
    is_repeated = stack == lives.stack
    are_all = is_repeated[(stack != NO_STACK) & (lives.begin > BEFORE)].all()
    return np.where(is_repeated & are_all, 0, facts[stack])


def calls_of_models(line: Ints) -> tuple[Ints, Ints]:
    """The number of the call that each entry is in, or -1; and the line of each call [entries], [calls]."""
    begins = np.append(True, line[1:] != line[:-1])[: len(line)] & (line >= 0)
    return np.where(line >= 0, np.cumsum(begins) - 1, -1), line[begins]


def _last_made(state: DeviceState) -> int:
    action, addr = state.trace.action, state.trace.addr
    entry = int(np.flatnonzero(action == Action.ALLOC).max(initial=-1))
    if entry < 0:
        return -1
    is_free = np.isin(action[entry + 1 :], (Action.FREE_REQUESTED, Action.FREE_COMPLETED))
    return entry if (addr[entry + 1 :][is_free] == addr[entry]).all() else -1
