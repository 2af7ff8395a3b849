"""What a block of a snapshot is: one ordered table of rules, and the first that holds decides.

A snapshot has no categories. Its stacks, its annotations and the lives of its blocks prove what some are; the rules
that do stand first, in the order of their strength. Then those follow by which blocks prove something of each other,
and those that say "likely". A block that no rule knows is "not known".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.analysis.kinds import EVIDENCE_TEXT, Evidence, Kind
from tracer.analysis.snapshots.block_facts import BlockFacts
from tracer.analysis.snapshots.counting import NONE
from tracer.arrays import Bools, Ints

NOT_KNOWN: Final = Kind.UNKNOWN.words
# What a block of a snapshot can be, in words: what was allocated before is told by its place in the recording.
KINDS: Final = (
    *(kind.words for kind in Kind if kind not in (Kind.UNKNOWN, Kind.BEFORE_RECORDING)),
    NOT_KNOWN,
)


@dataclass(frozen=True, slots=True)
class StackRule:
    """One row of the table.

    Attributes:
        evidence: How the kind is known.
        kind: What it is, or [L] what each of them is.
        holds: [L] for which blocks.
    """

    evidence: Evidence
    kind: Kind | Callable[[BlockFacts], Ints]
    holds: Callable[[BlockFacts], Bools]

    @property
    def text(self) -> str:
        """The evidence in words."""
        return EVIDENCE_TEXT[self.evidence]


# What stacks, annotations and lives prove.
PROOFS: Final = (
    StackRule(Evidence.WORKSPACE_STACK, Kind.WORKSPACE, lambda f: f.in_workspace),
    StackRule(Evidence.OPTIMIZER_STATE_STACK, Kind.OPTIMIZER_STATE, lambda f: f.in_state_setup),
    StackRule(Evidence.ACCUMULATE_GRAD_STACK, Kind.GRADIENT, lambda f: f.in_accumulate),
    StackRule(
        Evidence.FREED_BY_ZERO_GRAD,
        Kind.GRADIENT,
        lambda f: f.freed_by_zero_grad & ~f.in_step & (f.in_backward | f.is_before),
    ),
    StackRule(
        Evidence.FREED_BY_GRAD_ASSIGNMENT,
        Kind.GRADIENT,
        lambda f: f.grad_was_set & ~f.in_step & (f.in_backward | f.is_before),
    ),
    StackRule(Evidence.FREED_BY_DATA_ASSIGNMENT, Kind.PARAMETER, lambda f: f.data_was_set & ~f.in_backward),
    StackRule(Evidence.BACKWARD_TO_STEP, Kind.GRADIENT, lambda f: f.in_backward & ~f.is_before & f.meets_step),
    StackRule(Evidence.REPLACES_PARAMETER, Kind.PARAMETER, lambda f: f.is_replacing),
    StackRule(Evidence.OUTLIVED_STEP, Kind.OPTIMIZER_STATE, lambda f: f.outlives_step),
    StackRule(Evidence.WITHIN_STEP, Kind.TEMPORARY, lambda f: f.in_step & ~f.is_before & ~f.is_at_end),
    StackRule(Evidence.STEP_STACK_BEFORE, Kind.OPTIMIZER_STATE, lambda f: f.in_step & f.is_before),
    StackRule(Evidence.RELEASED_BY_AUTOGRAD, Kind.ACTIVATION, lambda f: f.outside & f.freed_by_autograd),
    StackRule(
        Evidence.RECOMPUTED_STACK,
        Kind.ACTIVATION,
        lambda f: f.in_backward & f.in_module & f.freed_by_autograd,
    ),
    StackRule(Evidence.WITHIN_BACKWARD, Kind.TEMPORARY, lambda f: f.in_backward & f.freed_by_autograd),
    StackRule(
        Evidence.MODULE_SETUP_STACK,
        Kind.PARAMETER,
        lambda f: f.in_module_setup & (f.is_at_end | f.freed_in_step),
    ),
)
# What blocks prove of each other, and what is likely.
LIKELY: Final = (
    StackRule(Evidence.BEFORE_ANY_BACKWARD, Kind.TEMPORARY, lambda f: f.outside & ~f.is_at_end & ~f.may_meet_backward),
    StackRule(
        Evidence.FREED_IN_STEP,
        Kind.OPTIMIZER_STATE,
        lambda f: f.is_before & f.freed_in_step & (f.has_cpp | f.has_size_of_staying),
    ),
    StackRule(
        Evidence.CONSTRUCTED,
        Kind.PARAMETER,
        lambda f: f.is_constructed | ((f.constructor != NONE) & f.is_at_end & f.has_only_forward),
    ),
    StackRule(Evidence.BACKWARD_STACK_BEFORE, Kind.GRADIENT, lambda f: f.in_backward & f.is_before & f.is_at_end),
    StackRule(Evidence.RELEASED_IN_SILENCE, Kind.ACTIVATION, lambda f: f.outside & f.freed_in_silence),
    StackRule(
        Evidence.SILENCE_TO_STEP,
        Kind.GRADIENT,
        lambda f: f.in_silence & f.meets_step & f.is_of_parameters_size,
    ),
    StackRule(Evidence.WITHIN_SILENCE, Kind.TEMPORARY, lambda f: f.in_silence & f.freed_in_silence),
    StackRule(Evidence.SAME_STACK, lambda f: f.stack_kind, lambda f: f.stack_kind != NONE),
    StackRule(Evidence.GRADIENTS_SIZES, Kind.PARAMETER, lambda f: f.is_as_many_as_gradients),
    StackRule(Evidence.AUTOCAST_COPY, Kind.ACTIVATION, lambda f: f.outside & f.in_autocast),
    StackRule(
        Evidence.MODULE_CALL_STACK,
        Kind.ACTIVATION,
        lambda f: f.outside & f.in_module & f.meets_backward & ~f.is_long_lived,
    ),
    StackRule(
        Evidence.ALIVE_AT_END,
        Kind.ACTIVATION,
        lambda f: f.outside & f.in_module & f.is_at_end & ~f.meets_backward,
    ),
    StackRule(Evidence.ONE_SET_OF_SIZES, Kind.PARAMETER, lambda f: f.has_only_forward & f.is_one_set),
)
RULES: Final = (
    *PROOFS,
    *LIKELY,
    StackRule(Evidence.UNPROVED, Kind.UNKNOWN, lambda f: np.ones(len(f), dtype=np.bool_)),
)


def apply_rules(facts: BlockFacts, rules: tuple[StackRule, ...] = RULES) -> tuple[Ints, Ints]:
    """`Kind` [L] and `Evidence` [L] by the first rule that holds; what none knows is unproved."""
    kind = np.full(len(facts), Kind.UNKNOWN, dtype=np.int64)
    evidence = np.full(len(facts), Evidence.UNPROVED, dtype=np.int64)
    is_open = np.ones(len(facts), dtype=np.bool_)
    for rule in rules:
        rows = np.flatnonzero(is_open & rule.holds(facts))
        evidence[rows] = rule.evidence
        kind[rows] = int(rule.kind) if isinstance(rule.kind, Kind) else rule.kind(facts)[rows]
        is_open[rows] = False
    return kind, evidence
