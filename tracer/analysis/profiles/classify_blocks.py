"""What each block of a recording is, and how that is known: one ordered table of rules, and the first that holds wins.

The strongest evidence comes first: that a live, named tensor lay at the block's address; then what autograd itself did
with it; then torch's data flow, unless the block's life contradicts it; then the block's life alone.

Shapes: B blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from tracer.analysis.kinds import Evidence, Kind
from tracer.analysis.profiles.attribution import Attribution, Phase
from tracer.analysis.profiles.block_lifetimes import Storages
from tracer.analysis.profiles.torch_categories import Categories, Category
from tracer.capture.known_storages import KnownStorages, Role
from tracer.capture.recording import Recording

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What the rules look at, columns [B]; -1 is none.

    Attributes:
        role: `Role` of the strongest observation of a live tensor at the block's address.
        made: `Phase` in which a recorded allocation made it; -1 for what was not seen being made.
        is_made_unseen: Made during the recording, where the profiler does not record.
        freed: `Phase` of the free; -1 where it lives on.
        has_tensor: An operator saw it as a tensor.
        freed_by_maker: The operator that made it freed it.
        is_gradient: torch saw it as the gradient of a parameter, or AccumulateGrad made it.
        is_recomputed: Made by a module that ran again inside backward.
        category: torch's category.
    """

    role: Ints
    made: Ints
    is_made_unseen: Bools
    freed: Ints
    has_tensor: Bools
    freed_by_maker: Bools
    is_gradient: Bools
    is_recomputed: Bools
    category: Ints

    @property
    def is_contradicted(self) -> Bools:
        """The block's life speaks against torch's category.

        A parameter is not made in a training step, and not freed there: such blocks share an id with one, or are what
        an operator made of parameters alone. An activation is made in forward; the optimizer's arithmetic is none.
        """
        no_parameter = (self.category == Category.PARAMETER) & ((self.freed != NONE) | (self.made != Phase.OTHER))
        late = (self.made == Phase.BACKWARD) | (self.made == Phase.OPTIMIZER)
        return np.asarray(no_parameter | ((self.category == Category.ACTIVATION) & late), np.bool_)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table.

    Attributes:
        evidence: How the kind is known.
        kind: What it is, or [B] what each of them is.
        holds: [B] for which blocks.
    """

    evidence: Evidence
    kind: Kind | Callable[[Facts], Ints]
    holds: Callable[[Facts], Bools]


_KIND_OF_ROLE = {
    Role.PARAMETER: Kind.PARAMETER,
    Role.BUFFER: Kind.BUFFER,
    Role.GRADIENT: Kind.GRADIENT,
    Role.OPTIMIZER_STATE: Kind.OPTIMIZER_STATE,
    Role.INPUT: Kind.INPUT,
}


def _by_role(facts: Facts) -> Ints:
    of_role = np.full(max(Role) + 1, Kind.UNKNOWN, np.int64)
    for role, kind in _KIND_OF_ROLE.items():
        of_role[role] = kind
    return of_role[facts.role]


def _by_category(facts: Facts) -> Ints:
    """Torch's categories have our kinds' names."""
    of_category = np.array([Kind.__members__.get(one.name, Kind.UNKNOWN) for one in Category], np.int64)
    return of_category[facts.category]


RULES: tuple[Rule, ...] = (
    Rule(Evidence.HELD_OBJECT, _by_role, lambda f: f.role != NONE),
    Rule(Evidence.UNSEEN, Kind.UNKNOWN, lambda f: f.is_made_unseen),
    Rule(Evidence.SEEN_BEFORE, Kind.BEFORE_RECORDING, lambda f: (f.made == NONE) & (f.category == Category.UNTAGGED)),
    Rule(Evidence.DATA_FLOW, _by_category, lambda f: f.made == NONE),
    Rule(Evidence.NO_TENSOR, Kind.WORKSPACE, lambda f: ~f.has_tensor & f.freed_by_maker),
    Rule(Evidence.ACCUMULATED, Kind.GRADIENT, lambda f: (f.made == Phase.BACKWARD) & f.is_gradient),
    Rule(Evidence.RECOMPUTED, Kind.ACTIVATION, lambda f: (f.made == Phase.BACKWARD) & f.is_recomputed),
    Rule(Evidence.DATA_FLOW, _by_category, lambda f: (f.category != Category.UNTAGGED) & ~f.is_contradicted),
    Rule(Evidence.SAVED, Kind.ACTIVATION, lambda f: (f.made == Phase.FORWARD) & (f.freed == Phase.BACKWARD)),
    Rule(Evidence.WITHIN_FORWARD, Kind.TEMPORARY, lambda f: (f.made == Phase.FORWARD) & (f.freed == Phase.FORWARD)),
    Rule(Evidence.HELD_AFTER_BACKWARD, Kind.ACTIVATION, lambda f: f.made == Phase.FORWARD),
    Rule(Evidence.MADE_IN_BACKWARD, Kind.AUTOGRAD_DETAIL, lambda f: f.made == Phase.BACKWARD),
    Rule(Evidence.OPTIMIZER_KEPT, Kind.OPTIMIZER_STATE, lambda f: (f.made == Phase.OPTIMIZER) & (f.freed == NONE)),
    Rule(Evidence.WITHIN_OPTIMIZER, Kind.TEMPORARY, lambda f: f.made == Phase.OPTIMIZER),
    Rule(Evidence.OUTSIDE, Kind.UNKNOWN, lambda f: np.ones(len(f.made), np.bool_)),
)


def apply_rules(facts: Facts, rules: tuple[Rule, ...] = RULES) -> tuple[Ints, Ints]:
    """[B] `Kind` and [B] `Evidence` by the first rule that holds."""
    kind = np.full(len(facts.role), Kind.UNKNOWN, np.int64)
    evidence = np.full(len(facts.role), Evidence.OUTSIDE, np.int64)
    is_open = np.ones(len(facts.role), np.bool_)
    for rule in rules:
        rows = np.flatnonzero(is_open & rule.holds(facts))
        evidence[rows] = rule.evidence
        kind[rows] = int(rule.kind) if isinstance(rule.kind, Kind) else rule.kind(facts)[rows]
        is_open[rows] = False
    return kind, evidence


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks, columns [B]. What was not seen being made has allocation -1."""

    size_bytes: Ints
    address: Ints
    allocation: Ints
    """Row in `Recording.allocations`, or -1."""
    key: Ints
    """Row in `Recording.keys`, or -1."""
    kind: Ints
    torch_category: Ints
    evidence: Ints
    phase: Ints
    """Phase in which it was made; -1 before recording, and for what was made unseen."""
    step: Ints
    """Step in which it was made; of what was made unseen, the one that used it; -1 before recording."""
    module: Ints
    """Index in `Attribution.modules`, or -1."""
    op: Ints
    """Row in `Recording.ops`, or -1."""
    frame: Ints
    """Row in `Recording.frames`, or -1."""
    name: Ints
    """Index in `KnownStorages.names`, or -1."""
    requested_bytes: Ints
    """What was asked for before rounding; -1 where nobody knows."""
    stack: Ints
    """Number of the allocator's stack of what was there before and in no tensor; else -1."""

    def take(self, rows: Ints) -> Self:
        """Some of these, in the order of the rows."""
        return type(self)(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


def classify_blocks(
    recording: Recording,
    categories: Categories,
    attribution: Attribution,
    storages: Storages,
    *,
    known: KnownStorages | None = None,
    time_ns: int,
) -> Blocks:
    """Say of every block of one device what it is, how that is known, and who made it.

    Args:
        recording: One cycle.
        categories: Of the same recording.
        attribution: Of the same recording.
        storages: The device's blocks.
        known: Observations of live tensors.
        time_ns: The moment of which torch's categories are taken, that of the peak: they change where a tensor is
            written to.

    Returns:
        One row per row of `storages`, in its order.
    """
    allocation = storages.allocation
    category = _categories_at(recording, categories, storages, time_ns)

    def of_allocation(column: Ints) -> Ints:
        return np.where(allocation >= 0, column[allocation] if len(column) else NONE, NONE)

    kind, evidence = apply_rules(facts_of(recording, attribution, storages, category, known))
    observed = storages.observed_as
    names = known.name if known is not None else np.empty(0, np.int64)
    none = np.full(len(allocation), NONE, np.int64)
    return Blocks(
        size_bytes=storages.size_bytes,
        address=storages.address,
        allocation=allocation,
        key=storages.key,
        kind=kind,
        torch_category=category,
        evidence=evidence,
        phase=of_allocation(attribution.allocation_phase),
        step=_steps(attribution, storages),
        module=of_allocation(attribution.allocation_module),
        op=of_allocation(recording.allocations.op),
        frame=of_allocation(attribution.allocation_frame),
        name=np.where(observed >= 0, names[observed], NONE) if len(names) else none,
        requested_bytes=none,
        stack=none,
    )


def facts_of(
    recording: Recording, attribution: Attribution, storages: Storages, category: Ints, known: KnownStorages | None
) -> Facts:
    """What the rules look at, for every block."""
    allocation, observed = storages.allocation, storages.observed_as
    made_here = allocation >= 0
    freed_by = _freed_by(storages)
    op = recording.allocations.op
    maker = np.where(made_here, op[allocation] if len(op) else NONE, NONE)
    freer = np.where(freed_by >= 0, op[freed_by] if len(op) else NONE, NONE)
    phase = attribution.allocation_phase
    roles = known.role if known is not None else np.empty(0, np.int64)
    recomputed = attribution.op_recomputed
    return Facts(
        role=np.where(observed >= 0, roles[observed], NONE) if len(roles) else np.full(len(allocation), NONE, np.int64),
        made=np.where(made_here, phase[allocation] if len(phase) else NONE, NONE),
        is_made_unseen=storages.made_unseen,
        freed=np.where(freed_by >= 0, phase[freed_by] if len(phase) else NONE, NONE),
        has_tensor=storages.key >= 0,
        freed_by_maker=(maker >= 0) & (maker == freer),
        is_gradient=np.isin(storages.key, recording.gradient_keys) | _in_accumulate_grad(recording, attribution, maker),
        is_recomputed=(maker >= 0) & (recomputed[maker] if len(recomputed) else False),
        category=category,
    )


def _categories_at(recording: Recording, categories: Categories, storages: Storages, time_ns: int) -> Ints:
    """[B] torch's category of each block in the version that it had at one time."""
    edges = recording.flow
    written = edges.edge_mutated & ~edges.edge_allocated & ~edges.edge_freed
    written &= edges.node_time_ns[edges.edge_node] <= time_ns
    version = np.bincount(edges.edge_key[written], minlength=len(recording.keys.id))
    key = storages.key
    return categories.of(key, np.where(key >= 0, version[key] if len(version) else 0, 0))


def _freed_by(storages: Storages) -> Ints:
    """[B] row of the free in `Recording.allocations`, or -1 where the block lives on."""
    end = len(storages.events)
    lives_on = storages.freed_at >= end
    return np.where(lives_on, NONE, storages.events[np.where(lives_on, 0, storages.freed_at)] if end else NONE)


def _steps(attribution: Attribution, storages: Storages) -> Ints:
    end, made_at, column = len(storages.events), storages.made_at, attribution.allocation_step
    inside = (made_at >= 0) & (made_at < end)
    return np.where(inside, column[storages.events[np.where(inside, made_at, 0)]] if end else NONE, NONE)


def _in_accumulate_grad(recording: Recording, attribution: Attribution, op: Ints) -> Bools:
    """[B] whether AccumulateGrad, or an operator inside it, is what made each block."""
    accumulates = np.array(["AccumulateGrad" in text for text in recording.strings], np.bool_)
    node = np.where(op >= 0, attribution.op_node[op] if len(attribution.op_node) else NONE, NONE)
    name = np.where(node >= 0, recording.ops.name[node] if len(recording.ops.name) else NONE, NONE)
    return (name >= 0) & (accumulates[name] if len(accumulates) else False)
