"""What each block is, and how that is known.

Evidence, strongest first: the object was held by somebody (`KnownStorages`); torch's data-flow category, where the
block's life does not contradict it; the block's life; that it was never seen as a tensor.

Shapes: B blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from tracer.analysis.profiles.attribution import Attribution, Phase
from tracer.analysis.profiles.block_lifetimes import Storages
from tracer.analysis.profiles.torch_categories import Categories, Category
from tracer.capture.known_storages import KnownStorages, Role
from tracer.capture.recording import Recording

Ints = npt.NDArray[np.int64]


class Kind(IntEnum):
    """What a block is. Finer than torch's categories where there is evidence, and never empty."""

    PARAMETER = 0
    OPTIMIZER_STATE = 1
    INPUT = 2
    TEMPORARY = 3
    """Made and freed in one phase, and seen as a tensor."""
    ACTIVATION = 4
    """Made in forward and kept for backward."""
    GRADIENT = 5
    """Of a parameter."""
    AUTOGRAD_DETAIL = 6
    """Made in backward: gradients of activations, recomputed values."""
    WORKSPACE = 7
    """Never seen as a tensor: an operator's own scratch memory."""
    BUFFER = 8
    BEFORE_RECORDING = 9
    """There before the recording began, and nobody said what it is."""
    UNKNOWN = 10


class Evidence(IntEnum):
    """How a block's kind is known, strongest first."""

    HELD_OBJECT = 0
    ACCUMULATED = 1
    DATA_FLOW = 2
    SAVED = 3
    HELD_AFTER_BACKWARD = 4
    WITHIN_FORWARD = 5
    MADE_IN_BACKWARD = 6
    RECOMPUTED = 7
    OPTIMIZER_KEPT = 8
    WITHIN_OPTIMIZER = 9
    NO_TENSOR = 10
    SEEN_BEFORE = 11
    OUTSIDE = 12
    HISTORY = 13
    UNSEEN = 14


EVIDENCE_TEXT = {
    Evidence.HELD_OBJECT: "the object was held",
    Evidence.ACCUMULATED: "AccumulateGrad took it",
    Evidence.DATA_FLOW: "torch's data flow",
    Evidence.SAVED: "made in forward, freed in backward",
    Evidence.HELD_AFTER_BACKWARD: "made in forward, alive after backward",
    Evidence.WITHIN_FORWARD: "made and freed in forward",
    Evidence.MADE_IN_BACKWARD: "made in backward",
    Evidence.RECOMPUTED: "made again in backward by its module",
    Evidence.OPTIMIZER_KEPT: "made by the optimizer and kept",
    Evidence.WITHIN_OPTIMIZER: "made and freed by the optimizer",
    Evidence.NO_TENSOR: "never seen as a tensor, freed by its own operator",
    Evidence.SEEN_BEFORE: "there before the recording, nobody said what it is",
    Evidence.OUTSIDE: "made outside forward, backward and optimizer",
    Evidence.HISTORY: "there before the recording, in the allocator's history",
    Evidence.UNSEEN: "made by another thread or outside torch, where the profiler does not record",
}


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks, columns [B]. What was there before recording has allocation -1."""

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


def explain_all(
    recording: Recording,
    categories: Categories,
    attribution: Attribution,
    storages: Storages,
    *,
    known: KnownStorages | None = None,
) -> Blocks:
    """Say of every block of a recording what it is and who made it, with torch's category as it was in the end.

    Returns:
        One row per row of `storages`, in its order.
    """
    rows, end = np.arange(len(storages.size_bytes)), np.iinfo(np.int64).max
    return explain_at(recording, categories, attribution, storages, known=known, rows=rows, time_ns=int(end))


def explain_at(
    recording: Recording,
    categories: Categories,
    attribution: Attribution,
    storages: Storages,
    *,
    known: KnownStorages | None,
    rows: Ints,
    time_ns: int,
) -> Blocks:
    """Say of some rows of `storages` what they are, with torch's category as it was at one time."""
    return _Explainer(recording, categories, attribution, known, storages, rows, time_ns).blocks()


class _Explainer:
    """Says of some blocks what they are, in the version that they had at one time, and who made them."""

    def __init__(
        self,
        recording: Recording,
        categories: Categories,
        attribution: Attribution,
        known: KnownStorages | None,
        storages: Storages,
        rows: Ints,
        time_ns: int,
    ) -> None:
        self.recording, self.attribution, self.known, self.storages = recording, attribution, known, storages
        self.alive, self.time_ns = rows, time_ns
        self.tag = self._torch_categories(categories)
        self.gradients = set(recording.gradient_keys.tolist())

    def _torch_categories(self, categories: Categories) -> Ints:
        """[B] torch's category of each block in the version that it had at the peak."""
        edges = self.recording.flow
        written = edges.edge_mutated & ~edges.edge_allocated & ~edges.edge_freed
        written &= edges.node_time_ns[edges.edge_node] <= self.time_ns
        version = np.bincount(edges.edge_key[written], minlength=len(self.recording.keys.id))
        key = self.storages.key[self.alive]
        return categories.of(key, np.where(key >= 0, version[key] if len(version) else 0, 0))

    def blocks(self) -> Blocks:
        storages, attribution, alive = self.storages, self.attribution, self.alive
        allocation = storages.allocation[alive]
        made_here = allocation >= 0

        def of_allocation(column: Ints) -> Ints:
            return np.where(made_here, column[allocation] if len(column) else -1, -1)

        phase = of_allocation(attribution.allocation_phase)
        explained = [self._explain(block, tag) for block, tag in zip(alive.tolist(), self.tag.tolist(), strict=True)]
        kinds, evidence = np.array(explained, np.int64).reshape(-1, 2).T
        observed = storages.observed_as[alive]
        name = np.full(len(alive), -1, np.int64)
        if self.known is not None:
            name = np.where(observed >= 0, self.known.name[observed] if len(self.known.name) else -1, -1)
        return Blocks(
            size_bytes=storages.size_bytes[alive],
            address=storages.address[alive],
            allocation=allocation,
            key=storages.key[alive],
            kind=kinds,
            torch_category=self.tag,
            evidence=evidence,
            phase=phase,
            step=self._steps(),
            module=of_allocation(attribution.allocation_module),
            op=of_allocation(self.recording.allocations.op),
            frame=of_allocation(attribution.allocation_frame),
            name=name,
            requested_bytes=np.full(len(alive), -1, np.int64),
            stack=np.full(len(alive), -1, np.int64),
        )

    def _steps(self) -> Ints:
        """[B] step in which each was made; of what was made unseen, the one that used it; -1 before recording."""
        storages, column = self.storages, self.attribution.allocation_step
        made_at = storages.made_at[self.alive]
        inside = (made_at >= 0) & (made_at < len(storages.events))
        event = storages.events[np.where(inside, made_at, 0)] if len(storages.events) else made_at
        return np.where(inside, column[event] if len(column) else -1, -1)

    # ---------------------------------------------------------------------------------------------- the evidence
    def _explain(self, block: int, tag: int) -> tuple[int, int]:
        observed = int(self.storages.observed_as[block])
        if observed >= 0 and self.known is not None:
            return _KIND_OF_ROLE[Role(int(self.known.role[observed]))], Evidence.HELD_OBJECT
        if self.storages.allocation[block] < 0 and self.storages.made_at[block] >= 0:
            return Kind.UNKNOWN, Evidence.UNSEEN
        if self.storages.allocation[block] < 0:
            if tag == Category.UNTAGGED:
                return Kind.BEFORE_RECORDING, Evidence.SEEN_BEFORE
            return _KIND_OF_CATEGORY[Category(tag)], Evidence.DATA_FLOW
        return self._explain_made_here(block, tag)

    def _explain_made_here(self, block: int, tag: int) -> tuple[int, int]:
        allocation, key = int(self.storages.allocation[block]), int(self.storages.key[block])
        made = Phase(int(self.attribution.allocation_phase[allocation]))
        freed_by = self._freed_by(block)
        if key < 0 and freed_by >= 0 and self._same_operator(allocation, freed_by):
            return Kind.WORKSPACE, Evidence.NO_TENSOR
        if made == Phase.BACKWARD and (key in self.gradients or self._in_accumulate_grad(allocation)):
            return Kind.GRADIENT, Evidence.ACCUMULATED
        op = int(self.recording.allocations.op[allocation])
        if made == Phase.BACKWARD and op >= 0 and self.attribution.op_recomputed[op]:
            return Kind.ACTIVATION, Evidence.RECOMPUTED
        if tag != Category.UNTAGGED and not _contradicted(tag, made, freed_by >= 0):
            return _KIND_OF_CATEGORY[Category(tag)], Evidence.DATA_FLOW
        freed = Phase(int(self.attribution.allocation_phase[freed_by])) if freed_by >= 0 else None
        return _by_life(made, freed)

    def _freed_by(self, block: int) -> int:
        """Row of the free, or -1 where the block lives on."""
        position = int(self.storages.freed_at[block])
        return int(self.storages.events[position]) if position < len(self.storages.events) else -1

    def _same_operator(self, allocation: int, free: int) -> bool:
        op = self.recording.allocations.op
        return bool(op[allocation] >= 0 and op[allocation] == op[free])

    def _in_accumulate_grad(self, allocation: int) -> bool:
        op = int(self.recording.allocations.op[allocation])
        node = int(self.attribution.op_node[op]) if op >= 0 else -1
        return node >= 0 and "AccumulateGrad" in self.recording.strings[int(self.recording.ops.name[node])]


def _contradicted(tag: int, made: Phase, freed: bool) -> bool:
    """Whether a block's life speaks against torch's category for it.

    A parameter is not made in a training step, and not freed there: such blocks share an id with one, or are what an
    operator made of parameters alone. An activation is made in forward; the optimizer's arithmetic is none.
    """
    if tag == Category.PARAMETER:
        return freed or made != Phase.OTHER
    return tag == Category.ACTIVATION and made in (Phase.BACKWARD, Phase.OPTIMIZER)


def _by_life(made: Phase, freed: Phase | None) -> tuple[int, int]:
    if made == Phase.FORWARD:
        if freed == Phase.BACKWARD:
            return Kind.ACTIVATION, Evidence.SAVED
        if freed == Phase.FORWARD:
            return Kind.TEMPORARY, Evidence.WITHIN_FORWARD
        return Kind.ACTIVATION, Evidence.HELD_AFTER_BACKWARD
    if made == Phase.BACKWARD:
        return Kind.AUTOGRAD_DETAIL, Evidence.MADE_IN_BACKWARD
    if made == Phase.OPTIMIZER:
        if freed is None:
            return Kind.OPTIMIZER_STATE, Evidence.OPTIMIZER_KEPT
        return Kind.TEMPORARY, Evidence.WITHIN_OPTIMIZER
    return Kind.UNKNOWN, Evidence.OUTSIDE


_KIND_OF_ROLE = {
    Role.PARAMETER: Kind.PARAMETER,
    Role.BUFFER: Kind.BUFFER,
    Role.GRADIENT: Kind.GRADIENT,
    Role.OPTIMIZER_STATE: Kind.OPTIMIZER_STATE,
    Role.INPUT: Kind.INPUT,
}
_KIND_OF_CATEGORY = {
    Category.PARAMETER: Kind.PARAMETER,
    Category.OPTIMIZER_STATE: Kind.OPTIMIZER_STATE,
    Category.INPUT: Kind.INPUT,
    Category.TEMPORARY: Kind.TEMPORARY,
    Category.ACTIVATION: Kind.ACTIVATION,
    Category.GRADIENT: Kind.GRADIENT,
    Category.AUTOGRAD_DETAIL: Kind.AUTOGRAD_DETAIL,
}
