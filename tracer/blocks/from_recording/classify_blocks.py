"""Rules for the kind and the evidence of each block of a recording: an ordered table, whose first rule that holds wins.

The strongest evidence comes first: that a live, named tensor lay at the block's address; then what autograd itself did
with it; then torch's data flow, unless the block's life contradicts it; then the block's life alone.

Shapes: B blocks.
"""

from __future__ import annotations

from tracer.blocks.from_recording.block_facts import Facts
from tracer.blocks.kinds import Evidence, Kind
from tracer.blocks.rules import AnyOf, Not, Rule

F = Facts
RULES: tuple[Rule[F], ...] = (
    # A model may be called with what the program has computed, and the batch of an earlier step is none any more. The
    # indices of a sparse gradient may be the batch itself. A module has what FSDP gathers as its parameters only for a
    # while.
    Rule(
        Evidence.HELD_OBJECT,
        F.kind_of_role,
        (
            F.was_named,
            AnyOf(Not(F.is_observed_batch), Not(F.is_over)),
            AnyOf(Not(F.is_observed_argument), Not(F.is_computed)),
            AnyOf(Not(F.is_observed_gradient), Not(F.is_source)),
            AnyOf(Not(F.is_parameter_or_argument), Not(F.in_collective)),
        ),
    ),
    Rule(Evidence.OF_COLLECTIVE, Kind.COMMUNICATION, (F.in_collective,)),
    Rule(Evidence.LIBRARY_STATE, Kind.WORKSPACE, (F.is_dropout_state,)),
    Rule(Evidence.HELD_BY_GRAPH, Kind.ACTIVATION, (F.was_saved_before,)),
    Rule(Evidence.LIBRARY, Kind.WORKSPACE, (F.is_librarys, Not(F.has_tensor))),
    # Storages from before, by torch's data flow: it names parameters only where nothing else names any.
    Rule(
        Evidence.DATA_FLOW,
        Kind.PARAMETER,
        (F.not_seen_made, F.torch_says_parameter, F.names_no_parameter, Not(F.is_made_unseen)),
    ),
    Rule(Evidence.DATA_FLOW, Kind.INPUT, (F.not_seen_made, F.torch_says_input, F.is_target, Not(F.is_over))),
    # Buckets that a communication hook or another mode of Python's has seen have a tensor of Python's, as C++ keeps it.
    Rule(Evidence.GIVEN_TO_REDUCER, Kind.COMMUNICATION, (F.is_given_to_reducer, F.has_no_role)),
    Rule(Evidence.UNSEEN_SAVED, Kind.ACTIVATION, (F.is_made_unseen, F.used_by_backward)),
    Rule(Evidence.UNSEEN, Kind.UNKNOWN, (F.is_made_unseen,)),
    Rule(Evidence.COMPILED_RECOMPUTED, Kind.ACTIVATION, (F.is_recomputed_by_compiled,)),
    Rule(Evidence.COMPILED_TAKEN_OVER, F.kind_of_gradient, (F.is_taken_over_by_compiled,)),
    Rule(Evidence.COMPILED_SAVED, Kind.ACTIVATION, (F.is_saved_by_compiled,)),
    Rule(Evidence.LISTED, F.kind_of_category, (F.is_listed, AnyOf(F.not_seen_made, F.in_loop))),
    Rule(Evidence.REACHED, Kind.HELD, (F.is_reached,)),
    Rule(Evidence.SEEN_BEFORE, Kind.BEFORE_RECORDING, (F.not_seen_made,)),
    # Results of the operator that failed are no workspace: rules below say what they would have been.
    Rule(
        Evidence.NO_TENSOR,
        Kind.WORKSPACE,
        (Not(F.has_tensor), F.freed_by_maker, Not(F.is_compiled_buffer), F.knows_uses, Not(F.is_unfinished)),
    ),
    # Where no uses are recorded, no tensor was seen either: a tensor inside of the operator, or scratch memory.
    Rule(Evidence.FREED_BY_MAKER, Kind.TEMPORARY, (F.freed_by_maker, Not(F.knows_uses))),
    Rule(Evidence.ACCUMULATED, Kind.GRADIENT, (F.in_backward, F.is_gradient)),
    Rule(Evidence.RECOMPUTED, Kind.ACTIVATION, (F.in_backward, F.is_recomputed)),
    Rule(Evidence.LATER_BACKWARD, Kind.ACTIVATION, (F.in_backward, F.used_by_later_backward)),
    # Without uses, as in a trace from elsewhere.
    Rule(Evidence.FREED_BY_ZERO_GRAD, Kind.GRADIENT, (F.in_backward, Not(F.knows_uses), F.freed_by_zero_grad)),
    Rule(
        Evidence.BACKWARD_TO_STEP,
        Kind.GRADIENT,
        (F.in_backward, Not(F.knows_uses), F.meets_step, F.is_of_gradients_size),
    ),
    Rule(Evidence.MADE_IN_BACKWARD, Kind.AUTOGRAD_DETAIL, (F.in_backward,)),
    # In a step that failed: what it has made and its state has not.
    Rule(Evidence.WITHIN_FAILED_STEP, Kind.TEMPORARY, (F.in_optimizer, F.is_of_failed_optimizer)),
    Rule(Evidence.OPTIMIZER_KEPT, Kind.OPTIMIZER_STATE, (F.in_optimizer, F.outlived_step)),
    Rule(Evidence.WITHIN_OPTIMIZER, Kind.TEMPORARY, (F.in_optimizer,)),
    # From here on it was made in forward or by the loop.
    Rule(
        Evidence.FROM_OUTSIDE,
        Kind.INPUT,
        (F.is_source, AnyOf(F.torch_says_input, F.used_by_backward), Not(F.is_over), Not(F.is_compiled_buffer)),
    ),
    Rule(
        Evidence.SAVED,
        Kind.ACTIVATION,
        (AnyOf(F.used_by_backward, F.in_forward), AnyOf(F.used_by_backward, F.freed_in_backward)),
    ),
    Rule(Evidence.WITHOUT_GRAD, Kind.EVALUATION, (F.in_forward, F.is_without_grad)),
    Rule(Evidence.HELD_AS_IT_FAILED, Kind.HELD, (F.awaits_backward, F.is_held_alone)),
    # Its step failed before a backward came to it: nothing that happens later can tell that.
    Rule(Evidence.AWAITS_BACKWARD, Kind.ACTIVATION, (F.in_forward, F.awaits_backward)),
    Rule(Evidence.WITHIN_FORWARD, Kind.TEMPORARY, (F.in_forward, F.went_back, Not(F.outlived_backward))),
    # An output of the model's, or a loss: whether backward also used it, a trace does not say.
    Rule(
        Evidence.KEPT_BEHIND_BACKWARD,
        Kind.UNKNOWN,
        (F.in_forward, F.went_back, Not(F.knows_uses), Not(F.outlived_step), F.is_past_release),
    ),
    Rule(
        Evidence.FREED_BEHIND_BACKWARD,
        Kind.ACTIVATION,
        (F.in_forward, F.went_back, Not(F.knows_uses), Not(F.outlived_step)),
    ),
    Rule(Evidence.HELD_AFTER_BACKWARD, Kind.HELD, (F.in_forward, F.went_back)),
    Rule(Evidence.NO_BACKWARD_YET, Kind.ACTIVATION, (F.in_forward,)),
    Rule(Evidence.AROUND_BACKWARD, Kind.INPUT, (Not(F.knows_uses), F.outlived_backward, Not(F.outlived_step))),
    # `for batch in loader` keeps the old one until there is a new one.
    Rule(Evidence.UNTIL_NEXT_BATCH, Kind.INPUT, (Not(F.knows_uses), F.is_replaced)),
    Rule(Evidence.AWAITS_BACKWARD, Kind.ACTIVATION, (F.awaits_backward, F.made_with_grad)),
    Rule(Evidence.WITHIN_LOOP, Kind.TEMPORARY, (F.freed_in_loop, Not(F.outlived_step))),
    Rule(Evidence.OUTSIDE, Kind.HELD),
)
