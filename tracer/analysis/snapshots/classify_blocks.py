"""What a block of a snapshot is: one ordered table of rules, and the first that holds decides.

A snapshot has no categories. Its stacks, its annotations and the lives of its blocks prove what some are; the rules
that do stand first, in the order of their strength. Then those follow by which blocks prove something of each other,
and those that say "likely". A block that no rule knows is "not known".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tracer.analysis.kinds import Evidence, Kind
from tracer.analysis.rules import Rule, first_that_holds
from tracer.analysis.snapshots.block_facts import BlockFacts
from tracer.analysis.snapshots.counting import NONE
from tracer.arrays import Ints

NOT_KNOWN: Final = Kind.UNKNOWN.words
# What a block of a snapshot can be, in words: what was allocated before is told by its place in the recording.
KINDS: Final = (
    *(kind.words for kind in Kind if kind not in (Kind.UNKNOWN, Kind.BEFORE_RECORDING)),
    NOT_KNOWN,
)


# What stacks, annotations and lives prove.
PROOFS: Final[tuple[Rule[BlockFacts], ...]] = (
    Rule(Evidence.WORKSPACE_STACK, Kind.WORKSPACE, lambda f: f.in_workspace),
    Rule(Evidence.OPTIMIZER_STATE_STACK, Kind.OPTIMIZER_STATE, lambda f: f.in_state_setup),
    Rule(Evidence.ACCUMULATE_GRAD_STACK, Kind.GRADIENT, lambda f: f.in_accumulate),
    Rule(
        Evidence.FREED_BY_ZERO_GRAD,
        Kind.GRADIENT,
        lambda f: f.freed_by_zero_grad & ~f.in_step & (f.in_backward | f.is_before),
    ),
    Rule(
        Evidence.FREED_BY_GRAD_ASSIGNMENT,
        Kind.GRADIENT,
        lambda f: f.grad_was_set & ~f.in_step & (f.in_backward | f.is_before),
    ),
    Rule(Evidence.FREED_BY_DATA_ASSIGNMENT, Kind.PARAMETER, lambda f: f.data_was_set & ~f.in_backward),
    Rule(Evidence.BACKWARD_TO_STEP, Kind.GRADIENT, lambda f: f.in_backward & ~f.is_before & f.meets_step),
    Rule(Evidence.COLLECTIVE_STACK, Kind.COMMUNICATION, lambda f: f.in_collective),
    Rule(Evidence.REPLACES_PARAMETER, Kind.PARAMETER, lambda f: f.is_replacing),
    Rule(Evidence.OUTLIVED_STEP, Kind.OPTIMIZER_STATE, lambda f: f.outlives_step),
    Rule(Evidence.WITHIN_STEP, Kind.TEMPORARY, lambda f: f.in_step & ~f.is_before & ~f.is_at_end),
    Rule(Evidence.STEP_STACK_BEFORE, Kind.OPTIMIZER_STATE, lambda f: f.in_step & f.is_before),
    Rule(Evidence.RELEASED_BY_AUTOGRAD, Kind.ACTIVATION, lambda f: f.outside & f.freed_by_autograd),
    Rule(
        Evidence.RECOMPUTED_STACK,
        Kind.ACTIVATION,
        lambda f: f.in_backward & f.in_module & f.freed_by_autograd,
    ),
    Rule(Evidence.WITHIN_BACKWARD, Kind.TEMPORARY, lambda f: f.in_backward & f.freed_by_autograd),
    Rule(
        Evidence.MODULE_SETUP_STACK,
        Kind.PARAMETER,
        lambda f: f.in_module_setup & (f.is_at_end | f.freed_in_step),
    ),
)
# What blocks prove of each other, and what is likely.
LIKELY: Final[tuple[Rule[BlockFacts], ...]] = (
    Rule(Evidence.BEFORE_ANY_BACKWARD, Kind.TEMPORARY, lambda f: f.outside & ~f.is_at_end & ~f.may_meet_backward),
    Rule(
        Evidence.FREED_IN_STEP,
        Kind.OPTIMIZER_STATE,
        lambda f: f.is_before & f.freed_in_step & (f.has_cpp | f.has_size_of_staying),
    ),
    Rule(
        Evidence.CONSTRUCTED,
        Kind.PARAMETER,
        lambda f: f.is_constructed | ((f.constructor != NONE) & f.is_at_end & f.has_only_forward),
    ),
    Rule(Evidence.BACKWARD_STACK_BEFORE, Kind.GRADIENT, lambda f: f.in_backward & f.is_before & f.is_at_end),
    Rule(Evidence.RELEASED_IN_SILENCE, Kind.ACTIVATION, lambda f: f.outside & f.freed_in_silence),
    Rule(
        Evidence.SILENCE_TO_STEP,
        Kind.GRADIENT,
        lambda f: f.in_silence & f.meets_step & f.is_of_parameters_size,
    ),
    Rule(Evidence.WITHIN_SILENCE, Kind.TEMPORARY, lambda f: f.in_silence & f.freed_in_silence),
    Rule(Evidence.SAME_STACK, lambda f: f.stack_kind, lambda f: f.stack_kind != NONE),
    Rule(Evidence.GRADIENTS_SIZES, Kind.PARAMETER, lambda f: f.is_as_many_as_gradients),
    Rule(Evidence.AUTOCAST_COPY, Kind.ACTIVATION, lambda f: f.outside & f.in_autocast),
    Rule(
        Evidence.MODULE_CALL_STACK,
        Kind.ACTIVATION,
        lambda f: f.outside & f.in_module & f.meets_backward & ~f.is_long_lived,
    ),
    Rule(
        Evidence.ALIVE_AT_END,
        Kind.ACTIVATION,
        lambda f: f.outside & f.in_module & f.is_at_end & ~f.meets_backward,
    ),
    Rule(Evidence.ONE_SET_OF_SIZES, Kind.PARAMETER, lambda f: f.has_only_forward & f.is_one_set),
)
RULES: Final[tuple[Rule[BlockFacts], ...]] = (
    *PROOFS,
    *LIKELY,
    Rule(Evidence.UNPROVED, Kind.UNKNOWN, lambda f: np.ones(len(f), dtype=np.bool_)),
)


def apply_rules(facts: BlockFacts, rules: Sequence[Rule[BlockFacts]] = RULES) -> tuple[Ints, Ints]:
    """`Kind` [L] and `Evidence` [L] by the first rule that holds; what none knows is unproved."""
    return first_that_holds(rules, facts, otherwise=Evidence.UNPROVED)
