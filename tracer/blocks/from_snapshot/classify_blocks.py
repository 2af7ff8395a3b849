"""What a block of a snapshot is: one ordered table of rules, and the first that holds decides.

A snapshot has no categories. Its stacks, its annotations and the lives of its blocks prove what some are; the rules
that do stand first, in the order of their strength. Then those follow by which blocks prove something of each other,
and those that say "likely". A block that no rule knows is "not known".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracer.arrays import Ints
from tracer.blocks.kinds import Evidence, HasLength, Kind, Rule, first_that_holds

# What stacks, annotations and lives prove.
PROOFS: Final[tuple[Rule, ...]] = (
    Rule(Evidence.WORKSPACE_STACK, Kind.WORKSPACE, ("in_workspace",)),
    Rule(Evidence.OPTIMIZER_STATE_STACK, Kind.OPTIMIZER_STATE, ("in_state_setup",)),
    Rule(Evidence.ACCUMULATE_GRAD_STACK, Kind.GRADIENT, ("in_accumulate",)),
    Rule(
        Evidence.FREED_BY_ZERO_GRAD,
        Kind.GRADIENT,
        ("freed_by_zero_grad", "not in_step", "in_backward or in_silence or is_before"),
    ),
    Rule(Evidence.FREED_BY_DATA_ASSIGNMENT, Kind.PARAMETER, ("data_was_set", "not in_backward")),
    Rule(Evidence.REPLACES_BUFFER, Kind.BUFFER, ("takes_buffers_place",)),
    Rule(Evidence.REPLACES_BY_LINE, Kind.PARAMETER, ("takes_parameters_place",)),
    Rule(
        Evidence.BACKWARD_TO_STEP,
        Kind.GRADIENT,
        ("in_backward", "not is_before", "meets_step", "not freed_by_program", "not is_of_grad_call"),
    ),
    Rule(Evidence.COLLECTIVE_STACK, Kind.COMMUNICATION, ("in_collective",)),
    Rule(Evidence.REPLACES_PARAMETER, Kind.PARAMETER, ("is_replacing",)),
    Rule(Evidence.OUTLIVED_STEP, Kind.OPTIMIZER_STATE, ("outlives_step",)),
    Rule(Evidence.WITHIN_STEP, Kind.TEMPORARY, ("in_step", "not is_before", "not is_at_end")),
    Rule(Evidence.STEP_STACK_BEFORE, Kind.OPTIMIZER_STATE, ("in_step", "is_before")),
    Rule(Evidence.RELEASED_BY_AUTOGRAD, Kind.ACTIVATION, ("outside", "freed_by_autograd")),
    Rule(
        Evidence.HELD_OVER_BACKWARD,
        Kind.HELD,
        ("outside", "in_module or in_functional", "meets_backward", "freed_by_program"),
    ),
    Rule(
        Evidence.RECOMPUTED_STACK,
        Kind.ACTIVATION,
        ("in_backward", "in_module or in_recompute", "freed_by_autograd", "not freed_in_recompute"),
    ),
    Rule(Evidence.SAVED_IN_BACKWARD, Kind.ACTIVATION, ("in_backward", "outlives_backward", "freed_as_saved")),
    Rule(
        Evidence.WITHIN_BACKWARD,
        Kind.TEMPORARY,
        ("in_backward", "freed_by_autograd", "has_cpp or not is_brief_workspace"),
    ),
    Rule(Evidence.MODULE_SETUP_STACK, Kind.PARAMETER, ("in_module_setup", "is_at_end or freed_in_step")),
    Rule(Evidence.COPIED_PARAMETER, Kind.PARAMETER, ("in_parameter_copy",)),
)
# What blocks prove of each other, and what is likely.
LIKELY: Final[tuple[Rule, ...]] = (
    Rule(Evidence.WORKSPACE_BRIEF, Kind.WORKSPACE, ("is_brief_workspace", "not has_cpp")),
    Rule(Evidence.WORKSPACE_KEPT, Kind.WORKSPACE, ("is_workspace_kept",)),
    Rule(Evidence.BEFORE_ANY_BACKWARD, Kind.TEMPORARY, ("outside", "not is_at_end", "not may_meet_backward")),
    Rule(
        Evidence.FREED_IN_STEP, Kind.OPTIMIZER_STATE, ("is_before", "freed_in_step", "has_cpp or has_size_of_staying")
    ),
    Rule(Evidence.BACKWARD_STACK_BEFORE, Kind.GRADIENT, ("in_backward", "is_before", "is_at_end")),
    Rule(Evidence.RELEASED_IN_SILENCE, Kind.ACTIVATION, ("outside", "freed_in_silence")),
    Rule(
        Evidence.SILENCE_TO_STEP,
        Kind.GRADIENT,
        ("in_silence", "meets_step", "is_of_parameters_size", "not is_of_grad_call"),
    ),
    Rule(Evidence.SAVED_IN_SILENCE, Kind.ACTIVATION, ("outlives_silence", "freed_in_silence")),
    Rule(Evidence.WITHIN_SILENCE, Kind.TEMPORARY, ("in_silence", "freed_in_silence")),
    Rule(Evidence.LEFT_BY_BACKWARD, Kind.GRADIENT, ("is_left_by_backward", "not is_of_grad_call")),
    Rule(Evidence.SAME_STACK, "stack_kind", ("has_stack_kind",)),
    Rule(Evidence.GRADIENTS_SIZES, Kind.PARAMETER, ("is_as_many_as_gradients",)),
    Rule(Evidence.SETS_OF_SIZES, Kind.PARAMETER, ("is_first_set",)),
    Rule(Evidence.SETS_OF_SIZES, Kind.OPTIMIZER_STATE, ("is_later_set",)),
    Rule(
        Evidence.FED_TO_FORWARD,
        Kind.INPUT,
        (
            "outside",
            "is_fed",
            "meets_backward or is_at_end",
            "not in_module",
            "not in_functional",
            "not in_constructor",
            "not in_module_setup",
            "not is_long_lived",
            "not is_of_parameters_size",
        ),
    ),
    Rule(Evidence.KEPT_ALONE, Kind.HELD, ("is_kept_alone",)),
    Rule(
        Evidence.HELD_OVER_STEP,
        Kind.HELD,
        (
            "outside",
            "in_module or in_functional",
            "not is_at_end or is_held_of_few",
            "meets_backward",
            "meets_step",
            "not in_module_setup",
            "not in_constructor",
        ),
    ),
    Rule(
        Evidence.MODULE_CALL_STACK,
        Kind.ACTIVATION,
        ("outside", "in_module", "meets_backward", "not is_long_lived", "not is_last_layers"),
    ),
    Rule(Evidence.ALIVE_AT_END, Kind.ACTIVATION, ("is_kept_by_forward", "not stack_made_temporaries")),
    Rule(Evidence.IN_FLIGHT, Kind.TEMPORARY, ("is_in_flight",)),
    Rule(Evidence.FROZEN_SET, Kind.PARAMETER, ("is_frozen_set",)),
    Rule(Evidence.ONE_SET_OF_SIZES, Kind.PARAMETER, ("has_only_forward", "is_one_set")),
)
RULES: Final[tuple[Rule, ...]] = (*PROOFS, *LIKELY, Rule(Evidence.UNPROVED, Kind.UNKNOWN))


def apply_rules(facts: HasLength, rules: Sequence[Rule] = RULES) -> tuple[Ints, Ints]:
    """`Kind` [lives] and `Evidence` [lives] by the first rule that holds; what none knows is unproved."""
    return first_that_holds(rules, facts, otherwise=Evidence.UNPROVED)
