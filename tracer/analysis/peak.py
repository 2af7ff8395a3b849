"""What filled the device at its worst moment: the live blocks at the peak and what is known of each, to the byte.

Evidence, strongest first: the object was held by somebody (`KnownStorages`); torch's data-flow category, where the
block's life does not contradict it; the block's life; that it was never seen as a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from tracer.analysis.allocator_join import InUse, JoinedHistory, in_use_at
from tracer.analysis.attribution import Attribution, Phase
from tracer.analysis.categories import Categories, Category
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.storages import Storages
from tracer.capture.known_storages import KnownStorages, Role
from tracer.capture.recording import Recording

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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
}


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Live blocks at the peak, columns [B]. What was there before recording has allocation -1."""

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
    """Phase in which it was made; -1 before recording."""
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


@dataclass(frozen=True, slots=True)
class AllocatorPeak:
    """What only the allocator's own history tells of the peak.

    Attributes:
        requested_bytes: Sum of what was asked for; the peak is the same, rounded up block by block.
        pending_bytes: Freed by the program and still used by another stream: neither allocated nor free.
        reserved_bytes: Reserved from the driver.
        free_bytes: Of it, what was in no block in use.
        largest_free_bytes: The largest piece of that in one segment.
        num_joined: Blocks of the recording that the history has too, whether alive at the peak or not.
        num_blocks: Blocks that the recording saw being made.
    """

    requested_bytes: int
    pending_bytes: int
    reserved_bytes: int
    free_bytes: int
    largest_free_bytes: int
    num_joined: int
    num_blocks: int


@dataclass(frozen=True, slots=True, eq=False)
class PeakReport:
    """The peak of one device in one cycle.

    Attributes:
        device: Name as `str(torch.device)` writes it.
        peak_bytes: Sum of the blocks.
        allocator_peak_bytes: The allocator's own count, taken without looking at blocks: on CUDA its running total; on
            the CPU, which counts from the beginning of the recording, that plus the storages that were alive before.
        reserved_bytes: Reserved memory at the peak; 0 where the device has no such thing.
        time_ns: When.
        step: Name of the step, or None.
        phase: Phase of the allocation that made the peak, or None.
        rows: Grouped blocks, largest first.
        blocks: The blocks themselves.
        num_died_unseen: Storages from before the recording whose address was handed out again without a recorded free.
        allocator: From the allocator's own history; None where there is none.
    """

    device: str
    peak_bytes: int
    allocator_peak_bytes: int
    reserved_bytes: int
    time_ns: int
    step: str | None
    phase: str | None
    rows: tuple[PeakRow, ...]
    blocks: Blocks
    num_died_unseen: int
    allocator: AllocatorPeak | None = None

    def by_category(self) -> dict[str, int]:
        """Bytes by category, largest first."""
        totals: dict[str, int] = {}
        for row in self.rows:
            totals[row.category] = totals.get(row.category, 0) + row.bytes
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


def peak_report(
    recording: Recording,
    categories: Categories,
    attribution: Attribution,
    storages: Storages,
    *,
    known: KnownStorages | None = None,
    history: JoinedHistory | None = None,
) -> PeakReport:
    """Explain the peak of one device.

    Args:
        recording: One cycle.
        categories: Of the same recording.
        attribution: Of the same recording.
        storages: The device's blocks; there is at least one event.
        known: Objects that somebody held during the run, the strongest evidence.
        history: The allocator's own, joined with these storages.

    Returns:
        The report. The first maximum wins.
    """
    position = int(np.argmax(storages.allocator_bytes))
    allocator_peak_bytes = int(storages.allocator_bytes[position])
    event = int(storages.events[position])
    alive, now_ns = storages.alive_at(position), int(recording.allocations.time_ns[event])
    in_use = in_use_at(history, storages, position) if history is not None else None
    if in_use is not None:
        alive = in_use.block[in_use.block >= 0]
    blocks = _Explainer(recording, categories, attribution, known, storages, alive, now_ns).blocks()
    if in_use is not None:
        blocks = _by_the_allocators_books(blocks, in_use)
    remainder = allocator_peak_bytes - int(blocks.size_bytes.sum())
    if remainder > 0 and recording.devices[storages.device] != "cpu":
        blocks = _with_unseen(blocks, size_bytes=np.array([remainder]))
    allocations = recording.allocations
    step = int(attribution.allocation_step[event])
    return PeakReport(
        device=recording.devices[storages.device],
        peak_bytes=int(blocks.size_bytes.sum()),
        allocator_peak_bytes=allocator_peak_bytes,
        reserved_bytes=max(0, int(allocations.total_reserved_bytes[event])),
        time_ns=int(allocations.time_ns[event]),
        step=attribution.step_names[step] if step >= 0 else None,
        phase=Phase(int(attribution.allocation_phase[event])).name.lower(),
        rows=group_rows(recording, attribution, known, blocks, history=history),
        blocks=blocks,
        num_died_unseen=int(storages.died_unseen.sum()),
        allocator=_allocator_peak(blocks, history, in_use, storages),
    )


def _by_the_allocators_books(blocks: Blocks, in_use: InUse) -> Blocks:
    """Sizes as the allocator has them, and behind the known blocks those that the recording never saw."""
    seen = in_use.block >= 0
    unseen = ~seen
    # What was there before is known from tensors, which may span less than their block.
    known = replace(blocks, size_bytes=in_use.size_bytes[seen], requested_bytes=in_use.requested_bytes[seen])
    return _with_unseen(
        known,
        size_bytes=in_use.size_bytes[unseen],
        requested_bytes=in_use.requested_bytes[unseen],
        address=in_use.address[unseen],
        stack=in_use.stack[unseen],
        evidence=np.full(int(unseen.sum()), int(Evidence.HISTORY)),
    )


def _allocator_peak(
    blocks: Blocks, history: JoinedHistory | None, in_use: InUse | None, storages: Storages
) -> AllocatorPeak | None:
    if history is None or in_use is None:
        return None
    memory = in_use.memory
    return AllocatorPeak(
        requested_bytes=int(in_use.requested_bytes.sum()),
        pending_bytes=in_use.pending_bytes,
        reserved_bytes=memory.reserved_bytes,
        free_bytes=memory.free_bytes,
        largest_free_bytes=memory.largest_free_bytes,
        num_joined=int((history.entry >= 0).sum()),
        num_blocks=int((storages.made_at >= 0).sum()),
    )


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
    return _Explainer(recording, categories, attribution, known, storages, rows, int(end)).blocks()


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
            step=of_allocation(attribution.allocation_step),
            module=of_allocation(attribution.allocation_module),
            op=of_allocation(self.recording.allocations.op),
            frame=of_allocation(attribution.allocation_frame),
            name=name,
            requested_bytes=np.full(len(alive), -1, np.int64),
            stack=np.full(len(alive), -1, np.int64),
        )

    # ---------------------------------------------------------------------------------------------- the evidence
    def _explain(self, block: int, tag: int) -> tuple[int, int]:
        observed = int(self.storages.observed_as[block])
        if observed >= 0 and self.known is not None:
            return _KIND_OF_ROLE[Role(int(self.known.role[observed]))], Evidence.HELD_OBJECT
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


def _with_unseen(blocks: Blocks, **columns: Ints) -> Blocks:
    """Add blocks that the allocator counts and nothing in the recording shows: they were there before it."""
    usual = {"kind": Kind.BEFORE_RECORDING, "torch_category": Category.UNTAGGED, "evidence": Evidence.SEEN_BEFORE}
    num = len(columns["size_bytes"])
    return Blocks(
        **{
            name: np.append(getattr(blocks, name), columns.get(name, np.full(num, int(usual.get(name, -1)), np.int64)))
            for name in Blocks.__dataclass_fields__
        }
    )


# In place of a module's path. No path begins like this.
OPTIMIZER_OWNER = "(optimizer)"
LOOP_OWNER = "(training loop)"

_ENGINE_PREFIX = "autograd::engine::evaluate_function: "


def op_label(recording: Recording, op: int) -> str | None:
    """An operator's recorded name; for work of the autograd engine the name of the node."""
    return None if op < 0 else recording.strings[int(recording.ops.name[op])].removeprefix(_ENGINE_PREFIX)


def group_rows(
    recording: Recording,
    attribution: Attribution,
    known: KnownStorages | None,
    blocks: Blocks,
    *,
    history: JoinedHistory | None = None,
) -> tuple[PeakRow, ...]:
    """Put equal blocks together: same kind, evidence, phase, owner and name. Largest first."""
    columns = ("kind", "torch_category", "evidence", "phase", "step", "module", "op", "frame", "name", "stack")
    totals: dict[tuple[object, ...], list[int]] = {}
    of_block = zip(*(getattr(blocks, column).tolist() for column in columns), strict=True)
    sizes = zip(blocks.size_bytes.tolist(), blocks.requested_bytes.tolist(), strict=True)
    for (kind, tag, evidence, phase, step, module, op, frame, name, stack), (size_bytes, requested_bytes) in zip(
        of_block, sizes, strict=True
    ):
        label = known.names[name] if known is not None and name >= 0 else None
        owner = attribution.modules[module] if module >= 0 else _owner(label, kind) or _outside(phase, frame)
        key = (
            Kind(kind).name,
            Category(tag).name if tag != Category.UNTAGGED else None,
            EVIDENCE_TEXT[Evidence(evidence)],
            Phase(phase).name.lower() if phase >= 0 else "before recording",
            owner,
            op_label(recording, op),
            *(_place_in_history(history, stack) if frame < 0 else place(recording, frame)),
            label,
            attribution.step_names[step] if step >= 0 else None,
        )
        total = totals.setdefault(key, [0, 0, 0])
        total[0] += size_bytes
        total[1] += 1
        # One block of unknown request makes that of its row unknown.
        total[2] = total[2] + requested_bytes if min(total[2], requested_bytes) >= 0 else -1
    rows = [
        replace(PeakRow(total, count, *key), requested_bytes=requested if requested >= 0 else None)  # type: ignore[arg-type]
        for key, (total, count, requested) in totals.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _place_in_history(history: JoinedHistory | None, stack: int) -> tuple[str | None, int | None]:
    """File and line of what was made before the recording, where the allocator's history reaches back to it."""
    if history is None or stack < 0:
        return None, None
    site = history.sites.site(stack)
    return site.file, site.line


def _owner(label: str | None, kind: int) -> str | None:
    """The module that a named parameter, buffer or gradient belongs to."""
    owned = (Kind.PARAMETER, Kind.BUFFER, Kind.GRADIENT, Kind.OPTIMIZER_STATE)
    if label is None or kind not in owned:
        return None
    parts = label.split(".")
    # An optimizer's state is named after its parameter: `fc1.weight.exp_avg`.
    depth = 2 if kind == Kind.OPTIMIZER_STATE else 1
    return ".".join(parts[:-depth]) or None


def _outside(phase: int, frame: int) -> str | None:
    """Whose work it is where no module called it."""
    if phase == Phase.OPTIMIZER:
        return OPTIMIZER_OWNER
    return LOOP_OWNER if frame >= 0 else None


def place(recording: Recording, frame: int) -> tuple[str | None, int | None]:
    """File and line of a frame."""
    if frame < 0:
        return None, None
    return recording.strings[int(recording.frames.file[frame])], int(recording.frames.line[frame])
