"""The memory report: weights, what every operator invocation saves for backward, and the peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.answers.findings import RunFindings
from tracer.answers.operators.invocations import OpInstances, rows_starting_at, short_op_name, sum_at
from tracer.arrays import Bool, Bools, ColumnTable, Int, PerBlock, PerSavedTensor, Rows
from tracer.blocks.from_recording.attribution import Attribution, frames_of_op
from tracer.blocks.from_recording.cycle import Cycle
from tracer.blocks.kinds import Kind
from tracer.blocks.table import Phase
from tracer.capture.objects.known_storages import KnownStorages, Parameter, Role
from tracer.capture.recording import OpKind, Recording
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import OPTIMIZER_PREFIXES, is_accumulate_grad

_NOBODYS = (Kind.PARAMETER, Kind.BUFFER, Kind.GRADIENT, Kind.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True, eq=False)
class SavedActivations(ColumnTable):
    """Saved storages, each once in a step. Columns [T].

    A storage is saved if an autograd node reads it, or if it was made in forward and freed while the engine ran:
    whoever lets go there is the graph. It counts once in a step, for the first invocation whose node holds it, since
    that node is the last to let go; a batch that lives for several steps is saved anew in each. Parameters, buffers,
    gradients and optimizer state are not activations. T saved storages, R invocations.
    """

    block: PerSavedTensor[Int]  # Row in `BlockLifetimes`
    row: PerSavedTensor[Int]  # Row in `OpInstances`: the first invocation that saved it
    step: PerSavedTensor[Int]  # Index of the step
    size_bytes: PerSavedTensor[Int]  # As the allocator handed it out

    def of_step(self, step: int) -> SavedActivations:
        """The activations that one step saved."""
        return self.take(self.step == step)


def saved_activations(cycle: Cycle, instances: OpInstances) -> SavedActivations:
    """Find every storage that a forward keeps for its backward."""
    # A node of the invocation read the block, or freed it.
    read_block, read_row = _readers(cycle, instances)
    freed_block, freed_row = _releasers(cycle, instances)
    block, row = np.concatenate([read_block, freed_block]), np.concatenate([read_row, freed_row])
    good = _eligible(cycle, instances)[block] & _made_before(cycle, instances, block, row)
    block, row = block[good], row[good]
    # The earliest holder of each step wins.
    step = instances.step[row]
    order = np.lexsort((row, step, block))
    block, row, step = block[order], row[order], step[order]
    first = np.ones(len(block), bool)
    first[1:] = (block[1:] != block[:-1]) | (step[1:] != step[:-1])
    block, row, step = block[first], row[first], step[first]
    return SavedActivations(block=block, row=row, step=step, size_bytes=cycle.lifetimes.size_bytes[block])


def _made_before(cycle: Cycle, instances: OpInstances, block: Rows, row: Rows) -> Bools:
    """True for each block that existed when the invocation ended: a node also reads blocks that others just made."""
    allocation = cycle.lifetimes.allocation[block]
    made_ns = np.where(allocation >= 0, cycle.recording.allocations.time_ns[allocation], -1)
    is_before: Bools = made_ns <= cycle.recording.ops.end_ns[instances.op[row]]
    return is_before


def _eligible(cycle: Cycle, instances: OpInstances) -> PerBlock[Bool]:
    """[B] blocks that can be activations: the batch, and what operators outside the optimizer made.

    What no operator made is no saved tensor: the random states that checkpointing keeps, Python numbers as tensors.
    """
    lifetimes, kinds = cycle.lifetimes, cycle.blocks.kind
    made_here = lifetimes.allocation >= 0
    by_operator = np.zeros(len(made_here), bool)
    by_operator[made_here] = cycle.recording.allocations.op[lifetimes.allocation[made_here]] >= 0
    by_optimizer = np.zeros(len(made_here), bool)
    by_optimizer[made_here] = _in_optimizer(cycle, instances, lifetimes.allocation[made_here])
    is_eligible: PerBlock[Bool] = made_here & by_operator & ~by_optimizer & ~np.isin(kinds, _NOBODYS)
    # Where no tensor was observed, torch's data flow takes buffers of a norm from before the recording for a batch.
    is_known = by_operator | (lifetimes.observed_as >= 0) | (~made_here & lifetimes.count.is_walked)
    return np.asarray(is_eligible | ((kinds == Kind.INPUT) & is_known), np.bool_)


def _in_optimizer(cycle: Cycle, instances: OpInstances, allocation: Rows) -> Bools:
    """True for each allocation while an optimizer ran, except in a forward that the optimizer called.

    An optimizer that gives parameters new storages may leave autograd on, so that its operators look like forward.
    """
    recording = cycle.recording
    spans, time_ns = recording.spans, recording.allocations.time_ns[allocation]
    inside = np.zeros(len(allocation), bool)
    for row in recording.spans_named(OPTIMIZER_PREFIXES).tolist():
        inside |= (time_ns >= spans.start_ns[row]) & (time_ns < spans.end_ns[row])
    in_optimizer: Bools = inside & ~_in_forward(cycle, instances, allocation)
    return in_optimizer


def _readers(cycle: Cycle, instances: OpInstances) -> tuple[Rows, Rows]:
    recording, lifetimes = cycle.recording, cycle.lifetimes
    flow, ops = recording.flow, recording.ops
    block_of_key = np.full(len(recording.keys.id), -1, np.int64)
    tensors = lifetimes.key >= 0
    block_of_key[lifetimes.key[tensors]] = np.flatnonzero(tensors)
    edges = np.flatnonzero(flow.node_backward[flow.edge_node] & ~flow.edge_allocated)
    block = block_of_key[flow.edge_key[edges]]
    op = rows_starting_at(ops.start_ns, flow.node_time_ns[flow.edge_node[edges]])
    row = np.where(op >= 0, instances.row_of_op[op], -1)
    # AccumulateGrad saves nothing.
    numbered = (op >= 0) & (ops.sequence_number[op] >= 0)
    good = (block >= 0) & (row >= 0) & numbered
    return block[good], row[good]


def _releasers(cycle: Cycle, instances: OpInstances) -> tuple[Rows, Rows]:
    """Blocks made in a stretch of forward and freed by the engine, with the invocation of the node that ran."""
    lifetimes, ops = cycle.lifetimes, cycle.recording.ops
    ended = lifetimes.freed_at < len(lifetimes.events)
    was_allocated = (lifetimes.allocation >= 0) & ended
    block = np.flatnonzero(was_allocated)
    inside = _in_forward(cycle, instances, lifetimes.allocation[block])
    block = block[inside]
    free = lifetimes.events[lifetimes.freed_at[block]]
    op = cycle.recording.allocations.op[free]
    node = np.where(op >= 0, cycle.attribution.op_node[op], -1)
    in_node = node >= 0
    # The node itself, or, for what it frees after it ran, the engine's row around it.
    numbered = in_node & (ops.sequence_number[node] >= 0)
    row = np.where(numbered, instances.row_of_op[node], -1)
    good = row >= 0
    return block[good], row[good]


def _in_forward(cycle: Cycle, instances: OpInstances, allocation: Rows) -> Bools:
    """True for each allocation within a stretch of forward, outside backward."""
    passes = instances.passes
    time_ns = cycle.recording.allocations.time_ns[allocation]
    at = np.searchsorted(passes.start_ns, time_ns, side="right") - 1
    within = at >= 0
    within[within] = time_ns[within] <= passes.end_ns[at[within]]
    inside: Bools = within & (cycle.attribution.allocation_phase[allocation] != Phase.BACKWARD)
    return inside


@dataclass(frozen=True, slots=True)
class ActivationEntry:
    """Tensors that one operator invocation saves."""

    name: str  # Name of the operator as users write it
    size_bytes: int  # Saved storages that it keeps alive and that no earlier invocation had saved
    frames: tuple[SourceLine, ...]  # Lines of user code that called it, innermost first


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The answer for one device."""

    peak_bytes: int  # The largest of the cycles' peaks
    weights: tuple[Weight, ...]  # Parameters in the model's order
    # Activations in program order, of the last complete step of the cycle with that peak; empty if no operator ran in
    # forward.
    activations: tuple[ActivationEntry, ...]


def memory_report(
    findings: RunFindings,
    *,
    parameters: Iterable[Parameter] = (),
    known: KnownStorages | None = None,
) -> MemoryReport:
    """Put the report together."""
    worst = findings.worst.source
    instances = findings.instances[findings.parts.index(findings.worst)]
    saved = saved_activations(worst, instances)
    step = _step_to_show(instances, saved)
    return MemoryReport(
        peak_bytes=findings.worst.peak.peak_bytes,
        weights=weights(
            parameters, [(part.source.recording, part.source.attribution) for part in findings.parts], known
        ),
        activations=() if step is None else activation_entries(worst, instances, saved.of_step(step)),
    )


def _step_to_show(instances: OpInstances, saved: SavedActivations) -> int | None:
    """The last step with forward: what earlier ones carried over to it was made in the recording.

    A step that was cut short has no backward and so saves less than others; it is passed over.
    """
    steps = np.unique(instances.step)
    if not len(steps):
        return None
    totals = [int(saved.of_step(step).size_bytes.sum()) for step in steps.tolist()]
    complete = [step for step, total in zip(steps.tolist(), totals, strict=True) if 2 * total >= max(totals)]
    return int(complete[-1])


def activation_entries(cycle: Cycle, instances: OpInstances, saved: SavedActivations) -> tuple[ActivationEntry, ...]:
    """An entry per invocation that saves something in one step, in program order."""
    recording = cycle.recording
    size_bytes = sum_at(saved.row, saved.size_bytes, len(instances.op))
    rows = np.unique(saved.row)
    return tuple(
        ActivationEntry(
            name=short_op_name(recording.strings[recording.ops.name[op]]),
            size_bytes=size,
            frames=frames_of_op(recording, cycle.attribution, op),
        )
        for op, size in zip(instances.op[rows].tolist(), size_bytes[rows].tolist(), strict=True)
    )


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter of the model."""

    name: str
    size_bytes: int  # Bytes of its elements
    grad_size_bytes: int  # Bytes of its gradient as seen during the steps, 0 if it had none
    frames: tuple[SourceLine, ...]  # Lines that constructed it, innermost first


def weights(
    parameters: Iterable[Parameter],
    cycles: Sequence[tuple[Recording, Attribution]],
    known: KnownStorages | None = None,
) -> tuple[Weight, ...]:
    """The parameters with their gradients.

    A gradient that was observed has the size observed. Where none was, every parameter that wants one has one of its
    own size if a step accumulated as many gradients as there are such parameters; fewer cannot be told apart.
    """
    listed = tuple(parameters)
    observed: dict[str, int] = {}
    if known is not None:
        for row in np.flatnonzero(known.role == Role.GRADIENT).tolist():
            name = known.names[known.name[row]]
            observed[name] = max(observed.get(name, 0), int(known.size_bytes[row]))
    wanting = sum(parameter.wants_gradient for parameter in listed)
    all_have = not observed and wanting > 0 and _most_accumulated(cycles) >= wanting
    return tuple(
        Weight(
            name=parameter.name,
            size_bytes=parameter.size_bytes,
            # A gradient may be a part of a larger buffer.
            grad_size_bytes=min(
                parameter.size_bytes,
                parameter.size_bytes if all_have and parameter.wants_gradient else observed.get(parameter.name, 0),
            ),
            frames=parameter.lines,
        )
        for parameter in listed
    )


def _most_accumulated(cycles: Sequence[tuple[Recording, Attribution]]) -> int:
    most = 0
    for recording, attribution in cycles:
        nodes = (recording.ops.kind == OpKind.ENGINE) & recording.is_text(is_accumulate_grad)[recording.ops.name]
        steps = attribution.op_step[nodes]
        if len(steps):
            most = max(most, int(np.bincount(steps - steps.min()).max()))
    return most
