"""What filled the device at its worst moment: the live blocks at the peak and what is known of each, to the byte.

Evidence, strongest first: the object was held by somebody (`KnownStorages`); torch's data-flow category, where the
block's life does not contradict it; the block's life; that it was never seen as a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from tracer.analysis.attribution import Attribution, Phase
from tracer.analysis.categories import Categories, Category
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


@dataclass(frozen=True, slots=True)
class PeakRow:
    """Equal blocks at the peak. The rows of a report sum to its peak."""

    bytes: int
    count: int
    category: str
    torch_category: str | None
    evidence: str
    phase: str
    module: str | None
    op: str | None
    file: str | None
    line: int | None
    name: str | None = None
    """The parameter, buffer or input that it is, where the object was held."""
    step: str | None = None


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
) -> PeakReport:
    """Explain the peak of one device.

    Args:
        recording: One cycle.
        categories: Of the same recording.
        attribution: Of the same recording.
        storages: The device's blocks; there is at least one event.
        known: Objects that somebody held during the run, the strongest evidence.

    Returns:
        The report. The first maximum wins.
    """
    position = int(np.argmax(storages.allocator_bytes))
    allocator_peak_bytes = int(storages.allocator_bytes[position])
    alive, now_ns = storages.alive_at(position), int(recording.allocations.time_ns[storages.events[position]])
    blocks = _Explainer(recording, categories, attribution, known, storages, alive, now_ns).blocks()
    remainder = allocator_peak_bytes - int(blocks.size_bytes.sum())
    if remainder > 0 and recording.devices[storages.device] != "cpu":
        blocks = _with_unseen(blocks, remainder)
    event = int(storages.events[position])
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
        rows=group_rows(recording, attribution, known, blocks),
        blocks=blocks,
        num_died_unseen=int(storages.died_unseen.sum()),
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


def _with_unseen(blocks: Blocks, remainder_bytes: int) -> Blocks:
    """Add what the allocator counts and nothing in the recording shows, as one block from before the recording."""
    fill = dict.fromkeys(Blocks.__dataclass_fields__, -1)
    fill |= {
        "size_bytes": remainder_bytes,
        "kind": Kind.BEFORE_RECORDING,
        "torch_category": Category.UNTAGGED,
        "evidence": Evidence.SEEN_BEFORE,
    }
    return Blocks(**{name: np.append(getattr(blocks, name), value) for name, value in fill.items()})


# In place of a module's path. No path begins like this.
OPTIMIZER_OWNER = "(optimizer)"
LOOP_OWNER = "(training loop)"

_ENGINE_PREFIX = "autograd::engine::evaluate_function: "


def op_label(recording: Recording, op: int) -> str | None:
    """An operator's recorded name; for work of the autograd engine the name of the node."""
    return None if op < 0 else recording.strings[int(recording.ops.name[op])].removeprefix(_ENGINE_PREFIX)


def group_rows(
    recording: Recording, attribution: Attribution, known: KnownStorages | None, blocks: Blocks
) -> tuple[PeakRow, ...]:
    """Put equal blocks together: same kind, evidence, phase, owner and name. Largest first."""
    columns = ("kind", "torch_category", "evidence", "phase", "step", "module", "op", "frame", "name")
    totals: dict[tuple[object, ...], list[int]] = {}
    for index, size_bytes in enumerate(blocks.size_bytes.tolist()):
        kind, tag, evidence, phase, step, module, op, frame, name = (
            int(getattr(blocks, column)[index]) for column in columns
        )
        label = known.names[name] if known is not None and name >= 0 else None
        owner = attribution.modules[module] if module >= 0 else _owner(label, kind) or _outside(phase, frame)
        key = (
            Kind(kind).name,
            Category(tag).name if tag != Category.UNTAGGED else None,
            EVIDENCE_TEXT[Evidence(evidence)],
            Phase(phase).name.lower() if phase >= 0 else "before recording",
            owner,
            op_label(recording, op),
            *place(recording, frame),
            label,
            attribution.step_names[step] if step >= 0 else None,
        )
        total = totals.setdefault(key, [0, 0])
        total[0] += size_bytes
        total[1] += 1
    rows = [PeakRow(total, count, *key) for key, (total, count) in totals.items()]  # type: ignore[arg-type]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


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
