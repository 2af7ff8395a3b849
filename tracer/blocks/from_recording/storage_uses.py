"""Spans of backward passes, and uses of each storage by operators: by backward, or as data from outside the loop.

Shapes: K tensor storages ("keys"), N data-flow nodes, X edges, O operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.arrays import Bool, Bools, Int, Ints, PerEdge, PerKey, PerNode, PerOp, at
from tracer.blocks.from_recording.attribution import Attribution, backward_calls
from tracer.blocks.from_recording.time_spans import TimeSpans, enclosing, merged
from tracer.blocks.from_recording.torch_categories import Categories
from tracer.blocks.rules import FactOf
from tracer.blocks.table import Phase
from tracer.capture.recording import CallKind, DataFlow, OpKind, Recording
from tracer.capture.torch_names import is_asking_a_loader


@dataclass(frozen=True, slots=True, eq=False)
class OutermostCalls:
    """Calls of modules by no module, in order, outside of backward. Columns with one row each."""

    start_ns: Ints
    end_ns: Ints
    records_grad: Bools  # Some operator in it ran with gradients on
    went_back: Bools  # Some backward pass went back to it


def backward_passes(recording: Recording, attribution: Attribution) -> TimeSpans:
    """Spans of backward passes, from the call that asked for one to its end, nested ones merged."""
    calls, rows = recording.calls, backward_calls(recording)
    if len(rows):
        return merged(calls.start_ns[rows], calls.end_ns[rows])
    ops = recording.ops
    order = np.argsort(ops.start_ns, kind="stable")
    is_backward = attribution.op_phase[order] == Phase.BACKWARD
    begins = is_backward & ~np.concatenate([[False], is_backward[:-1]])
    stretch = np.cumsum(begins)[is_backward] - 1
    end_ns: Ints = np.zeros(int(begins.sum()), np.int64)
    np.maximum.at(end_ns, stretch, ops.end_ns[order][is_backward])
    return ops.start_ns[order][begins], end_ns


def outermost_calls(recording: Recording, attribution: Attribution) -> OutermostCalls:
    """Find the calls of whole models; of each, whether it ran with gradients on and whether a backward followed."""
    calls, ops = recording.calls, recording.ops
    inside = calls.op >= 0
    node = np.where(inside, attribution.op_node[np.where(inside, calls.op, 0)] if len(ops.name) else -1, -1)
    rows = np.flatnonzero((calls.kind == CallKind.MODULE) & (node < 0))
    start_ns, end_ns = merged(calls.start_ns[rows], calls.end_ns[rows])

    def has(chosen: PerOp[Bool]) -> Bools:
        at = enclosing(start_ns, end_ns, ops.start_ns[chosen])
        return np.bincount(at[at >= 0], minlength=len(start_ns)) > 0

    is_maker: PerOp[Bool] = np.zeros(len(ops.name), bool)
    is_maker[attribution.op_forward[attribution.op_forward >= 0]] = True
    return OutermostCalls(start_ns, end_ns, has(records_grad(recording)), has(is_maker & (attribution.op_node < 0)))


def records_grad(recording: Recording) -> PerOp[Bool]:
    """[O] operators that ran with gradients on: those that the profiler numbers, and those of a custom function."""
    ops = recording.ops
    is_recorded = (ops.kind == OpKind.OPERATOR) & (ops.sequence_number >= 0)
    above = np.where(ops.parent >= 0, ops.parent, 0)
    while (more := (ops.parent >= 0) & is_recorded[above] & ~is_recorded & (ops.kind == OpKind.OPERATOR)).any():
        is_recorded = is_recorded | more
    return np.asarray(is_recorded, np.bool_)


def loader_calls(recording: Recording) -> TimeSpans:
    """Spans of the calls that asked a DataLoader for its next batch."""
    calls, rows = recording.calls, recording.calls_of(is_asking_a_loader)
    return merged(calls.start_ns[rows], calls.end_ns[rows])


# Operators whose result has the elements of what they are given, in another place: how a batch is put together and
# brought to a device. A plain copy beside the original is none of them.
_PUTS_TOGETHER = frozenset({"stack", "cat", "concat", "_nested_tensor_from_tensor_list"})
_MOVES = _PUTS_TOGETHER | frozenset(
    {"to", "_to_copy", "copy_", "contiguous", "pin_memory", "_pin_memory", "index", "index_select", "gather", "take"}
)
_MAX_NODES_FOLLOWED = 1000


truth = FactOf["StorageUses", Bool]
number = FactOf["StorageUses", Int]


@dataclass(frozen=True, eq=False)
class StorageUses:
    """Uses of each storage, as columns [K]; -1 is none."""

    recording: Recording
    categories: Categories
    attribution: Attribution

    # ---- what they are made of ---------------------------------------------------------------------------------------

    @property
    def num_keys(self) -> int:
        """Storages."""
        return len(self.recording.keys.id)

    def keys_of(self, chosen: PerEdge[Bool]) -> PerKey[Bool]:
        """Storages that have one of some edges."""
        has_edge: PerKey[Bool] = np.zeros(self.num_keys, bool)
        has_edge[self.recording.flow.edge_key[chosen]] = True
        return has_edge

    def nodes_with(self, chosen: PerEdge[Bool]) -> PerNode[Bool]:
        """Nodes that have one of some edges."""
        has_edge: PerNode[Bool] = np.zeros(len(self.recording.flow.node_time_ns), bool)
        has_edge[self.recording.flow.edge_node[chosen]] = True
        return has_edge

    def last_ns(self, chosen: PerEdge[Bool]) -> PerKey[Int]:
        """Time of the last of some edges."""
        last: PerKey[Int] = np.full(self.num_keys, -1, np.int64)
        edges = self.recording.flow
        np.maximum.at(last, edges.edge_key[chosen], edges.node_time_ns[edges.edge_node[chosen]])
        return last

    def made_by(self, operators: frozenset[str]) -> PerKey[Bool]:
        """Return True for each storage that one of these operators made."""
        name = at(self.recording.ops.name, at(self.recording.allocations.op, self.allocation, -1), -1)
        return self.recording.is_text(lambda text: text.removeprefix("aten::") in operators)[name]

    @number
    def allocation(self) -> PerKey[Int]:
        """Row of the allocation that made it."""
        allocations = self.recording.allocations
        allocation_of_key: PerKey[Int] = np.full(self.num_keys, -1, np.int64)
        rows = np.flatnonzero((allocations.key >= 0) & (allocations.size_bytes > 0))
        allocation_of_key[allocations.key[rows]] = rows
        return allocation_of_key

    reads = truth(lambda f: ~f.recording.flow.edge_allocated & ~f.recording.flow.edge_freed)  # [X]
    of_backward = truth(lambda f: f.recording.flow.node_backward[f.recording.flow.edge_node])  # [X]
    made_ns = number(lambda f: at(f.recording.allocations.time_ns, f.allocation, -1))
    is_inside = truth(lambda f: at(f.attribution.allocation_module, f.allocation, -1) >= 0)  # Made by a module
    from_loader = truth(lambda f: (f.allocation >= 0) & (enclosing(*loader_calls(f.recording), f.made_ns) >= 0))

    @truth
    def is_given(self) -> PerKey[Bool]:
        """The operator that made it read other tensors."""
        edges = self.recording.flow
        return self.keys_of(edges.edge_allocated & self.nodes_with(self.reads)[edges.edge_node])

    # ---- uses --------------------------------------------------------------------------------------------------------

    # When an autograd node, or Python code that it called, used it or let go of it for the last time
    last_used_by_backward_ns = number(lambda f: f.last_ns(~f.recording.flow.edge_allocated & f.of_backward))
    used_by_backward = truth(lambda f: f.last_used_by_backward_ns >= 0)
    last_used_ns = number(lambda f: f.last_ns(f.reads))  # When an operator did
    # Made in the recording by a module, or by an operator out of other tensors: neither read from somewhere, nor drawn
    # at random, nor put together of what was there
    is_computed = truth(
        lambda f: (f.allocation >= 0) & (f.is_inside | (f.is_given & ~f.made_by(_MOVES))) & ~f.from_loader
    )

    @truth
    def is_trained(self) -> PerKey[Bool]:
        """An operator that was given other tensors wrote to it."""
        edges = self.recording.flow
        given_several = np.bincount(edges.edge_node[self.reads], minlength=len(edges.node_time_ns)) > 1
        return self.keys_of(self.reads & edges.edge_mutated & given_several[edges.edge_node])

    @truth
    def is_source(self) -> PerKey[Bool]:
        """Made outside of modules, out of nothing or of tensors that were there before the step.

        And no mere piece of another such one.
        """
        phase = at(self.attribution.allocation_phase, self.allocation, Phase.OTHER)
        outside = (self.allocation >= 0) & ~self.is_inside & ((phase == Phase.OTHER) | (phase == Phase.FORWARD))
        edges = self.recording.flow
        step = at(self.attribution.allocation_step, self.allocation, -1)
        maker: PerKey[Int] = np.full(self.num_keys, -1, np.int64)
        maker[edges.edge_key[edges.edge_allocated]] = edges.edge_node[edges.edge_allocated]
        node_step: PerNode[Int] = np.full(len(edges.node_time_ns) + 1, -1, np.int64)
        node_step[maker[maker >= 0]] = step[maker >= 0]
        was_there = step[edges.edge_key] < node_step[edges.edge_node]
        is_source: PerKey[Bool] = outside & (~self.is_given | self.from_loader)
        moved = outside & self.is_given & self.made_by(_MOVES) & ~is_source
        while True:
            strange = self.reads & ~was_there & ~is_source[edges.edge_key]
            is_pure: PerNode[Bool] = np.append(~self.nodes_with(strange), False)
            new = moved & is_pure[maker] & ~is_source
            if not new.any():
                return is_source & ~self._pieces(is_source & self.made_by(_PUTS_TOGETHER), maker)
            is_source = is_source | new

    def _pieces(self, wholes: PerKey[Bool], maker: PerKey[Int]) -> PerKey[Bool]:
        """Return True for each storage that was only joined with others."""
        edges = self.recording.flow
        puts_together: PerNode[Bool] = np.zeros(len(edges.node_time_ns), bool)
        puts_together[maker[wholes]] = True
        of_whole = puts_together[edges.edge_node]
        # Views and looks at a size or a value make nothing and write nothing.
        does_something = self.nodes_with((edges.edge_allocated & ~edges.edge_freed) | edges.edge_mutated)
        is_used_otherwise = self.keys_of(self.reads & ~of_whole & does_something[edges.edge_node])
        return self.keys_of(self.reads & of_whole) & ~is_used_otherwise

    @truth
    def is_target(self) -> PerKey[Bool]:
        """Storages from before the recording that are used with those that forward uses.

        Beside a parameter, or, like a target, with what parameters have made and behind the last of them.
        """
        edges, before = self.recording.flow, self.allocation < 0
        forward = self.reads & ~self.of_backward
        is_parameter: PerKey[Bool] = np.zeros(self.num_keys, bool)
        is_parameter[self.recording.parameter_keys] = True
        with_parameter = self.nodes_with(forward & is_parameter[edges.edge_key])
        depends = self.categories.depends_on_parameter
        with_result = self.nodes_with(forward & depends[edges.edge_key])
        mine = forward & before[edges.edge_key] & ~depends[edges.edge_key]
        is_target = self.keys_of(mine & with_parameter[edges.edge_node])
        rows = np.flatnonzero(mine & with_result[edges.edge_node] & ~is_target[edges.edge_key])
        if len(rows):
            followed = _Followed(edges, forward)
            for row in rows.tolist():
                if not followed.leads_to(int(edges.edge_node[row]), with_parameter):
                    is_target[edges.edge_key[row]] = True
        return is_target


class _Followed:
    """The data flow of forward, to be followed from one node to those that read what it has made."""

    def __init__(self, edges: DataFlow, forward: PerEdge[Bool]) -> None:
        self.edges = edges
        rows = np.flatnonzero(forward)
        self.readers = rows[np.argsort(edges.edge_key[rows], kind="stable")]
        self.reader_keys = edges.edge_key[self.readers]

    def leads_to(self, node: int, wanted: PerNode[Bool]) -> bool:
        """Return True if a node's results reach a wanted node, or if that is not found out within a limit."""
        work, seen = [node], {node}
        while work:
            if len(seen) > _MAX_NODES_FOLLOWED:
                return True
            for reader in self._behind(work.pop()):
                if wanted[reader]:
                    return True
                if reader not in seen:
                    seen.add(reader)
                    work.append(reader)
        return False

    def _behind(self, node: int) -> list[int]:
        edges = self.edges
        mine = slice(*np.searchsorted(edges.edge_node, [node, node + 1]).tolist())
        results = (edges.edge_allocated[mine] | edges.edge_mutated[mine]) & ~edges.edge_freed[mine]
        readers: list[int] = []
        for key in edges.edge_key[mine][results].tolist():
            start, end = np.searchsorted(self.reader_keys, [key, key + 1]).tolist()
            readers += [reader for reader in edges.edge_node[self.readers[start:end]].tolist() if reader > node]
        return readers
