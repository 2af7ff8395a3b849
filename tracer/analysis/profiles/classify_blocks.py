"""What each block of a recording is, and how that is known: one ordered table of rules, and the first that holds wins.

The strongest evidence comes first: that a live, named tensor lay at the block's address; then what autograd itself did
with it; then torch's data flow, unless the block's life contradicts it; then the block's life alone.

Shapes: B blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tracer.analysis.kinds import Evidence, Kind
from tracer.analysis.profiles.attribution import Attribution, Phase
from tracer.analysis.profiles.block_facts import NONE, Facts, facts_of
from tracer.analysis.profiles.block_lifetimes import BlockLifetimes
from tracer.analysis.profiles.collectives import common_modules
from tracer.analysis.profiles.torch_categories import Categories, Category
from tracer.analysis.rules import Rule, first_that_holds
from tracer.arrays import Bool, Int, PerAllocation, PerBlock, Rows
from tracer.capture.objects.known_storages import BATCH, KnownStorages, Role
from tracer.capture.recording import Recording

_KIND_OF_ROLE = {
    Role.PARAMETER: Kind.PARAMETER,
    Role.BUFFER: Kind.BUFFER,
    Role.GRADIENT: Kind.GRADIENT,
    Role.OPTIMIZER_STATE: Kind.OPTIMIZER_STATE,
    Role.INPUT: Kind.INPUT,
    Role.ARGUMENT: Kind.INPUT,
}


def _by_role(facts: Facts) -> PerBlock[Int]:
    of_role = np.full(max(Role) + 1, Kind.UNKNOWN, np.int64)
    for role, kind in _KIND_OF_ROLE.items():
        of_role[role] = kind
    of_leaf = np.where(facts.is_trained, int(Kind.PARAMETER), int(Kind.INPUT))
    return np.where(facts.role == Role.LEAF, of_leaf, of_role[facts.role])


def _by_category(facts: Facts) -> PerBlock[Int]:
    """Torch's categories have our kinds' names."""
    of_category = np.array([Kind.__members__.get(one.name, Kind.UNKNOWN) for one in Category], np.int64)
    return of_category[facts.category]


def _by_gradient(facts: Facts) -> PerBlock[Int]:
    return np.where(facts.is_gradient, int(Kind.GRADIENT), int(Kind.AUTOGRAD_DETAIL))


def _is_held(facts: Facts) -> PerBlock[Bool]:
    """A model may be called with what the program has computed, and the batch of an earlier step is none any more.

    The indices of a sparse gradient may be the batch itself. A leaf of nobody's is a parameter if the program trains
    it, else points that it was called with.
    """
    is_batch = np.isin(facts.role, BATCH) | ((facts.role == Role.LEAF) & ~facts.is_trained)
    is_stale = is_batch & facts.is_over
    is_result = (facts.role == Role.ARGUMENT) & facts.is_computed
    is_indices = (facts.role == Role.GRADIENT) & facts.is_source
    is_observed = ~np.isin(facts.role, (NONE, Role.SAVED, Role.WORKSPACE))
    return np.asarray(is_observed & ~(is_stale | is_result | is_indices), np.bool_)


def _is_known_from_before(facts: Facts) -> PerBlock[Bool]:
    """What torch's data flow may say of storages from before: parameters only where nothing else names any."""
    is_parameter = (facts.category == Category.PARAMETER) & facts.names_no_parameter & ~facts.is_made_unseen
    is_batch = (facts.category == Category.INPUT) & facts.is_target & ~facts.is_over
    return np.asarray((facts.made == NONE) & (is_parameter | is_batch), np.bool_)


def _is_bucket(facts: Facts) -> PerBlock[Bool]:
    return np.asarray(facts.is_given_to_collective & ~facts.is_reached & (facts.role == NONE), np.bool_)


def _made_in(phase: Phase) -> Callable[[Facts], PerBlock[Bool]]:
    return lambda facts: facts.made == phase


def _outside_backward(facts: Facts) -> PerBlock[Bool]:
    return np.asarray((facts.made == Phase.FORWARD) | (facts.made == Phase.OTHER), np.bool_)


def _is_batch(facts: Facts) -> PerBlock[Bool]:
    is_used = (facts.category == Category.INPUT) | facts.used_by_backward
    return np.asarray(facts.is_source & is_used & ~facts.is_over & ~facts.is_compiled_buffer, np.bool_)


def _is_saved(facts: Facts) -> PerBlock[Bool]:
    is_let_go_of = (facts.made == Phase.FORWARD) & (facts.freed == Phase.BACKWARD)
    return np.asarray(_outside_backward(facts) & (facts.used_by_backward | is_let_go_of), np.bool_)


RULES: tuple[Rule[Facts], ...] = (
    Rule(Evidence.HELD_OBJECT, _by_role, _is_held),
    Rule(Evidence.OF_COLLECTIVE, Kind.COMMUNICATION, lambda f: f.is_of_collective),
    Rule(Evidence.HELD_BY_GRAPH, Kind.ACTIVATION, lambda f: f.role == Role.SAVED),
    Rule(Evidence.LIBRARYS, Kind.WORKSPACE, lambda f: f.role == Role.WORKSPACE),
    Rule(Evidence.DATA_FLOW, _by_category, _is_known_from_before),
    Rule(Evidence.GIVEN_TO_COLLECTIVE, Kind.COMMUNICATION, _is_bucket),
    Rule(Evidence.UNSEEN_SAVED, Kind.ACTIVATION, lambda f: f.is_made_unseen & f.used_by_backward),
    Rule(Evidence.UNSEEN, Kind.UNKNOWN, lambda f: f.is_made_unseen),
    Rule(Evidence.COMPILED_RECOMPUTED, Kind.ACTIVATION, lambda f: f.is_recomputed_by_compiled),
    Rule(Evidence.COMPILED_TAKEN_OVER, _by_gradient, lambda f: f.is_taken_over_by_compiled),
    Rule(Evidence.COMPILED_SAVED, Kind.ACTIVATION, lambda f: f.is_saved_by_compiled),
    Rule(Evidence.COMPILED_INSIDE, Kind.TEMPORARY, lambda f: f.is_freed_inside_compiled & (f.made != Phase.BACKWARD)),
    Rule(Evidence.LISTED, _by_category, lambda f: f.is_listed & ((f.made == NONE) | (f.made == Phase.OTHER))),
    Rule(Evidence.REACHED, Kind.HELD, lambda f: f.is_reached),
    Rule(Evidence.SEEN_BEFORE, Kind.BEFORE_RECORDING, lambda f: f.made == NONE),
    Rule(Evidence.NO_TENSOR, Kind.WORKSPACE, lambda f: ~f.has_tensor & f.freed_by_maker & ~f.is_compiled_buffer),
    Rule(Evidence.ACCUMULATED, Kind.GRADIENT, lambda f: (f.made == Phase.BACKWARD) & f.is_gradient),
    Rule(Evidence.RECOMPUTED, Kind.ACTIVATION, lambda f: (f.made == Phase.BACKWARD) & f.is_recomputed),
    Rule(Evidence.LATER_BACKWARD, Kind.ACTIVATION, lambda f: (f.made == Phase.BACKWARD) & f.used_by_later_backward),
    Rule(Evidence.MADE_IN_BACKWARD, Kind.AUTOGRAD_DETAIL, _made_in(Phase.BACKWARD)),
    Rule(
        Evidence.OPTIMIZER_KEPT,
        Kind.OPTIMIZER_STATE,
        lambda f: (f.made == Phase.OPTIMIZER) & (f.outlived_step | f.outlived_two_backwards),
    ),
    Rule(Evidence.WITHIN_OPTIMIZER, Kind.TEMPORARY, _made_in(Phase.OPTIMIZER)),
    Rule(Evidence.FROM_OUTSIDE, Kind.INPUT, _is_batch),
    Rule(Evidence.SAVED, Kind.ACTIVATION, _is_saved),
    Rule(Evidence.WITHOUT_GRAD, Kind.EVALUATION, lambda f: (f.made == Phase.FORWARD) & f.is_without_grad),
    Rule(
        Evidence.WITHIN_FORWARD,
        Kind.TEMPORARY,
        lambda f: (f.made == Phase.FORWARD) & f.went_back & ~f.outlived_backward,
    ),
    Rule(
        Evidence.FREED_BEHIND_BACKWARD,
        Kind.ACTIVATION,
        lambda f: (f.made == Phase.FORWARD) & f.went_back & ~f.knows_uses & ~f.outlived_step,
    ),
    Rule(Evidence.HELD_AFTER_BACKWARD, Kind.HELD, lambda f: (f.made == Phase.FORWARD) & f.went_back),
    Rule(
        Evidence.DATA_FLOW,
        Kind.ACTIVATION,
        lambda f: (f.made == Phase.FORWARD) & (f.category == Category.ACTIVATION),
    ),
    Rule(Evidence.FREED_IN_FORWARD, Kind.TEMPORARY, lambda f: (f.made == Phase.FORWARD) & (f.freed == Phase.FORWARD)),
    Rule(Evidence.NO_BACKWARD_YET, Kind.ACTIVATION, _made_in(Phase.FORWARD)),
    Rule(Evidence.AROUND_BACKWARD, Kind.INPUT, lambda f: ~f.knows_uses & f.outlived_backward & ~f.outlived_step),
    Rule(Evidence.WITHIN_LOOP, Kind.TEMPORARY, lambda f: (f.freed == Phase.OTHER) & ~f.outlived_step),
    Rule(Evidence.OUTSIDE, Kind.HELD, lambda f: np.ones(len(f.made), np.bool_)),
)


def apply_rules(facts: Facts, rules: Sequence[Rule[Facts]] = RULES) -> tuple[PerBlock[Int], PerBlock[Int]]:
    """[B] `Kind` and [B] `Evidence` by the first rule that holds."""
    return first_that_holds(rules, facts, otherwise=Evidence.OUTSIDE)


@dataclass(frozen=True, slots=True, eq=False)
class ClassifiedBlocks:
    """Blocks, columns [B]. What was not seen being made has allocation -1."""

    size_bytes: PerBlock[Int]
    address: PerBlock[Int]
    allocation: PerBlock[Int]
    """Row in `Recording.allocations`, or -1."""
    key: PerBlock[Int]
    """Row in `Recording.keys`, or -1."""
    kind: PerBlock[Int]
    torch_category: PerBlock[Int]
    evidence: PerBlock[Int]
    phase: PerBlock[Int]
    """Phase in which it was made; -1 before recording, and for what was made unseen."""
    step: PerBlock[Int]
    """Step in which it was made; of what was made unseen, the one that used it; -1 before recording."""
    module: PerBlock[Int]
    """Index in `Attribution.modules`, or -1."""
    op: PerBlock[Int]
    """Row in `Recording.ops`, or -1."""
    frame: PerBlock[Int]
    """Row in `Recording.frames`, or -1."""
    caller: PerBlock[Int]
    """Row in `Recording.frames` of the user's line that led to a library's, or -1."""
    name: PerBlock[Int]
    """Index in `KnownStorages.names`, or -1."""
    requested_bytes: PerBlock[Int]
    """Requested, before rounding; -1 where that is not known."""
    stack: PerBlock[Int]
    """Number of the allocator's stack of what was there before and in no tensor; else -1."""

    def take(self, rows: Rows) -> Self:
        """Some of these, in the order of the rows."""
        return type(self)(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


def classify_blocks(
    recording: Recording,
    categories: Categories,
    attribution: Attribution,
    lifetimes: BlockLifetimes,
    *,
    known: KnownStorages | None = None,
    time_ns: int,
) -> ClassifiedBlocks:
    """Say of every block of one device what it is, how that is known, and who made it.

    Args:
        recording: One cycle.
        categories: Of the same recording.
        attribution: Of the same recording.
        lifetimes: The device's blocks.
        known: Observations of live tensors.
        time_ns: The moment of which torch's categories are taken, that of the peak: they change where a tensor is
            written to.

    Returns:
        One row per row of `lifetimes`, in its order.
    """
    allocation = lifetimes.allocation
    category = _categories_at(recording, categories, lifetimes, time_ns)

    def of_allocation(column: PerAllocation[Int]) -> PerBlock[Int]:
        return np.where(allocation >= 0, column[allocation] if len(column) else NONE, NONE)

    kind, evidence = apply_rules(facts_of(recording, categories, attribution, lifetimes, category, known, time_ns))
    observed = lifetimes.observed_as
    names = known.name if known is not None else np.empty(0, np.int64)
    none = np.full(len(allocation), NONE, np.int64)
    return ClassifiedBlocks(
        size_bytes=lifetimes.size_bytes,
        address=lifetimes.address,
        allocation=allocation,
        key=lifetimes.key,
        kind=kind,
        torch_category=category,
        evidence=evidence,
        phase=of_allocation(attribution.allocation_phase),
        step=_steps(attribution, lifetimes),
        module=_modules(recording, attribution, lifetimes, evidence),
        op=of_allocation(recording.allocations.op),
        frame=of_allocation(attribution.allocation_frame),
        caller=of_allocation(attribution.allocation_caller),
        name=np.where(observed >= 0, names[observed], NONE) if len(names) else none,
        requested_bytes=none,
        stack=none,
    )


def _categories_at(
    recording: Recording, categories: Categories, lifetimes: BlockLifetimes, time_ns: int
) -> PerBlock[Int]:
    """[B] torch's category of each block in the version that it had at one time."""
    edges = recording.flow
    written = edges.edge_mutated & ~edges.edge_allocated & ~edges.edge_freed
    written &= edges.node_time_ns[edges.edge_node] <= time_ns
    version = np.bincount(edges.edge_key[written], minlength=len(recording.keys.id))
    key = lifetimes.key
    return categories.of(key, np.where(key >= 0, version[key] if len(version) else 0, 0))


def _modules(
    recording: Recording, attribution: Attribution, lifetimes: BlockLifetimes, evidence: PerBlock[Int]
) -> PerBlock[Int]:
    """[B] who made it; of DDP's buckets, whose gradients are in it."""
    allocation, key, column = lifetimes.allocation, lifetimes.key, attribution.allocation_module
    found = np.where(allocation >= 0, column[allocation] if len(column) else NONE, NONE)
    rows = np.flatnonzero(evidence == Evidence.GIVEN_TO_COLLECTIVE)
    if len(rows):
        found[rows] = common_modules(recording, attribution.op_module, attribution.modules)[key[rows]]
    return found


def _steps(attribution: Attribution, lifetimes: BlockLifetimes) -> PerBlock[Int]:
    end, made_at, column = len(lifetimes.events), lifetimes.made_at, attribution.allocation_step
    inside = (made_at >= 0) & (made_at < end)
    return np.where(inside, column[lifetimes.events[np.where(inside, made_at, 0)]] if end else NONE, NONE)
