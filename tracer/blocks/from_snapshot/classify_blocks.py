"""Rules for the kind of a block of a snapshot: an ordered table, whose first rule that holds decides.

A snapshot has no categories. Its stacks, its annotations and the lives of its blocks prove what some are; the rules
that do stand first, in the order of their strength. Then those follow by which blocks prove something of each other,
and those that say "likely". A block that no rule knows is "not known".
"""

from __future__ import annotations

from typing import Final

from tracer.blocks.from_snapshot.counting import BlockFacts
from tracer.blocks.kinds import Evidence, Kind
from tracer.blocks.rules import AnyOf, Not, Rule

F = BlockFacts
# Proofs by stacks, annotations and lives.
PROOFS: Final[tuple[Rule[F], ...]] = (
    Rule(Evidence.WORKSPACE_STACK, Kind.WORKSPACE, (F.in_workspace,)),
    Rule(Evidence.OPTIMIZER_STATE_STACK, Kind.OPTIMIZER_STATE, (F.in_state_setup,)),
    Rule(Evidence.ACCUMULATE_GRAD_STACK, Kind.GRADIENT, (F.in_accumulate,)),
    Rule(
        Evidence.FREED_BY_ZERO_GRAD,
        Kind.GRADIENT,
        (F.freed_by_zero_grad, Not(F.in_optimizer), AnyOf(F.in_backward, F.is_stackless, F.is_before)),
    ),
    Rule(Evidence.FREED_BY_DATA_ASSIGNMENT, Kind.PARAMETER, (F.data_was_set, Not(F.in_backward))),
    Rule(Evidence.REPLACES_BUFFER, Kind.BUFFER, (F.takes_buffers_place,)),
    Rule(Evidence.REPLACES_BY_LINE, Kind.PARAMETER, (F.takes_parameters_place,)),
    Rule(
        Evidence.BACKWARD_TO_STEP,
        Kind.GRADIENT,
        (F.in_backward, Not(F.is_before), F.meets_step, Not(F.freed_by_program), Not(F.is_of_grad_call)),
    ),
    Rule(Evidence.COLLECTIVE_STACK, Kind.COMMUNICATION, (F.in_collective,)),
    Rule(Evidence.REPLACES_PARAMETER, Kind.PARAMETER, (F.is_replacing,)),
    Rule(Evidence.OUTLIVED_STEP, Kind.OPTIMIZER_STATE, (F.outlives_step,)),
    Rule(Evidence.WITHIN_STEP, Kind.TEMPORARY, (F.in_optimizer, Not(F.is_before), Not(F.is_at_end))),
    Rule(Evidence.STEP_STACK_BEFORE, Kind.OPTIMIZER_STATE, (F.in_optimizer, F.is_before)),
    Rule(Evidence.RELEASED_BY_AUTOGRAD, Kind.ACTIVATION, (F.outside, F.freed_by_autograd)),
    Rule(
        Evidence.HELD_OVER_BACKWARD,
        Kind.HELD,
        (F.outside, AnyOf(F.in_module, F.in_functional), F.meets_backward, F.freed_by_program),
    ),
    Rule(
        Evidence.RECOMPUTED_STACK,
        Kind.ACTIVATION,
        (F.in_backward, AnyOf(F.in_module, F.in_recompute), F.freed_by_autograd, Not(F.freed_in_recompute)),
    ),
    Rule(Evidence.SAVED_IN_BACKWARD, Kind.ACTIVATION, (F.in_backward, F.outlives_backward, F.freed_as_saved)),
    Rule(
        Evidence.WITHIN_BACKWARD,
        Kind.TEMPORARY,
        (F.in_backward, F.freed_by_autograd, AnyOf(F.has_cpp, Not(F.is_brief_workspace))),
    ),
    Rule(Evidence.MODULE_SETUP_STACK, Kind.PARAMETER, (F.in_module_setup, AnyOf(F.is_at_end, F.freed_in_step))),
    Rule(Evidence.COPIED_PARAMETER, Kind.PARAMETER, (F.in_parameter_copy,)),
)
# Proofs by other blocks, and likely kinds.
LIKELY: Final[tuple[Rule[F], ...]] = (
    Rule(Evidence.WORKSPACE_BRIEF, Kind.WORKSPACE, (F.is_brief_workspace, Not(F.has_cpp))),
    Rule(Evidence.WORKSPACE_KEPT, Kind.WORKSPACE, (F.is_workspace_kept,)),
    Rule(Evidence.BEFORE_ANY_BACKWARD, Kind.TEMPORARY, (F.outside, Not(F.is_at_end), Not(F.may_meet_backward))),
    Rule(
        Evidence.FREED_IN_STEP,
        Kind.OPTIMIZER_STATE,
        (F.is_before, F.freed_in_step, AnyOf(F.has_cpp, F.has_size_of_staying)),
    ),
    Rule(Evidence.BACKWARD_STACK_BEFORE, Kind.GRADIENT, (F.in_backward, F.is_before, F.is_at_end)),
    Rule(Evidence.RELEASED_STACKLESS, Kind.ACTIVATION, (F.outside, F.freed_stackless)),
    Rule(
        Evidence.STACKLESS_TO_STEP,
        Kind.GRADIENT,
        (F.is_stackless, F.meets_step, F.is_of_parameters_size, Not(F.is_of_grad_call)),
    ),
    Rule(Evidence.SAVED_STACKLESS, Kind.ACTIVATION, (F.outlives_stackless_run, F.freed_stackless)),
    Rule(Evidence.WITHIN_STACKLESS_RUN, Kind.TEMPORARY, (F.is_stackless, F.freed_stackless)),
    Rule(Evidence.LEFT_BY_BACKWARD, Kind.GRADIENT, (F.is_left_by_backward, Not(F.is_of_grad_call))),
    Rule(Evidence.SAME_STACK, F.stack_kind, (F.has_stack_kind,)),
    Rule(Evidence.GRADIENTS_SIZES, Kind.PARAMETER, (F.is_as_many_as_gradients,)),
    Rule(Evidence.SETS_OF_SIZES, Kind.PARAMETER, (F.is_first_set,)),
    Rule(Evidence.SETS_OF_SIZES, Kind.OPTIMIZER_STATE, (F.is_later_set,)),
    Rule(
        Evidence.FED_TO_FORWARD,
        Kind.INPUT,
        (
            F.outside,
            F.is_fed,
            AnyOf(F.meets_backward, F.is_at_end),
            Not(F.in_module),
            Not(F.in_functional),
            Not(F.in_constructor),
            Not(F.in_module_setup),
            Not(F.is_long_lived),
            Not(F.is_of_parameters_size),
        ),
    ),
    Rule(Evidence.KEPT_ALONE, Kind.HELD, (F.is_kept_alone,)),
    Rule(
        Evidence.HELD_OVER_STEP,
        Kind.HELD,
        (
            F.outside,
            AnyOf(F.in_module, F.in_functional),
            AnyOf(Not(F.is_at_end), F.is_held_of_few),
            F.meets_backward,
            F.meets_step,
            Not(F.in_module_setup),
            Not(F.in_constructor),
        ),
    ),
    Rule(
        Evidence.MODULE_CALL_STACK,
        Kind.ACTIVATION,
        (F.outside, F.in_module, F.meets_backward, Not(F.is_long_lived), Not(F.is_last_layers)),
    ),
    Rule(Evidence.ALIVE_AT_END, Kind.ACTIVATION, (F.is_kept_by_forward, Not(F.stack_made_temporaries))),
    Rule(Evidence.IN_FLIGHT, Kind.TEMPORARY, (F.is_in_flight,)),
    Rule(Evidence.FROZEN_SET, Kind.PARAMETER, (F.is_frozen_set,)),
    Rule(Evidence.ONE_SET_OF_SIZES, Kind.PARAMETER, (F.has_only_forward, F.is_one_set)),
)
RULES: Final[tuple[Rule[F], ...]] = (*PROOFS, *LIKELY, Rule(Evidence.UNPROVED, Kind.UNKNOWN))
