"""The table of rules: an example for each, none of which survives without its rule; no neighbours can be swapped."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from tests.blocks.rule_examples import Block, RuleExamples
from tests.rule_tables import facts_named, told
from tracer.blocks.from_snapshot.block_facts import NONE
from tracer.blocks.from_snapshot.classify_blocks import LIKELY, PROOFS, RULES
from tracer.blocks.from_snapshot.counting import BlockFacts
from tracer.blocks.kinds import Evidence, Kind

# A block of which no rule knows anything: made in the recording by C++ alone, in use at the end.
NUMBERS = ("constructor", "stack_kind")
PLAIN: Block = {
    **dict.fromkeys(facts_named(RULES) - {"outside", "in_constructor", "has_stack_kind"} | {"has_stack"}, False),
    **dict.fromkeys(NUMBERS, NONE),
    **dict.fromkeys(("is_at_end", "has_cpp"), True),
}
GONE = {"is_at_end": False}
BEFORE = {"is_before": True}
OUTSIDE = {"has_stack": True}
MODULE = {**OUTSIDE, "in_module": True}
LOSS = {**OUTSIDE, "in_functional": True}
KEPT = {**MODULE, "is_kept_by_forward": True}
BACKWARD = {"has_stack": True, "in_backward": True}
STEP = {"has_stack": True, "in_optimizer": True}
SILENT = {"is_stackless": True, "has_cpp": False}
SILENT_TWICE = {**SILENT, **GONE, "outlives_stackless_run": True, "freed_stackless": True}
RELEASED = {**GONE, "freed_by_autograd": True}
SAVED_TWICE = {**RELEASED, "freed_as_saved": True, "outlives_backward": True}
UNCLEAR = {**GONE, "may_meet_backward": True}
BRIEF = {**GONE, "is_brief_workspace": True, "has_cpp": False}
HELD = {**UNCLEAR, "meets_backward": True, "meets_step": True}
LET_GO = {**UNCLEAR, "meets_backward": True, "freed_by_program": True}
HELD_OF_FEW = {"meets_backward": True, "meets_step": True, "is_held_of_few": True}
FED = {**OUTSIDE, "is_fed": True}

# One row per rule, in the table's order: blocks that this rule decides, and what they are. What a later rule knows too
# is among them, so that the order is seen.
EXAMPLES: tuple[tuple[Any, ...], ...] = (
    (
        Evidence.WORKSPACE_STACK,
        Kind.WORKSPACE,
        {"in_workspace": True},
        {**STEP, "in_workspace": True, "in_state_setup": True},
    ),
    (
        Evidence.OPTIMIZER_STATE_STACK,
        Kind.OPTIMIZER_STATE,
        {**STEP, "in_state_setup": True},
        {"in_state_setup": True, "in_accumulate": True},
    ),
    (
        Evidence.ACCUMULATE_GRAD_STACK,
        Kind.GRADIENT,
        {**BACKWARD, "in_accumulate": True},
        {**BACKWARD, "in_accumulate": True, "freed_by_zero_grad": True},
    ),
    (
        Evidence.FREED_BY_ZERO_GRAD,
        Kind.GRADIENT,
        {**BACKWARD, **GONE, "freed_by_zero_grad": True},
        {**BEFORE, **GONE, "freed_by_zero_grad": True},
        {**BEFORE, **GONE, "freed_by_zero_grad": True, "data_was_set": True},
        {**SILENT, **GONE, "freed_by_zero_grad": True},
    ),
    (
        Evidence.FREED_BY_DATA_ASSIGNMENT,
        Kind.PARAMETER,
        {**BEFORE, **GONE, "data_was_set": True, "freed_in_step": True},
        {**STEP, **GONE, "data_was_set": True, "outlives_step": True},
        {**OUTSIDE, **GONE, "data_was_set": True, "takes_buffers_place": True},
    ),
    (
        Evidence.REPLACES_BUFFER,
        Kind.BUFFER,
        {**MODULE, "takes_buffers_place": True},
        {**MODULE, **LET_GO, "takes_buffers_place": True},
        {**MODULE, "takes_buffers_place": True, "takes_parameters_place": True},
    ),
    (
        Evidence.REPLACES_BY_LINE,
        Kind.PARAMETER,
        {**MODULE, "takes_parameters_place": True},
        {**MODULE, **LET_GO, "takes_parameters_place": True},
    ),
    (
        Evidence.BACKWARD_TO_STEP,
        Kind.GRADIENT,
        {**BACKWARD, "meets_step": True},
        {**BACKWARD, **GONE, "meets_step": True, "data_was_set": True},
        {**BACKWARD, **STEP, "meets_step": True, "outlives_step": True, "is_replacing": True},
        # What FSDP reduced gradients to becomes the gradient of its shard.
        {**BACKWARD, "in_collective": True, "meets_step": True},
    ),
    (
        Evidence.COLLECTIVE_STACK,
        Kind.COMMUNICATION,
        {**MODULE, "in_collective": True},
        {**BACKWARD, **RELEASED, "in_collective": True},
        # An optimizer that steps inside backward.
        {**STEP, "in_collective": True, "outlives_step": True, "is_replacing": True},
    ),
    (Evidence.REPLACES_PARAMETER, Kind.PARAMETER, {**STEP, "outlives_step": True, "is_replacing": True}),
    (
        Evidence.OUTLIVED_STEP,
        Kind.OPTIMIZER_STATE,
        {**STEP, "outlives_step": True},
        {**STEP, **GONE, "outlives_step": True},
    ),
    (Evidence.WITHIN_STEP, Kind.TEMPORARY, {**STEP, **GONE}),
    (
        Evidence.STEP_STACK_BEFORE,
        Kind.OPTIMIZER_STATE,
        {**STEP, **BEFORE},
        {**STEP, **BEFORE, **GONE, "freed_in_step": True},
        # An optimizer that keeps state in a tensor's .grad: what it made is its own.
        {**STEP, **BEFORE, **GONE, "freed_by_zero_grad": True},
    ),
    (
        Evidence.RELEASED_BY_AUTOGRAD,
        Kind.ACTIVATION,
        {**OUTSIDE, **RELEASED},
        {**OUTSIDE, **RELEASED, "in_module_setup": True, "freed_in_step": True},
    ),
    (
        Evidence.HELD_OVER_BACKWARD,
        Kind.HELD,
        {**MODULE, **LET_GO},
        {**LOSS, **LET_GO},
        {**MODULE, **LET_GO, "in_module_setup": True, "freed_in_step": True},
    ),
    (
        Evidence.RECOMPUTED_STACK,
        Kind.ACTIVATION,
        {**BACKWARD, **RELEASED, "in_module": True},
        {**BACKWARD, **SAVED_TWICE, "in_module": True},
        {**BACKWARD, **RELEASED, "in_recompute": True},
    ),
    (
        Evidence.SAVED_IN_BACKWARD,
        Kind.ACTIVATION,
        {**BACKWARD, **SAVED_TWICE},
        {**BACKWARD, **SAVED_TWICE, "in_parameter_copy": True},
    ),
    (
        Evidence.WITHIN_BACKWARD,
        Kind.TEMPORARY,
        {**BACKWARD, **RELEASED},
        {**BACKWARD, **RELEASED, "in_module_setup": True, "freed_in_step": True},
        {**BACKWARD, **BRIEF, **RELEASED, "has_cpp": True},
        {**BACKWARD, **RELEASED, "has_cpp": False},
    ),
    (
        Evidence.MODULE_SETUP_STACK,
        Kind.PARAMETER,
        {**OUTSIDE, "in_module_setup": True},
        {**OUTSIDE, **GONE, "in_module_setup": True, "freed_in_step": True},
        {**OUTSIDE, **GONE, "in_module_setup": True, "freed_in_step": True, "may_meet_backward": True},
        {**OUTSIDE, **BRIEF, "in_module_setup": True, "freed_in_step": True},
        # The layers of TransformerEncoder are copies of one.
        {**OUTSIDE, "in_module_setup": True, "in_parameter_copy": True},
    ),
    (
        Evidence.COPIED_PARAMETER,
        Kind.PARAMETER,
        {**OUTSIDE, "in_parameter_copy": True},
        # A copy of the best weights so far, which the next takes the place of, and one that is never evaluated.
        {**OUTSIDE, **UNCLEAR, "in_parameter_copy": True},
        {**OUTSIDE, **GONE, "in_parameter_copy": True},
        {**OUTSIDE, **BRIEF, "in_parameter_copy": True},
    ),
    (
        Evidence.WORKSPACE_BRIEF,
        Kind.WORKSPACE,
        {**BRIEF, **OUTSIDE},
        {**BRIEF, "is_stackless": True, "freed_stackless": True},
        {**BRIEF, **BACKWARD, **RELEASED},
    ),
    (Evidence.WORKSPACE_KEPT, Kind.WORKSPACE, {"is_workspace_kept": True}, {**BEFORE, "is_workspace_kept": True}),
    (Evidence.BEFORE_ANY_BACKWARD, Kind.TEMPORARY, {**OUTSIDE, **GONE}, {**MODULE, **GONE, "freed_stackless": True}),
    (
        Evidence.FREED_IN_STEP,
        Kind.OPTIMIZER_STATE,
        {**BEFORE, **GONE, "freed_in_step": True},
        {**BEFORE, **GONE, "freed_in_step": True, "has_cpp": False, "has_size_of_staying": True},
    ),
    (
        Evidence.BACKWARD_STACK_BEFORE,
        Kind.GRADIENT,
        {**BACKWARD, **BEFORE},
        {**BACKWARD, **BEFORE, "stack_kind": Kind.TEMPORARY},
    ),
    (
        Evidence.RELEASED_STACKLESS,
        Kind.ACTIVATION,
        {**OUTSIDE, **GONE, "freed_stackless": True, "may_meet_backward": True},
        {**OUTSIDE, **GONE, "freed_stackless": True, "may_meet_backward": True, "stack_kind": Kind.TEMPORARY},
    ),
    (
        Evidence.STACKLESS_TO_STEP,
        Kind.GRADIENT,
        {**SILENT, "meets_step": True, "is_of_parameters_size": True},
        {**SILENT, **GONE, "meets_step": True, "is_of_parameters_size": True, "freed_stackless": True},
        {**SILENT_TWICE, "meets_step": True, "is_of_parameters_size": True},
    ),
    (Evidence.SAVED_STACKLESS, Kind.ACTIVATION, SILENT_TWICE),
    (Evidence.WITHIN_STACKLESS_RUN, Kind.TEMPORARY, {**SILENT, **GONE, "freed_stackless": True}),
    (
        Evidence.LEFT_BY_BACKWARD,
        Kind.GRADIENT,
        {**BACKWARD, "is_left_by_backward": True},
        {**BACKWARD, "is_left_by_backward": True, "stack_kind": Kind.TEMPORARY},
        {**SILENT, "is_left_by_backward": True},
    ),
    (
        Evidence.SAME_STACK,
        Kind.GRADIENT,
        {"stack_kind": Kind.GRADIENT},
        {**MODULE, "stack_kind": Kind.GRADIENT},
        {**BEFORE, "stack_kind": Kind.GRADIENT, "is_as_many_as_gradients": True},
        {**SILENT, "stack_kind": Kind.GRADIENT},
    ),
    (
        Evidence.GRADIENTS_SIZES,
        Kind.PARAMETER,
        {**BEFORE, "is_as_many_as_gradients": True},
        {**OUTSIDE, "is_as_many_as_gradients": True},
    ),
    (Evidence.SETS_OF_SIZES, Kind.PARAMETER, {**BEFORE, "is_first_set": True}),
    (Evidence.SETS_OF_SIZES, Kind.OPTIMIZER_STATE, {**BEFORE, "is_later_set": True}),
    (Evidence.FED_TO_FORWARD, Kind.INPUT, FED, {**FED, **UNCLEAR, "meets_backward": True}, {**FED, **HELD}),
    (Evidence.KEPT_ALONE, Kind.HELD, {**MODULE, "is_kept_alone": True}, {**KEPT, "is_kept_alone": True}),
    (
        Evidence.HELD_OVER_STEP,
        Kind.HELD,
        {**LOSS, **HELD},
        {**MODULE, **HELD, "is_long_lived": True},
        {**MODULE, **HELD_OF_FEW},
    ),
    (
        Evidence.MODULE_CALL_STACK,
        Kind.ACTIVATION,
        {**MODULE, "meets_backward": True},
        {**MODULE, **UNCLEAR, "meets_backward": True},
        {**MODULE, "meets_backward": True, "meets_step": True},
    ),
    (Evidence.ALIVE_AT_END, Kind.ACTIVATION, KEPT, {**KEPT, "is_long_lived": True}),
    (Evidence.IN_FLIGHT, Kind.TEMPORARY, {**BACKWARD, "is_in_flight": True}),
    (Evidence.FROZEN_SET, Kind.PARAMETER, {**BEFORE, "is_frozen_set": True}),
    (Evidence.ONE_SET_OF_SIZES, Kind.PARAMETER, {**BEFORE, "has_only_forward": True, "is_one_set": True}),
    (
        Evidence.UNPROVED,
        Kind.UNKNOWN,
        {},
        BEFORE,
        OUTSIDE,
        STEP,  # the step may still be running
        BACKWARD,
        {**BEFORE, **GONE, "freed_in_step": True, "has_cpp": False},
        {**SILENT, "meets_step": True},
        {**MODULE, "meets_backward": True, "meets_step": True, "is_long_lived": True},
        {**MODULE, "meets_backward": True, "is_last_layers": True},
        {**STEP, **GONE, **BEFORE, "has_stack": False, "in_optimizer": False, "freed_by_autograd": True},
    ),
)


# Blocks that lack one condition of a rule.
NEARLY: tuple[tuple[Block, Kind, Evidence], ...] = (
    *(
        (block, Kind.UNKNOWN, Evidence.UNPROVED)
        for block in (
            {**OUTSIDE, **UNCLEAR, "freed_by_zero_grad": True},
            {**OUTSIDE, **UNCLEAR, **BRIEF, "has_cpp": True},
            {**OUTSIDE, **UNCLEAR, **BRIEF, "is_brief_workspace": False},
            {**BACKWARD, **BEFORE, **GONE, "meets_step": True},
            {**MODULE, **BEFORE, **RELEASED},
            {**BACKWARD, **GONE, "meets_step": True, "freed_by_program": True},  # a graph that a variable keeps
            {**BEFORE, **SAVED_TWICE},
            {**BACKWARD, **GONE, "in_module": True},
            {**OUTSIDE, **UNCLEAR, "in_module_setup": True},
            {**OUTSIDE, **UNCLEAR, "freed_in_step": True},
            {**BACKWARD, **BEFORE, **GONE},
            {**OUTSIDE, "meets_step": True, "is_of_parameters_size": True},
            {**SILENT, "is_of_parameters_size": True},
            {**BEFORE, **GONE, "freed_stackless": True},
            {**BACKWARD, "in_module": True, "meets_backward": True},
            {**OUTSIDE, "meets_backward": True},
            {**BACKWARD, "in_module": True},
            {**MODULE, **UNCLEAR},
            {**KEPT, "stack_made_temporaries": True},
            MODULE,
            HELD,
            {**OUTSIDE, **LET_GO},
            {**BACKWARD, **LET_GO, "in_module": True},
            {**MODULE, **LET_GO, "meets_backward": False},
            {**FED, **UNCLEAR},
            {**FED, **BEFORE},
            {**FED, "in_module": True},
            {**FED, "in_functional": True},
            {**FED, "constructor": 3},
            {**FED, **UNCLEAR, "meets_backward": True, "in_module_setup": True},
            {**FED, "is_long_lived": True},
            {**FED, "is_of_parameters_size": True},
            {**HELD, "in_functional": True},
            {**OUTSIDE, **HELD},  # a batch, which lives until the next is there
            {**LOSS, "meets_backward": True, "meets_step": True},
            {**LOSS, **HELD, "meets_backward": False},
            {**LOSS, **HELD, "meets_step": False},
            {**LOSS, **HELD, "in_module_setup": True},
            {**LOSS, **HELD, "constructor": 3},
            {**BEFORE, "is_one_set": True},
            {**BEFORE, "has_only_forward": True},
            {**SILENT_TWICE, "freed_stackless": False},  # the result of torch.autograd.grad
            {**BACKWARD, "meets_step": True, "is_of_grad_call": True},
            {**SILENT, "meets_step": True, "is_of_parameters_size": True, "is_of_grad_call": True},
            {**BACKWARD, "is_left_by_backward": True, "is_of_grad_call": True},
        )
    ),
    # What a checkpoint lets go of while it computes again.
    (
        {**BACKWARD, **RELEASED, "in_recompute": True, "freed_in_recompute": True},
        Kind.TEMPORARY,
        Evidence.WITHIN_BACKWARD,
    ),
    # Released in the backward that made it; and not released by what had saved it.
    ({**BACKWARD, **SAVED_TWICE, "outlives_backward": False}, Kind.TEMPORARY, Evidence.WITHIN_BACKWARD),
    ({**BACKWARD, **SAVED_TWICE, "freed_as_saved": False}, Kind.TEMPORARY, Evidence.WITHIN_BACKWARD),
)


def facts(*blocks: Block) -> BlockFacts:
    rows = [{**PLAIN, **block} for block in blocks]
    kinds = {name: np.int64 if name in NUMBERS else np.bool_ for name in PLAIN}
    return told(BlockFacts, {name: np.array([row[name] for row in rows], kind) for name, kind in kinds.items()})


TABLE = RuleExamples(
    RULES,
    facts,
    tuple((evidence, tuple((block, kind) for block in blocks)) for evidence, kind, *blocks in EXAMPLES),
    NEARLY,
)


def test_each_rule_decides_its_examples_which_are_something_else_without_it() -> None:
    TABLE.check()
    assert (*PROOFS, *LIKELY) == RULES[:-1]


def test_without_a_condition_some_block_is_something_else() -> None:
    TABLE.check_conditions()


def test_neighbours_that_overlap_cannot_change_places_unseen() -> None:
    blocks = [block for _, _, *examples in EXAMPLES for block in examples]
    # What two of them are together where that can be: for some of these both rules hold.
    table = facts(*(one | other for one, other in product(blocks, blocks)))
    TABLE.check_order(table, are_possible=possible(table))


def possible(table: BlockFacts) -> Any:
    """What contradicts itself is no block: freed and in use, without a stack and in a place, silent and loud."""
    freed = (
        table.freed_by_autograd | table.freed_by_zero_grad | table.freed_in_step | table.freed_stackless
        | table.data_was_set | table.freed_by_program
    )  # fmt: skip
    placed = table.in_backward | table.in_optimizer | table.in_module | (table.constructor != NONE)
    no = (
        (freed & table.is_at_end)
        | (placed & ~table.has_stack)
        | (table.is_stackless & (table.has_stack | table.is_before))
    )
    of_sets = table.is_first_set | table.is_later_set
    no |= (table.is_first_set & table.is_later_set) | (of_sets & table.is_as_many_as_gradients)
    no |= (table.is_as_many_as_gradients | of_sets | table.is_one_set | table.is_frozen_set) & (
        table.has_stack | ~table.is_before | ~table.is_at_end
    )
    no |= table.has_only_forward & table.is_frozen_set
    takes_place = table.takes_buffers_place | table.takes_parameters_place
    no |= takes_place & (
        table.in_module_setup | table.in_backward | table.in_optimizer | table.is_before | ~table.has_stack
    )
    no |= table.is_kept_alone & (~table.in_module | table.meets_backward)
    no |= table.is_stackless & (table.stack_kind != NONE)
    no |= table.is_left_by_backward & ~(table.is_at_end & ~table.is_before & (table.in_backward | table.is_stackless))
    no |= table.outlives_step & ~table.in_optimizer
    no |= table.is_replacing & ~table.outlives_step
    no |= table.freed_by_autograd & table.freed_stackless
    no |= table.outlives_stackless_run & ~table.is_stackless
    no |= (table.freed_as_saved & ~table.freed_by_autograd) | (table.outlives_backward & ~table.in_backward)
    no |= (table.freed_in_recompute & ~table.freed_by_autograd) | (table.in_recompute & ~table.in_backward)
    no |= table.freed_by_program & (table.freed_by_autograd | table.freed_stackless)
    no |= table.is_in_flight & ~(table.in_backward & table.is_at_end & ~table.is_before)
    no |= table.has_only_forward & (table.in_backward | table.in_optimizer | table.freed_in_step | table.meets_backward)
    no |= (table.constructor != NONE) & (table.in_backward | table.in_optimizer | table.in_module)
    no |= table.is_brief_workspace & table.is_before
    no |= table.is_workspace_kept & ~table.is_at_end
    no |= table.is_kept_by_forward & ~(table.outside & table.in_module & table.is_at_end & ~table.meets_backward)
    return ~no


def test_what_is_only_likely_says_so() -> None:
    certain = {Evidence.BEFORE_ANY_BACKWARD}
    for rule in LIKELY:
        assert rule.evidence.text.startswith("likely") or rule.evidence in certain
    assert not any(rule.evidence.text.startswith("likely") for rule in PROOFS)
