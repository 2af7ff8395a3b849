"""The table of rules: an example for each, none of which survives without its rule; no two rules can change places."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.blocks.rule_examples import RuleExamples
from tests.rule_tables import facts_named, told
from tests.training_steps import Recorded, each_workload
from tracer.answers.peak import peak_position
from tracer.blocks.from_recording.block_facts import NONE, Facts
from tracer.blocks.from_recording.blocks import categories_at
from tracer.blocks.from_recording.classify_blocks import RULES
from tracer.blocks.from_recording.torch_categories import Category
from tracer.blocks.kinds import Evidence, Kind
from tracer.blocks.table import Phase
from tracer.capture.objects.known_storages import Role

# What follows of a number such as a role.
OBSERVED = ("has_no_role", "was_named", "was_saved_before", "is_librarys")
BATCHES = ("is_observed_batch", "is_observed_argument", "is_observed_gradient", "is_parameter_or_argument")
MADE = ("not_seen_made", "in_forward", "in_backward", "in_optimizer", "in_loop")
FREED = ("freed_in_backward", "freed_in_loop")
TORCHS = ("torch_says_parameter", "torch_says_input")
# A block that no rule knows but the last: made outside of all phases, and alive at the end.
PLAIN: dict[str, Any] = {
    **dict.fromkeys(facts_named(RULES) - {*OBSERVED, *BATCHES, *MADE, *FREED, *TORCHS}, False),
    **dict.fromkeys(("is_trained", "is_gradient"), False),
    **dict.fromkeys(("outlived_step", "has_tensor", "knows_uses"), True),
    "role": NONE,
    "made": Phase.OTHER,
    "freed": NONE,
    "category": Category.UNTAGGED,
}
BEFORE = {"made": NONE}
FORWARD, BACKWARD, OPTIMIZER = {"made": Phase.FORWARD}, {"made": Phase.BACKWARD}, {"made": Phase.OPTIMIZER}
INPUT = {"category": Category.INPUT}
TRAINED = {**FORWARD, "went_back": True}
# Of a trace, which does not say what used a tensor; and what backward left for the optimizer, as gradients are.
BEHIND = {"freed": Phase.OTHER, "outlived_backward": True, "outlived_step": False}
TRACED, LEFT = {"knows_uses": False}, {"meets_step": True, "is_of_gradients_size": True}


def facts(*blocks: dict[str, Any]) -> Facts:
    rows = [{**PLAIN, **block} for block in blocks]
    return told(
        Facts,
        {
            name: np.array([int(row[name]) for row in rows], bool if isinstance(plain, bool) else np.int64)
            for name, plain in PLAIN.items()
        },
    )


# One row per rule, in the table's order: blocks that this rule decides, and what they are.
EXAMPLES: tuple[tuple[Any, ...], ...] = (
    (
        Evidence.HELD_OBJECT,
        ({"role": Role.PARAMETER}, Kind.PARAMETER),
        ({"role": Role.BUFFER}, Kind.BUFFER),
        ({"role": Role.GRADIENT, **FORWARD}, Kind.GRADIENT),
        ({"role": Role.OPTIMIZER_STATE, "category": Category.TEMPORARY}, Kind.OPTIMIZER_STATE),
        ({"role": Role.INPUT, **BEFORE}, Kind.INPUT),
        # Somebody said that it is the batch, whatever it was computed from.
        ({"role": Role.INPUT, "is_computed": True}, Kind.INPUT),
        ({"role": Role.INPUT, **BEFORE, "is_source": True}, Kind.INPUT),
        # numpy made it in the step, and the model is called with it.
        ({"role": Role.ARGUMENT, **BEFORE, "is_made_unseen": True}, Kind.INPUT),
        ({"role": Role.ARGUMENT, "used_by_backward": True}, Kind.INPUT),
        # What FSDP reduced gradients to is the gradient of its shard; a view of DDP's bucket is one too.
        ({"role": Role.GRADIENT, **BACKWARD, "in_collective": True}, Kind.GRADIENT),
        # A leaf of nobody's is a parameter if it is trained, else points at which something is asked to hold.
        ({"role": Role.LEAF, **BEFORE, "is_trained": True, "is_over": True}, Kind.PARAMETER),
        ({"role": Role.LEAF, **BEFORE}, Kind.INPUT),
    ),
    (
        Evidence.OF_COLLECTIVE,
        ({**FORWARD, "in_collective": True, "freed": Phase.BACKWARD}, Kind.COMMUNICATION),
        # A module has what FSDP has gathered as its parameters, and what another stage has sent as its argument.
        ({**FORWARD, "in_collective": True, "role": Role.PARAMETER}, Kind.COMMUNICATION),
        ({"in_collective": True, "role": Role.ARGUMENT}, Kind.COMMUNICATION),
        # A module lists what FSDP has gathered as its parameters.
        ({"in_collective": True, "is_listed": True, "category": Category.PARAMETER}, Kind.COMMUNICATION),
        ({**BACKWARD, "in_collective": True}, Kind.COMMUNICATION),
        # The weights of a recurrent layer, which FSDP gathers as bytes.
        ({**FORWARD, "in_collective": True, "is_dropout_state": True}, Kind.COMMUNICATION),
        # A graph from before the recording keeps what was gathered for it.
        ({**FORWARD, "in_collective": True, "role": Role.SAVED}, Kind.COMMUNICATION),
    ),
    (
        Evidence.LIBRARY_STATE,
        # Used beside parameters, as a batch is.
        ({**BEFORE, **INPUT, "is_target": True, "is_dropout_state": True}, Kind.WORKSPACE),
        ({"role": Role.SAVED, **BEFORE, "is_dropout_state": True}, Kind.WORKSPACE),
    ),
    (
        Evidence.HELD_BY_GRAPH,
        ({"role": Role.SAVED, **BEFORE}, Kind.ACTIVATION),
        ({"role": Role.SAVED, **BEFORE, "is_made_unseen": True, "used_by_backward": True}, Kind.ACTIVATION),
    ),
    (
        Evidence.LIBRARY,
        ({"role": Role.WORKSPACE, **BEFORE, "has_tensor": False}, Kind.WORKSPACE),
        ({"role": Role.WORKSPACE, **FORWARD, "has_tensor": False}, Kind.WORKSPACE),
        # As large as a tensor that an operator uses, which NEARLY has.
        ({"role": Role.WORKSPACE, **FORWARD, "used_by_backward": True, "has_tensor": False}, Kind.WORKSPACE),
    ),
    (Evidence.DATA_FLOW, ({**BEFORE, "category": Category.PARAMETER, "names_no_parameter": True}, Kind.PARAMETER)),
    (
        Evidence.DATA_FLOW,
        ({**BEFORE, **INPUT, "is_target": True}, Kind.INPUT),
        ({**BEFORE, **INPUT, "is_target": True}, Kind.INPUT),
        # numpy's, as a target.
        ({**BEFORE, **INPUT, "is_target": True, "is_made_unseen": True, "used_by_backward": True}, Kind.INPUT),
    ),
    (
        Evidence.GIVEN_TO_REDUCER,
        # A communication hook has seen it, and C++ keeps its tensor of Python's.
        ({**BEFORE, "is_given_to_reducer": True, "is_reached": True}, Kind.COMMUNICATION),
        # Nobody has seen it.
        ({**BEFORE, "is_given_to_reducer": True}, Kind.COMMUNICATION),
        (
            {**BEFORE, "is_given_to_reducer": True, "is_made_unseen": True, "used_by_backward": True},
            Kind.COMMUNICATION,
        ),
    ),
    (Evidence.UNSEEN_SAVED, ({**BEFORE, "is_made_unseen": True, "used_by_backward": True, **INPUT}, Kind.ACTIVATION)),
    (
        Evidence.UNSEEN,
        ({**BEFORE, "is_made_unseen": True}, Kind.UNKNOWN),
        # torch takes what another thread has made for an input.
        ({**BEFORE, "is_made_unseen": True, **INPUT}, Kind.UNKNOWN),
        # It was made during the recording: no weight of a model from before.
        (
            {**BEFORE, "is_made_unseen": True, "category": Category.PARAMETER, "names_no_parameter": True},
            Kind.UNKNOWN,
        ),
        ({**BEFORE, "is_made_unseen": True, "category": Category.GRADIENT, "is_listed": True}, Kind.UNKNOWN),
        ({**BEFORE, "is_made_unseen": True, "is_taken_over_by_compiled": True}, Kind.UNKNOWN),
        ({**BEFORE, "is_made_unseen": True, "is_recomputed_by_compiled": True}, Kind.UNKNOWN),
    ),
    (
        Evidence.COMPILED_RECOMPUTED,
        ({**BACKWARD, "is_recomputed_by_compiled": True}, Kind.ACTIVATION),
        # Also where the compiled backward puts it into memory of forward's.
        ({**FORWARD, "is_recomputed_by_compiled": True, "is_taken_over_by_compiled": True}, Kind.ACTIVATION),
    ),
    (
        Evidence.COMPILED_TAKEN_OVER,
        ({**FORWARD, "is_taken_over_by_compiled": True, "used_by_backward": True}, Kind.AUTOGRAD_DETAIL),
        ({**FORWARD, "is_taken_over_by_compiled": True, "is_saved_by_compiled": True}, Kind.AUTOGRAD_DETAIL),
        # Backward has put the gradient of a parameter there.
        ({**FORWARD, "is_taken_over_by_compiled": True, "is_gradient": True}, Kind.GRADIENT),
    ),
    (
        Evidence.COMPILED_SAVED,
        ({**FORWARD, "is_saved_by_compiled": True, "has_tensor": False}, Kind.ACTIVATION),
        ({"is_saved_by_compiled": True, "is_listed": True, "category": Category.PARAMETER}, Kind.ACTIVATION),
        ({**FORWARD, "is_saved_by_compiled": True}, Kind.ACTIVATION),
        # A compiled step function is called outside of all modules.
        ({"is_saved_by_compiled": True, "freed": Phase.OTHER, "outlived_step": False}, Kind.ACTIVATION),
    ),
    (
        Evidence.LISTED,
        ({**BEFORE, "category": Category.PARAMETER, "is_listed": True}, Kind.PARAMETER),
        ({"category": Category.PARAMETER, "is_listed": True}, Kind.PARAMETER),
        ({**BEFORE, "category": Category.OPTIMIZER_STATE, "is_listed": True}, Kind.OPTIMIZER_STATE),
        ({**BEFORE, "category": Category.PARAMETER, "is_listed": True, "is_reached": True}, Kind.PARAMETER),
    ),
    (
        Evidence.REACHED,
        ({**BEFORE, **INPUT, "is_reached": True}, Kind.HELD),
        # A metric that the program has reduced over all ranks.
        ({**BEFORE, "is_reached": True}, Kind.HELD),
    ),
    (
        Evidence.SEEN_BEFORE,
        (BEFORE, Kind.BEFORE_RECORDING),
        # A data set, of which batches are taken.
        ({**BEFORE, **INPUT}, Kind.BEFORE_RECORDING),
        # A queue of keys beside the network: torch's data flow takes it for a parameter.
        ({**BEFORE, "category": Category.PARAMETER}, Kind.BEFORE_RECORDING),
        # The batch of an earlier step.
        ({**BEFORE, "role": Role.ARGUMENT, "is_over": True}, Kind.BEFORE_RECORDING),
    ),
    (
        Evidence.NO_TENSOR,
        ({**FORWARD, "freed": Phase.FORWARD, "has_tensor": False, "freed_by_maker": True}, Kind.WORKSPACE),
        # AccumulateGrad's own scratch memory is no gradient.
        (
            {**BACKWARD, "freed": Phase.BACKWARD, "has_tensor": False, "freed_by_maker": True, "is_gradient": True},
            Kind.WORKSPACE,
        ),
    ),
    (
        Evidence.FREED_BY_MAKER,
        (
            {
                **FORWARD,
                "has_tensor": False,
                "freed_by_maker": True,
                "freed": Phase.FORWARD,
                "is_without_grad": True,
                "knows_uses": False,
            },
            Kind.TEMPORARY,
        ),
        # In backward it may be a gradient of an activation, and nothing shows it.
        (
            {**BACKWARD, "has_tensor": False, "freed_by_maker": True, "freed": Phase.BACKWARD, "knows_uses": False},
            Kind.TEMPORARY,
        ),
    ),
    (Evidence.ACCUMULATED, ({**BACKWARD, "is_gradient": True, "is_recomputed": True, **INPUT}, Kind.GRADIENT)),
    (
        Evidence.RECOMPUTED,
        ({**BACKWARD, "is_recomputed": True, "category": Category.AUTOGRAD_DETAIL}, Kind.ACTIVATION),
        ({**BACKWARD, "is_recomputed": True, "used_by_later_backward": True}, Kind.ACTIVATION),
    ),
    (Evidence.LATER_BACKWARD, ({**BACKWARD, "used_by_later_backward": True}, Kind.ACTIVATION)),
    (
        Evidence.FREED_BY_ZERO_GRAD,
        ({**BACKWARD, **TRACED, "freed_by_zero_grad": True}, Kind.GRADIENT),
        ({**BACKWARD, **TRACED, **LEFT, "freed_by_zero_grad": True}, Kind.GRADIENT),
    ),
    (Evidence.BACKWARD_TO_STEP, ({**BACKWARD, **TRACED, **LEFT}, Kind.GRADIENT)),
    (
        Evidence.MADE_IN_BACKWARD,
        (BACKWARD, Kind.AUTOGRAD_DETAIL),
        # What compiled code makes on its way through backward, no operator is given.
        (
            {**BACKWARD, "has_tensor": False, "freed_by_maker": True, "is_compiled_buffer": True},
            Kind.AUTOGRAD_DETAIL,
        ),
        # Siblings are one kind, whichever of them torch saw one node make and free.
        ({**BACKWARD, "category": Category.TEMPORARY}, Kind.AUTOGRAD_DETAIL),
        ({**BACKWARD, "category": Category.GRADIENT}, Kind.AUTOGRAD_DETAIL),
        ({**BACKWARD, **INPUT, "is_source": True}, Kind.AUTOGRAD_DETAIL),
        ({**BACKWARD, "used_by_backward": True}, Kind.AUTOGRAD_DETAIL),
    ),
    (Evidence.WITHIN_FAILED_STEP, ({**OPTIMIZER, "is_of_failed_optimizer": True}, Kind.TEMPORARY)),
    (
        Evidence.OPTIMIZER_KEPT,
        (OPTIMIZER, Kind.OPTIMIZER_STATE),
        ({**OPTIMIZER, "freed": Phase.OPTIMIZER}, Kind.OPTIMIZER_STATE),
    ),
    (
        Evidence.WITHIN_OPTIMIZER,
        ({**OPTIMIZER, "freed": Phase.OPTIMIZER, "outlived_step": False}, Kind.TEMPORARY),
        ({**OPTIMIZER, "freed": Phase.BACKWARD, "outlived_step": False, **INPUT}, Kind.TEMPORARY),
        ({**OPTIMIZER, "outlived_step": False, **INPUT, "is_source": True}, Kind.TEMPORARY),
    ),
    (
        Evidence.FROM_OUTSIDE,
        ({**INPUT, "is_source": True}, Kind.INPUT),
        # The loss's backward uses its target; torch.func leaves no gradient that it could lead to.
        ({"is_source": True, "used_by_backward": True}, Kind.INPUT),
        # The indices of a sparse gradient are the batch.
        ({"role": Role.GRADIENT, "is_source": True, "used_by_backward": True}, Kind.INPUT),
        ({**INPUT, "is_source": True, **FORWARD, "used_by_backward": True}, Kind.INPUT),
    ),
    (
        Evidence.SAVED,
        ({**FORWARD, "freed": Phase.BACKWARD}, Kind.ACTIVATION),
        ({**FORWARD, "used_by_backward": True, "freed": Phase.OPTIMIZER}, Kind.ACTIVATION),
        # Noise that the loop has added to the batch: the model is called with it, and it is not the batch.
        ({"role": Role.ARGUMENT, "is_computed": True, "used_by_backward": True, **INPUT}, Kind.ACTIVATION),
        # Made in forward contradicts a gradient, whichever storages share its id.
        ({**FORWARD, "used_by_backward": True, "category": Category.GRADIENT}, Kind.ACTIVATION),
        # A teacher's output is kept for the student's backward.
        ({**FORWARD, "used_by_backward": True, "is_without_grad": True}, Kind.ACTIVATION),
    ),
    (
        Evidence.WITHOUT_GRAD,
        ({**FORWARD, "is_without_grad": True}, Kind.EVALUATION),
        ({**FORWARD, "is_without_grad": True, "category": Category.ACTIVATION}, Kind.EVALUATION),
        # The cache of generate().
        (
            {**FORWARD, "role": Role.ARGUMENT, "is_computed": True, "is_without_grad": True, **INPUT},
            Kind.EVALUATION,
        ),
        ({**TRAINED, "is_without_grad": True, "freed": Phase.FORWARD}, Kind.EVALUATION),
        # A teacher's output, in a step that failed.
        ({**TRAINED, "is_without_grad": True, "awaits_backward": True}, Kind.EVALUATION),
    ),
    # Logits that a variable keeps, and what the loop has made of them.
    (
        Evidence.HELD_AS_IT_FAILED,
        ({**TRAINED, "awaits_backward": True, "is_held_alone": True}, Kind.HELD),
        ({"awaits_backward": True, "made_with_grad": True, "is_held_alone": True}, Kind.HELD),
    ),
    (
        Evidence.AWAITS_BACKWARD,
        # What nobody but the graph has, and what went as the exception passed.
        ({**TRAINED, "awaits_backward": True}, Kind.ACTIVATION),
        ({**TRAINED, "awaits_backward": True, "freed": Phase.FORWARD}, Kind.ACTIVATION),
    ),
    (
        Evidence.WITHIN_FORWARD,
        ({**TRAINED, "freed": Phase.FORWARD}, Kind.TEMPORARY),
        ({**TRAINED, "freed": Phase.FORWARD, "knows_uses": False, "outlived_step": False}, Kind.TEMPORARY),
        # A spectrum: torch says parameter, and it is made and freed in a step.
        ({**TRAINED, "freed": Phase.FORWARD, "category": Category.PARAMETER}, Kind.TEMPORARY),
        ({**TRAINED, "freed": Phase.OTHER, "category": Category.ACTIVATION}, Kind.TEMPORARY),
    ),
    (Evidence.KEPT_BEHIND_BACKWARD, ({**TRAINED, **TRACED, **BEHIND, "is_past_release": True}, Kind.UNKNOWN)),
    # A transform of torch.func is a backward pass of which no use is recorded.
    (Evidence.FREED_BEHIND_BACKWARD, ({**TRAINED, **TRACED, **BEHIND}, Kind.ACTIVATION)),
    (
        Evidence.HELD_AFTER_BACKWARD,
        ({**TRAINED, "outlived_backward": True}, Kind.HELD),
        ({**TRAINED, "outlived_backward": True, "knows_uses": False}, Kind.HELD),
        # A clone that a hook keeps.
        ({**TRAINED, "outlived_backward": True, "category": Category.ACTIVATION}, Kind.HELD),
        ({**TRAINED, "outlived_backward": True, "freed": Phase.FORWARD}, Kind.HELD),
    ),
    (
        Evidence.NO_BACKWARD_YET,
        (FORWARD, Kind.ACTIVATION),
        ({**FORWARD, "freed": Phase.OTHER, "outlived_step": False}, Kind.ACTIVATION),
        # Of a call that the backward around it did not go back to: a teacher's.
        (
            {
                **FORWARD,
                "freed": Phase.OTHER,
                "knows_uses": False,
                "outlived_backward": True,
                "outlived_step": False,
            },
            Kind.ACTIVATION,
        ),
    ),
    (
        Evidence.AROUND_BACKWARD,
        ({"knows_uses": False, "freed": Phase.OTHER, "outlived_backward": True, "outlived_step": False}, Kind.INPUT),
    ),
    (Evidence.UNTIL_NEXT_BATCH, ({**TRACED, "freed": Phase.OTHER, "is_replaced": True}, Kind.INPUT)),
    (
        Evidence.AWAITS_BACKWARD,
        ({"awaits_backward": True, "made_with_grad": True}, Kind.ACTIVATION),
        (
            {"awaits_backward": True, "made_with_grad": True, "freed": Phase.OTHER, "outlived_step": False},
            Kind.ACTIVATION,
        ),
    ),
    (Evidence.WITHIN_LOOP, ({"freed": Phase.OTHER, "outlived_step": False}, Kind.TEMPORARY)),
    (
        Evidence.OUTSIDE,
        ({}, Kind.HELD),
        ({"freed": Phase.FORWARD, "is_gradient": True}, Kind.HELD),
        ({"freed": Phase.OTHER}, Kind.HELD),
    ),
)


# Blocks that lack one condition of a rule, and what they are instead.
NEARLY: tuple[tuple[dict[str, Any], Kind, Evidence], ...] = (
    ({"category": Category.PARAMETER, "names_no_parameter": True}, Kind.HELD, Evidence.OUTSIDE),
    # An output that is kept, where uses are known; one that is kept over the step; and what was freed in forward.
    ({**TRAINED, **BEHIND, "is_past_release": True}, Kind.HELD, Evidence.HELD_AFTER_BACKWARD),
    (
        {**TRAINED, **TRACED, **BEHIND, "outlived_step": True, "is_past_release": True},
        Kind.HELD,
        Evidence.HELD_AFTER_BACKWARD,
    ),
    (
        {**FORWARD, **TRACED, "freed": Phase.FORWARD, "outlived_step": False, "is_past_release": True},
        Kind.ACTIVATION,
        Evidence.NO_BACKWARD_YET,
    ),
    ({"went_back": True, **TRACED, **BEHIND, "is_past_release": True}, Kind.INPUT, Evidence.AROUND_BACKWARD),
    # A batch that training did not use, as far as uses are known.
    ({"freed": Phase.OTHER, "is_replaced": True}, Kind.HELD, Evidence.OUTSIDE),
    # What AccumulateGrad was not given is no gradient, where uses are known.
    ({**BACKWARD, "freed_by_zero_grad": True}, Kind.AUTOGRAD_DETAIL, Evidence.MADE_IN_BACKWARD),
    ({**BACKWARD, **LEFT}, Kind.AUTOGRAD_DETAIL, Evidence.MADE_IN_BACKWARD),
    # What a hook keeps, of another size; and what is as large as a gradient, and gone before the step.
    ({**BACKWARD, **TRACED, "meets_step": True}, Kind.AUTOGRAD_DETAIL, Evidence.MADE_IN_BACKWARD),
    ({**BACKWARD, **TRACED, "is_of_gradients_size": True}, Kind.AUTOGRAD_DETAIL, Evidence.MADE_IN_BACKWARD),
    # Gradients that were there before are from before; what forward or the optimizer makes is none.
    ({**BEFORE, **TRACED, "freed_by_zero_grad": True}, Kind.BEFORE_RECORDING, Evidence.SEEN_BEFORE),
    ({**OPTIMIZER, **TRACED, **LEFT}, Kind.OPTIMIZER_STATE, Evidence.OPTIMIZER_KEPT),
    ({**OPTIMIZER, **TRACED, "freed_by_zero_grad": True}, Kind.OPTIMIZER_STATE, Evidence.OPTIMIZER_KEPT),
    ({**BEFORE, "names_no_parameter": True}, Kind.BEFORE_RECORDING, Evidence.SEEN_BEFORE),
    ({**INPUT, "is_target": True}, Kind.HELD, Evidence.OUTSIDE),
    ({**BEFORE, "is_target": True}, Kind.BEFORE_RECORDING, Evidence.SEEN_BEFORE),
    ({"role": Role.WORKSPACE, **FORWARD, "used_by_backward": True}, Kind.ACTIVATION, Evidence.SAVED),
    # The targets of an earlier step.
    ({**BEFORE, **INPUT, "is_target": True, "is_over": True}, Kind.BEFORE_RECORDING, Evidence.SEEN_BEFORE),
    # The batch of an earlier step.
    ({**BEFORE, "role": Role.ARGUMENT, "is_over": True}, Kind.BEFORE_RECORDING, Evidence.SEEN_BEFORE),
    ({"role": Role.GRADIENT, **BEFORE, "is_given_to_reducer": True}, Kind.GRADIENT, Evidence.HELD_OBJECT),
    # A leaf's, which nobody trains.
    (
        {**BEFORE, "role": Role.LEAF, "is_over": True, "is_given_to_reducer": True},
        Kind.BEFORE_RECORDING,
        Evidence.SEEN_BEFORE,
    ),
    # A module's parameters are not made in its call.
    ({**FORWARD, "is_listed": True, "category": Category.PARAMETER}, Kind.ACTIVATION, Evidence.NO_BACKWARD_YET),
    ({**FORWARD, "freed": Phase.FORWARD, "freed_by_maker": True}, Kind.ACTIVATION, Evidence.NO_BACKWARD_YET),
    ({**FORWARD, "has_tensor": False}, Kind.ACTIVATION, Evidence.NO_BACKWARD_YET),
    ({"is_recomputed": True}, Kind.HELD, Evidence.OUTSIDE),
    ({"used_by_later_backward": True}, Kind.HELD, Evidence.OUTSIDE),
    # Data that training did not use, or no longer uses, or that compiled code made.
    ({"is_source": True}, Kind.HELD, Evidence.OUTSIDE),
    ({**INPUT, "is_source": True, "is_over": True}, Kind.HELD, Evidence.OUTSIDE),
    ({**INPUT, "is_source": True, "is_compiled_buffer": True}, Kind.HELD, Evidence.OUTSIDE),
    ({"freed": Phase.BACKWARD}, Kind.HELD, Evidence.OUTSIDE),
    ({"is_without_grad": True}, Kind.HELD, Evidence.OUTSIDE),
    ({"went_back": True}, Kind.HELD, Evidence.OUTSIDE),
    (
        {"went_back": True, "knows_uses": False, "outlived_backward": True, "outlived_step": False},
        Kind.INPUT,
        Evidence.AROUND_BACKWARD,
    ),
    (
        {**TRAINED, "freed": Phase.OTHER, "outlived_backward": True, "outlived_step": False},
        Kind.HELD,
        Evidence.HELD_AFTER_BACKWARD,
    ),
    (
        {"went_back": True, "freed": Phase.OTHER, "outlived_backward": True, "outlived_step": False},
        Kind.TEMPORARY,
        Evidence.WITHIN_LOOP,
    ),
    # What an earlier backward had come to.
    ({**TRAINED, "freed": Phase.FORWARD, "is_held_alone": True}, Kind.TEMPORARY, Evidence.WITHIN_FORWARD),
    # In a step that failed: a result without a graph, one with a graph of before, and what the loop has made.
    ({"awaits_backward": True}, Kind.HELD, Evidence.OUTSIDE),
    ({"made_with_grad": True}, Kind.HELD, Evidence.OUTSIDE),
    ({"is_of_failed_optimizer": True}, Kind.HELD, Evidence.OUTSIDE),
    # Results of the operator that failed, such as those of a foreach operator that made only some of them.
    (
        {**OPTIMIZER, "has_tensor": False, "freed_by_maker": True, "is_unfinished": True, "outlived_step": False},
        Kind.TEMPORARY,
        Evidence.WITHIN_OPTIMIZER,
    ),
    (
        {**BACKWARD, "has_tensor": False, "freed_by_maker": True, "is_unfinished": True},
        Kind.AUTOGRAD_DETAIL,
        Evidence.MADE_IN_BACKWARD,
    ),
    ({"category": Category.ACTIVATION}, Kind.HELD, Evidence.OUTSIDE),
    ({"knows_uses": False, "freed": Phase.OTHER, "outlived_step": False}, Kind.TEMPORARY, Evidence.WITHIN_LOOP),
    ({"knows_uses": False, "outlived_backward": True}, Kind.HELD, Evidence.OUTSIDE),
    ({"freed": Phase.FORWARD, "outlived_step": False}, Kind.HELD, Evidence.OUTSIDE),
)


TABLE = RuleExamples(RULES, facts, tuple((evidence, tuple(blocks)) for evidence, *blocks in EXAMPLES), NEARLY)


def test_each_rule_decides_its_examples_which_are_something_else_without_it() -> None:
    TABLE.check()


def test_without_a_condition_some_block_is_something_else() -> None:
    TABLE.check_conditions()


CHOICES: dict[str, tuple[Any, ...]] = {
    **{name: (False, True) for name, value in PLAIN.items() if isinstance(value, bool)},
    "role": (NONE, *Role),
    "made": (NONE, *Phase),
    "freed": (NONE, *Phase),
    "category": tuple(Category),
}


def drawn_blocks() -> list[dict[str, Any]]:
    """Many blocks, of which some have what two rules want."""
    draw = random.Random(0)
    names = sorted(CHOICES)
    blocks = []
    for _ in range(20_000):
        # Most facts as they mostly are, so that rules that want one or two others find some.
        changed = draw.sample(names, draw.randint(1, 6))
        block = {**PLAIN, **{name: draw.choice(CHOICES[name]) for name in changed}}
        # Who did not see it being made does not know who made it.
        if block["made"] != NONE or not block["freed_by_maker"]:
            blocks.append(block)
    return blocks


def test_neighbours_that_overlap_cannot_change_places_unseen() -> None:
    TABLE.check_order(facts(*drawn_blocks()))


def test_the_text_of_every_evidence_is_another() -> None:
    assert all(evidence.text for evidence in Evidence)
    assert len({evidence.text for evidence in Evidence}) == len(Evidence)


@each_workload
def test_on_every_workload_a_plain_loop_over_the_rules_agrees(name: str, recorded: Callable[[str], Recorded]) -> None:
    cycle = recorded(name).cycles[0]
    peak_ns = int(
        cycle.source.recording.allocations.time_ns[cycle.source.lifetimes.events[peak_position(cycle.source.lifetimes)]]
    )
    columns = (cycle.source.recording, cycle.source.categories, cycle.source.attribution, cycle.source.lifetimes)
    table = Facts(
        *columns,
        categories_at(cycle.source.recording, cycle.source.categories, cycle.source.lifetimes, peak_ns),
        None,
        peak_ns,
    )
    holds, kinds = [rule.holds(table) for rule in RULES], [rule.kinds(table) for rule in RULES]
    for row in range(0, len(table), 7):
        first = next(number for number, rows in enumerate(holds) if rows[row])
        said = kinds[first][row], RULES[first].evidence
        assert said == (cycle.blocks.kind[row], cycle.blocks.evidence[row])


@pytest.mark.parametrize(
    ("names", "block", "true"),
    [
        (OBSERVED, {"role": NONE}, "has_no_role"),
        (OBSERVED, {"role": Role.PARAMETER}, "was_named"),
        (OBSERVED, {"role": Role.SAVED}, "was_saved_before"),
        (OBSERVED, {"role": Role.WORKSPACE}, "is_librarys"),
        (BATCHES, {"role": Role.INPUT}, "is_observed_batch"),
        (BATCHES, {"role": Role.LEAF}, "is_observed_batch"),
        (BATCHES, {"role": Role.LEAF, "is_trained": True}, ""),
        (BATCHES, {"role": Role.ARGUMENT}, "is_observed_batch is_observed_argument is_parameter_or_argument"),
        (BATCHES, {"role": Role.GRADIENT}, "is_observed_gradient"),
        (BATCHES, {"role": Role.PARAMETER}, "is_parameter_or_argument"),
        (MADE, {"made": NONE}, "not_seen_made"),
        (MADE, {"made": Phase.FORWARD}, "in_forward"),
        (MADE, {"made": Phase.BACKWARD}, "in_backward"),
        (MADE, {"made": Phase.OPTIMIZER}, "in_optimizer"),
        (MADE, {"made": Phase.OTHER}, "in_loop"),
        (FREED, {"freed": NONE}, ""),
        (FREED, {"freed": Phase.BACKWARD}, "freed_in_backward"),
        (FREED, {"freed": Phase.OPTIMIZER}, ""),
        (FREED, {"freed": Phase.OTHER}, "freed_in_loop"),
        (TORCHS, {"category": Category.PARAMETER}, "torch_says_parameter"),
        (TORCHS, {"category": Category.INPUT}, "torch_says_input"),
        (TORCHS, {"category": Category.TEMPORARY}, ""),
    ],
)
def test_what_holds_of_a_number(names: tuple[str, ...], block: dict[str, Any], true: str) -> None:
    table = facts(block)
    assert [name for name in names if getattr(table, name)[0]] == true.split()


def test_kinds_of_numbers() -> None:
    assert facts({"role": Role.BUFFER}, {"role": Role.ARGUMENT}).kind_of_role.tolist() == [Kind.BUFFER, Kind.INPUT]
    leaves = facts({"role": Role.LEAF}, {"role": Role.LEAF, "is_trained": True})
    assert leaves.kind_of_role.tolist() == [Kind.INPUT, Kind.PARAMETER]
    categories = facts({"category": Category.GRADIENT}, {"category": Category.UNTAGGED})
    assert categories.kind_of_category.tolist() == [Kind.GRADIENT, Kind.UNKNOWN]
    assert facts({}, {"is_gradient": True}).kind_of_gradient.tolist() == [Kind.AUTOGRAD_DETAIL, Kind.GRADIENT]
