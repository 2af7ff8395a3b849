"""What the rules of `classify_blocks` look at: how each block was made and freed, and what ran in between.

Shapes: L blocks of one device, E entries of its trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.snapshots.phases import FAR, Stretches, runs_of, steps_of, whole_steps_of, zero_grads_of
from tracer.analysis.snapshots.sites import Sites
from tracer.analysis.snapshots.stack_facts import Fact, calls_backward, has
from tracer.analysis.snapshots.workspaces import brief_workspaces, kept_workspaces
from tracer.arrays import Bools, ColumnTable, Ints, at
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.replay import BEFORE, Lives
from tracer.snapshot.stacks import NO_STACK


@dataclass(frozen=True, slots=True, eq=False)
class BlockFacts(ColumnTable):
    """Facts of each block, columns [lives]."""

    is_before: Bools
    is_at_end: Bools
    has_stack: Bools
    in_workspace: Bools
    # It has the size of cuBLAS's workspace, and nothing else happened while it was in use. Where other blocks of a
    # common size stay, a layer made it, or it has no stack and there are such blocks of layers.
    is_brief_workspace: Bools
    # It has one of these sizes and is never freed; where the size is common, it is the only such block that its line
    # made, behind the result of a layer's product.
    is_workspace_kept: Bools
    in_state_setup: Bools  # It is where torch's optimizers create their state
    in_collective: Bools  # It is where FSDP, DDP or a pipeline makes the buffers of what is sent
    in_accumulate: Bools  # It is in the node that writes .grad
    in_module_setup: Bools  # It is where modules create or move parameters and buffers
    in_parameter_copy: Bools  # It is where `copy.deepcopy` copies a Parameter
    # The outermost constructor of the program's that it is in, and not in a module's call; -1 for none.
    constructor: Ints
    in_module: Bools
    in_functional: Bools  # It is inside a function of torch.nn.functional
    in_backward: Bools  # It is in a node that autograd evaluates
    in_step: Bools
    # It has no stack, in a recording of a training's Python frames alone: autograd's threads have none.
    in_silence: Bools
    is_of_grad_call: Bools  # Made in the backward that a call of `torch.autograd.grad` ran, which writes no .grad
    freed_by_autograd: Bools  # Freed in a node that autograd evaluates, or as autograd let go of what it had saved
    freed_as_saved: Bools  # Freed where autograd lets go of what an operation saved for backward
    # By a known stack that is none of autograd's, of an optimizer's or of an assignment to .grad.
    freed_by_program: Bools
    freed_by_zero_grad: Bools
    freed_in_step: Bools
    freed_in_open_step: Bools  # Freed in a step that was not over when the recording ended
    freed_in_silence: Bools  # Without a stack, likewise
    data_was_set: Bools  # By an assignment to .data
    buffer_was_set: Bools  # As a module's buffer got another tensor
    outlives_step: Bools  # It was in use when the step that made it was over
    meets_step: Bools  # It was in use when the next step began
    meets_backward: Bools  # Backward ran while it was in use
    is_long_lived: Bools  # Two or more steps began while it was in use
    # The last layer with a weight before a backward made it, or it is the last that a call of a model left: a program
    # may hold it as its output.
    is_last_layers: Bools
    # The call of a model that it was made in: the entries in modules that one line calls, with none outside of them in
    # between; -1 for none.
    call: Ints
    is_called_again: Bools  # That line has called a model again since
    # In use where the model has been called again, and all else that its call made was freed before any backward, eight
    # blocks or more: an output that the program keeps.
    is_kept_alone: Bools
    # In use at the end, past a backward and a step; and of what forward had made for that backward at least eight times
    # as many blocks were let go of by autograd.
    is_held_of_few: Bools
    # It was in use when a forward began, and made after the backward, step or zero_grad before that one; if it is the
    # first forward, by the function that calls the model, or where a library's training loop moves a batch to the
    # device: data sets are there before that too.
    is_fed: Bools
    has_cpp: Bools  # The recording has C++ frames, so that the absence of one means something
    has_only_forward: Bools  # Modules were called in the recording, and neither backward nor an optimizer's step ran
    may_meet_backward: Bools  # Backward may have run while it was in use: an entry of it, or one without a stack
    # What every other block of the same stack is that is proved, as a `Kind`; -1 where they differ, and where it cannot
    # be that, since what nobody frees is not temporary.
    stack_kind: Ints
    # In use where modules have made several blocks since, and at least a third of a dozen or more that were made as
    # early are in use, or all of them: inference keeps the latest alone, and a cache.
    is_kept_by_forward: Bools
    stack_made_temporaries: Bools  # Some blocks of its stack and size were freed again before any backward ran
    is_constructed: Bools  # Made by constructors, kept or freed by a step, and there are as many gradients of its size
    is_replacing: Bools  # Made by the stack that made what took the place of a known parameter
    # A line outside of steps put it in the place of what a module had set up, or of what an assignment to .data freed.
    takes_parameters_place: Bools
    takes_buffers_place: Bools  # It took the place of a buffer
    has_size_of_staying: Bools  # A block of its size was there before and is never freed
    is_as_many_as_gradients: Bools  # There before, never freed, and of a size of which there are as many gradients
    # There before, never freed, of a size of which there are two or three for each gradient, and made first of them.
    is_first_set: Bools
    is_later_set: Bools  # The same, and made later
    is_of_parameters_size: Bools  # A parameter has its size
    layer: Ints  # The call of a layer with one weight that it is in, by its line and its callers'; -1 for none
    # What was there before and is never freed is as many as the layers that forward calls, or has sizes of which none
    # repeat as copies would.
    is_one_set: Bools
    # It was there before, is never freed and has no gradient of its size, and such blocks are as many as the layers
    # that forward calls.
    is_frozen_set: Bools
    outlives_backward: Bools  # It was in use when the run of backward that made it was over
    outlives_silence: Bools  # It was made in silence and in use when the thread that calls backward went on
    is_left_by_backward: Bools  # Backward made it and nothing freed it, and its size is a parameter's and no other's
    # Backward made it and was not over at the end, and nothing has its size then but backward's own blocks and those of
    # modules and functions of torch.nn.
    is_in_flight: Bools

    @property
    def outside(self) -> Bools:
        """Made in the recording, by code that is seen to be neither backward's nor the optimizer's."""
        return self.has_stack & ~self.in_backward & ~self.in_step & ~self.is_before

    @property
    def in_constructor(self) -> Bools:
        """Made in a constructor of the program's."""
        is_inside: Bools = self.constructor != -1
        return is_inside

    @property
    def has_stack_kind(self) -> Bools:
        """All that is proved of the other blocks of its stack is one kind."""
        has_kind: Bools = self.stack_kind != -1
        return has_kind


_BY_COUNTING = (
    "is_kept_alone", "is_held_of_few", "is_kept_by_forward", "stack_made_temporaries",
    "is_constructed", "is_replacing", "takes_parameters_place", "takes_buffers_place",
    "has_size_of_staying", "is_as_many_as_gradients", "is_of_parameters_size", "is_one_set", "is_frozen_set",
    "is_left_by_backward", "is_in_flight", "is_first_set", "is_later_set",
)  # fmt: skip
"""Columns that `counting.with_counts` and `with_parameters` fill in; until then they are false."""
_NOT_THE_PROGRAMS = (
    Fact.ENGINE, Fact.RELEASE_SAVED, Fact.BACKWARD_CALL, Fact.OPTIMIZER_STEP, Fact.ZERO_GRAD, Fact.SET_GRAD,
    Fact.SET_DATA, Fact.SET_BUFFER,
)  # fmt: skip


class DevicePhases:
    """Steps and backward passes of one device, and what every entry's stack proves."""

    def __init__(self, snapshot: Snapshot, state: DeviceState, facts: Ints) -> None:
        self._facts = facts
        self.of_entry = facts[state.trace.stack]
        stacked = has(self.of_entry, Fact.STACK)
        self.steps = steps_of(snapshot, state, self.of_entry)
        self.whole_steps = whole_steps_of(snapshot, state, self.of_entry)
        self.zero_grads = zero_grads_of(snapshot, state, self.of_entry)
        self.has_cpp = bool(has(facts, Fact.CPP).any())
        trains = (
            len(self.steps.start) or len(self.zero_grads.start) or has(facts, Fact.ENGINE, Fact.BACKWARD_CALL).any()
        )
        self.is_silence_autograd = bool(trains) and not self.has_cpp and bool(has(facts, Fact.STACK).any())
        engine = has(self.of_entry, Fact.ENGINE)
        self.backwards = runs_of(engine, stacked)
        is_silent, goes_on = ~stacked & self.is_silence_autograd, calls_backward(snapshot.stacks, facts)
        self.silences = runs_of(is_silent, is_silent | goes_on[state.trace.stack])
        self.num_backward = _running_count(engine | (~stacked & self.is_silence_autograd))
        self.num_maybe_backward = _running_count(engine | ~stacked)
        self.next_forward = _next_forward(
            has(self.of_entry, Fact.MODULE_FORWARD) & ~engine,
            engine | has(self.of_entry, Fact.OPTIMIZER_STEP, Fact.ZERO_GRAD) | (~stacked & self.is_silence_autograd),
        )
        self.has_only_forward = bool(
            has(self.of_entry, Fact.MODULE_FORWARD).any() and not len(self.steps.start) and not self.num_backward[-1]
        )

    def is_of_grad_call(self, entry: Ints) -> Bools:
        """Which entries are of a backward right behind an entry of `torch.autograd.grad`, which makes its root."""
        is_called = np.append(has(self.of_entry, Fact.GRAD_CALL), False)
        is_of_call = np.zeros(len(entry), dtype=np.bool_)
        for runs in (self.backwards, self.silences):
            run = runs.containing(entry)
            is_of_call |= (run >= 0) & is_called[np.append(runs.start, 0)[run] - 1]
        return is_of_call


def _next_forward(is_forward: Bools, is_learning: Bools) -> Ints:
    """Where the next forward begins after an entry that is between two; `FAR` after all others [entries + 1]."""
    number = np.arange(len(is_forward) + 1)
    rows, behind = np.append(is_forward, False), np.append(is_learning, False)
    last = np.maximum.accumulate(np.where(rows, number, -1)), np.maximum.accumulate(np.where(behind, number, -1))
    to_come = (np.append(np.flatnonzero(chosen), FAR)[_running_count(chosen)] for chosen in (is_forward, is_learning))
    forward, learning = to_come
    return np.where((last[0] <= last[1]) & (forward < learning), forward, FAR)


def _running_count(wanted: Bools) -> Ints:
    return np.concatenate([[0], np.cumsum(wanted)])


def facts_of(state: DeviceState, lives: Lives, phases: DevicePhases, sites: Sites, freed: Ints) -> BlockFacts:
    """The facts that follow from stacks and lives; those of counting are False here, see `counting.with_counts`.

    Args:
        freed: Facts of the stacks that freed the blocks [lives].
    """
    born = sites.facts[lives.stack]
    has_stack, begin, end = has(born, Fact.STACK), lives.begin, lives.end
    in_step = has(born, Fact.OPTIMIZER_STEP) | (has_stack & (phases.steps.containing(begin) >= 0))
    no = np.zeros(len(lives), dtype=np.bool_)
    is_silent = no | phases.is_silence_autograd
    runs_later = has(born, Fact.MODULE_FORWARD, Fact.ENGINE) | in_step
    in_layer = has(born, Fact.LAYER)
    is_brief = brief_workspaces(state, lives, has_stack, in_layer)
    free_is_known = lives.free_entry >= 0
    calls, lines = calls_of_models(sites.model_calls[state.trace.stack])
    call = np.where(has(born, Fact.MODULE_FORWARD) & (begin > BEFORE), np.append(calls, -1)[np.maximum(begin, 0)], -1)
    in_a_step = phases.steps.containing(lives.free_entry) >= 0
    return BlockFacts(
        is_before=begin == BEFORE,
        is_at_end=end == len(state.trace),
        has_stack=has_stack,
        in_workspace=has(born, Fact.WORKSPACE),
        is_brief_workspace=is_brief,
        is_workspace_kept=kept_workspaces(
            state, lives, has_stack, in_layer & ~has(born, Fact.CONVOLUTION), has_cpp=phases.has_cpp
        ),
        in_state_setup=has(born, Fact.OPTIMIZER_STATE),
        in_collective=has(born, Fact.COLLECTIVE),
        in_accumulate=has(born, Fact.ACCUMULATE_GRAD),
        in_module_setup=has(born, Fact.MODULE_SETUP),
        in_parameter_copy=has(born, Fact.PARAMETER_COPY),
        constructor=np.where(runs_later, -1, sites.constructors[lives.stack]),
        in_module=has(born, Fact.MODULE_FORWARD),
        in_functional=has(born, Fact.FUNCTIONAL),
        in_backward=has(born, Fact.ENGINE),
        in_step=in_step,
        in_silence=is_silent & ~has_stack & (begin > BEFORE),
        is_of_grad_call=phases.is_of_grad_call(begin),
        freed_by_autograd=has(freed, Fact.ENGINE, Fact.RELEASE_SAVED),
        freed_as_saved=has(freed, Fact.RELEASE_SAVED),
        freed_by_program=has(freed, Fact.STACK) & ~has(freed, *_NOT_THE_PROGRAMS),
        freed_by_zero_grad=has(freed, Fact.ZERO_GRAD) | (phases.zero_grads.containing(lives.free_entry) >= 0),
        freed_in_step=has(freed, Fact.OPTIMIZER_STEP) | (free_is_known & in_a_step),
        freed_in_open_step=free_is_known & (phases.steps.end_after(lives.free_entry) > len(state.trace)) & in_a_step,
        freed_in_silence=is_silent & free_is_known & (at(state.trace.stack, lives.free_entry, NO_STACK) == NO_STACK),
        data_was_set=has(freed, Fact.SET_DATA),
        buffer_was_set=has(freed, Fact.SET_BUFFER),
        outlives_step=in_step & (end >= phases.whole_steps.end_after(begin)),
        meets_step=end > phases.steps.next_start(begin),
        meets_backward=_changes(phases.num_backward, begin, end),
        is_long_lived=_num_started(phases.steps, end) - _num_started(phases.steps, begin) >= 2,
        is_last_layers=_last_before(
            phases.backwards, begin, has(born, Fact.LAYER) & ~has(born, Fact.ENGINE, Fact.WORKSPACE) & ~is_brief
        )
        | _last_of_calls(calls, call, begin, end),
        call=call,
        is_called_again=_are_called_again(lines)[call],
        is_fed=_is_fed(state, lives, phases, sites),
        has_cpp=no | phases.has_cpp,
        has_only_forward=no | phases.has_only_forward,
        may_meet_backward=_changes(phases.num_maybe_backward, begin, end),
        stack_kind=np.full(len(lives), -1, dtype=np.int64),
        layer=np.where(begin > BEFORE, sites.layers[lives.stack], -1),
        outlives_backward=has(born, Fact.ENGINE) & (end >= phases.backwards.end_after(begin)),
        outlives_silence=is_silent & ~has_stack & (begin > BEFORE) & (end >= phases.silences.end_after(begin)),
        **dict.fromkeys(_BY_COUNTING, no),
    )


def facts_of_frees(state: DeviceState, lives: Lives, facts: Ints) -> Ints:
    """The facts of the stacks that freed the blocks.

    A recording with `context="alloc"` repeats at every free the stack of the allocation, which proves nothing.
    """
    stack = at(state.trace.stack, lives.free_entry, NO_STACK)
    is_repeated = stack == lives.stack
    are_all = is_repeated[(stack != NO_STACK) & (lives.begin > BEFORE)].all()
    return np.where(is_repeated & are_all, 0, facts[stack])


def _is_fed(state: DeviceState, lives: Lives, phases: DevicePhases, sites: Sites) -> Bools:
    forward = phases.next_forward[np.maximum(lives.begin, 0)]
    is_fed: Bools = lives.end > forward
    first = int(phases.next_forward[0])
    for row in np.flatnonzero(is_fed & (forward == first) & (lives.begin > BEFORE)).tolist():
        stack = int(lives.stack[row])
        is_moved = bool(has(sites.facts[stack], Fact.BATCH_MOVE))
        is_fed[row] = is_moved or sites.is_in_models_caller(stack, int(state.trace.stack[first]))
    return is_fed


def _last_before(stretches: Stretches, begin: Ints, chosen: Bools) -> Bools:
    """Which of the chosen blocks were the last of them before a stretch."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(begin[rows], kind="stable")]
    place = np.searchsorted(begin[rows], stretches.start) - 1
    is_last = np.zeros(len(begin), dtype=np.bool_)
    is_last[rows[place[place >= 0]]] = True
    return is_last


def calls_of_models(line: Ints) -> tuple[Ints, Ints]:
    """The number of the call that each entry is in, or -1; and the line of each call [entries], [calls].

    Args:
        line: The line that calls the outermost module of each entry, or -1 [entries].
    """
    begins = np.append(True, line[1:] != line[:-1])[: len(line)] & (line >= 0)
    return np.where(line >= 0, np.cumsum(begins) - 1, -1), line[begins]


def _last_of_calls(calls: Ints, call: Ints, begin: Ints, end: Ints) -> Bools:
    """Which blocks are the last ones of their calls of models that are in use when those are over."""
    entries = np.flatnonzero(calls >= 0)
    over = np.zeros(int(calls.max(initial=-1)) + 2, dtype=np.int64)
    over[calls[entries]] = entries  # of one call, the last entry
    rows = np.flatnonzero((call >= 0) & (end > over[call]))
    rows = rows[np.argsort(begin[rows], kind="stable")]
    last = np.zeros(len(over), dtype=np.int64)
    last[call[rows]] = rows
    is_last = np.zeros(len(call), dtype=np.bool_)
    is_last[rows] = last[call[rows]] == rows
    return is_last


def _are_called_again(line: Ints) -> Bools:
    """Which calls have another one of their line behind them; the last is for -1 [calls + 1]."""
    last = np.zeros(int(line.max(initial=-1)) + 1, dtype=np.int64)
    last[line] = np.arange(len(line))
    return np.append(last[line] > np.arange(len(line)), False)


def _changes(count: Ints, begin: Ints, end: Ints) -> Bools:
    """Whether something that is counted happened after `begin` and before `end`."""
    last = len(count) - 1
    has_changed: Bools = count[np.minimum(end, last)] != count[np.clip(begin, 0, last)]
    return has_changed


def _num_started(stretches: Stretches, entry: Ints) -> Ints:
    return np.searchsorted(stretches.start, entry, side="right")
