"""What forward keeps for backward: for every operator invocation the bytes that its autograd nodes hold alive.

A storage is saved if an autograd node reads it (torch's data flow shows what each node read) or if it was made in
forward and freed while the autograd engine ran: whoever lets go there is the graph. It counts once in a step, for the
first invocation in program order whose node holds it, because that node is the last to let go; a batch that lives for
several steps is saved anew in each. Parameters, buffers, gradients and optimizer state are not activations; the batch
is one when it is saved, and is marked as such.

Shapes: T saved storages, R invocations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.operators.invocations import OpInstances, rows_starting_at
from tracer.analysis.profiles.attribution import Phase
from tracer.analysis.profiles.classify_blocks import Cycle
from tracer.arrays import Bool, Bools, ColumnTable, Int, Ints, PerBlock, PerSavedTensor, Rows
from tracer.capture.torch_names import OPTIMIZER_PREFIXES

_NOBODYS = (Kind.PARAMETER, Kind.BUFFER, Kind.GRADIENT, Kind.OPTIMIZER_STATE)


class HowSaved(IntEnum):
    """How a storage is known to be saved."""

    READ_IN_BACKWARD = 0
    FREED_IN_BACKWARD = 1  # No node read it, but the graph let go of it


@dataclass(frozen=True, slots=True, eq=False)
class SavedActivations(ColumnTable):
    """Saved storages, each once in a step. Columns [T]."""

    block: PerSavedTensor[Int]  # Row in `BlockLifetimes`
    row: PerSavedTensor[Int]  # Row in `OpInstances`: the first invocation that saved it
    step: PerSavedTensor[Int]  # Index of the step
    size_bytes: PerSavedTensor[Int]  # As the allocator handed it out
    is_input: PerSavedTensor[Bool]  # It is the batch
    evidence: PerSavedTensor[Int]  # `HowSaved`

    def of_step(self, step: int) -> SavedActivations:
        """The activations that one step saved."""
        return self.take(self.step == step)


def saved_activations(cycle: Cycle, instances: OpInstances) -> SavedActivations:
    """Find every storage that a forward keeps for its backward."""
    lifetimes = cycle.lifetimes
    block, row, evidence = _holders(cycle, instances)
    good = _eligible(cycle, instances)[block] & _made_before(cycle, instances, block, row)
    block, row, evidence = block[good], row[good], evidence[good]
    # The earliest holder of each step wins; for the evidence, a node that read it does.
    step = instances.step[row]
    order = np.lexsort((evidence, row, step, block))
    block, row, evidence, step = block[order], row[order], evidence[order], step[order]
    first = np.ones(len(block), bool)
    first[1:] = (block[1:] != block[:-1]) | (step[1:] != step[:-1])
    was_read = np.zeros(len(lifetimes.size_bytes), bool)
    was_read[block[evidence == HowSaved.READ_IN_BACKWARD]] = True
    block, row = block[first], row[first]
    return SavedActivations(
        block=block,
        row=row,
        step=instances.step[row],
        size_bytes=lifetimes.size_bytes[block],
        is_input=cycle.blocks.kind[block] == Kind.INPUT,
        evidence=np.where(was_read[block], HowSaved.READ_IN_BACKWARD, HowSaved.FREED_IN_BACKWARD),
    )


def _made_before(cycle: Cycle, instances: OpInstances, block: Rows, row: Rows) -> Bools:
    """Whether each block was there when the invocation ended: a node also reads what other nodes have just made."""
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
    # Of what was there before, torch's data flow takes the buffers of a norm for a batch where no tensor was observed.
    is_known = by_operator | (lifetimes.observed_as >= 0) | (~made_here & lifetimes.count.is_walked)
    return np.asarray(is_eligible | ((kinds == Kind.INPUT) & is_known), np.bool_)


def _in_optimizer(cycle: Cycle, instances: OpInstances, allocation: Rows) -> Bools:
    """Whether each allocation was made while an optimizer ran, and not by a forward that the optimizer called.

    An optimizer that gives parameters new storages may leave autograd on, so that its operators look like forward.
    """
    recording = cycle.recording
    spans, time_ns = recording.spans, recording.allocations.time_ns[allocation]
    inside = np.zeros(len(allocation), bool)
    for row in recording.spans_named(OPTIMIZER_PREFIXES).tolist():
        inside |= (time_ns >= spans.start_ns[row]) & (time_ns < spans.end_ns[row])
    in_optimizer: Bools = inside & ~_in_forward(cycle, instances, allocation)
    return in_optimizer


def _holders(cycle: Cycle, instances: OpInstances) -> tuple[Rows, Rows, Ints]:
    """Pairs of block and the invocation whose node read or released it, with the evidence."""
    read_block, read_row = _readers(cycle, instances)
    freed_block, freed_row = _releasers(cycle, instances)
    evidence = np.repeat([int(HowSaved.READ_IN_BACKWARD), int(HowSaved.FREED_IN_BACKWARD)],
                         [len(read_block), len(freed_block)])  # fmt: skip
    return np.concatenate([read_block, freed_block]), np.concatenate([read_row, freed_row]), evidence.astype(np.int64)


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
    """Whether each allocation was made within a stretch of forward, outside backward."""
    passes = instances.passes
    time_ns = cycle.recording.allocations.time_ns[allocation]
    at = np.searchsorted(passes.start_ns, time_ns, side="right") - 1
    within = at >= 0
    within[within] = time_ns[within] <= passes.end_ns[at[within]]
    inside: Bools = within & (cycle.attribution.allocation_phase[allocation] != Phase.BACKWARD)
    return inside
