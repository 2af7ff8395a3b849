"""What operators did with each storage: which of them backward used, which are data that the loop has got from outside.

Shapes: K tensor storages ("keys"), N data-flow nodes, X edges, O operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.profiles.attribution import Attribution, Phase
from tracer.analysis.profiles.backward_passes import loader_calls
from tracer.analysis.profiles.time_spans import enclosing
from tracer.analysis.profiles.torch_categories import Categories
from tracer.arrays import Bool, Int, PerEdge, PerKey, PerNode, at
from tracer.capture.recording import DataFlow, Recording

# Operators whose result has the elements of what they are given, in another place: how a batch is put together and
# brought to a device. A plain copy beside the original is none of them.
_PUTS_TOGETHER = frozenset({"stack", "cat", "concat", "_nested_tensor_from_tensor_list"})
_MOVES = _PUTS_TOGETHER | frozenset(
    {"to", "_to_copy", "copy_", "contiguous", "pin_memory", "_pin_memory", "index", "index_select", "gather", "take"}
)
_MAX_NODES_FOLLOWED = 1000


@dataclass(frozen=True, slots=True, eq=False)
class StorageUses:
    """Uses of each storage, as columns [K]."""

    used_by_backward: PerKey[Bool]  # An autograd node, or Python code that it called, used it or let go of it
    last_used_by_backward_ns: PerKey[Int]  # When one did for the last time; -1 for none
    last_used_ns: PerKey[Int]  # When an operator used it for the last time; -1 for none
    # Made in the recording by a module, or by an operator out of other tensors: neither read from somewhere, nor drawn
    # at random, nor put together of what was there.
    is_computed: PerKey[Bool]
    # Made outside of modules, out of nothing or of tensors that were there before the step, and no mere piece of
    # another such one.
    is_source: PerKey[Bool]
    is_trained: PerKey[Bool]  # An operator that was given other tensors wrote to it
    # There before the recording, and of those that forward uses: beside a parameter, or, like a target, with what
    # parameters have made and behind the last of them.
    is_target: PerKey[Bool]


def storage_uses(recording: Recording, categories: Categories, attribution: Attribution) -> StorageUses:
    """Find what operators did with each storage."""
    return _Uses(recording, categories, attribution).run()


class _Uses:
    def __init__(self, recording: Recording, categories: Categories, attribution: Attribution) -> None:
        self.recording, self.categories, self.attribution = recording, categories, attribution
        flow = recording.flow
        self.num_keys, self.num_nodes = len(recording.keys.id), len(flow.node_time_ns)
        self.uses: PerEdge[Bool] = ~flow.edge_allocated
        self.edge_ns: PerEdge[Int] = flow.node_time_ns[flow.edge_node]
        self.allocation = self._allocations()

    def run(self) -> StorageUses:
        edges = self.recording.flow
        by_backward = self.uses & edges.node_backward[edges.edge_node]
        reads = self.uses & ~edges.edge_freed
        last_backward_ns = self._last(by_backward)
        is_given, moves, puts_together = self._makers(reads)
        is_inside = at(self.attribution.allocation_module, self.allocation, -1) >= 0
        was_allocated = self.allocation >= 0
        from_loader = was_allocated & (enclosing(*loader_calls(self.recording), self._made_ns()) >= 0)
        return StorageUses(
            used_by_backward=last_backward_ns >= 0,
            last_used_by_backward_ns=last_backward_ns,
            last_used_ns=self._last(reads),
            is_computed=was_allocated & (is_inside | (is_given & ~moves)) & ~from_loader,
            is_source=self._sources(was_allocated & ~is_inside, is_given, moves, puts_together, from_loader, reads),
            is_trained=self._trained(reads),
            is_target=self._targets(~was_allocated, reads),
        )

    # ------------------------------------------------------------------------------------------------ who made it
    def _allocations(self) -> PerKey[Int]:
        """[K] row of the allocation that made it, or -1."""
        allocations = self.recording.allocations
        allocation_of_key: PerKey[Int] = np.full(self.num_keys, -1, np.int64)
        rows = np.flatnonzero((allocations.key >= 0) & (allocations.size_bytes > 0))
        allocation_of_key[allocations.key[rows]] = rows
        return allocation_of_key

    def _made_ns(self) -> PerKey[Int]:
        return at(self.recording.allocations.time_ns, self.allocation, -1)

    def _makers(self, reads: PerEdge[Bool]) -> tuple[PerKey[Bool], PerKey[Bool], PerKey[Bool]]:
        """[K] whether what made it was given tensors, only moves elements, and puts several tensors together."""
        edges, ops = self.recording.flow, self.recording.ops
        has_inputs = np.bincount(edges.edge_node[reads], minlength=self.num_nodes) > 0
        is_given: PerKey[Bool] = np.zeros(self.num_keys, bool)
        is_given[edges.edge_key[edges.edge_allocated]] = has_inputs[edges.edge_node[edges.edge_allocated]]
        op = at(self.recording.allocations.op, self.allocation, -1)
        name = at(ops.name, op, -1)
        moves = self.recording.is_text(lambda text: text.removeprefix("aten::") in _MOVES)
        puts = self.recording.is_text(lambda text: text.removeprefix("aten::") in _PUTS_TOGETHER)
        return is_given, moves[name], puts[name]

    def _last(self, chosen: PerEdge[Bool]) -> PerKey[Int]:
        """[K] time of the last of some edges."""
        last: PerKey[Int] = np.full(self.num_keys, -1, np.int64)
        np.maximum.at(last, self.recording.flow.edge_key[chosen], self.edge_ns[chosen])
        return last

    def _trained(self, reads: PerEdge[Bool]) -> PerKey[Bool]:
        edges = self.recording.flow
        given_several = np.bincount(edges.edge_node[reads], minlength=self.num_nodes) > 1
        written = reads & edges.edge_mutated & ~edges.edge_allocated & given_several[edges.edge_node]
        is_trained: PerKey[Bool] = np.zeros(self.num_keys, bool)
        is_trained[edges.edge_key[written]] = True
        return is_trained

    # ------------------------------------------------------------------------------------------------ data from outside
    def _sources(
        self,
        outside: PerKey[Bool],
        is_given: PerKey[Bool],
        moves: PerKey[Bool],
        puts_together: PerKey[Bool],
        from_loader: PerKey[Bool],
        reads: PerEdge[Bool],
    ) -> PerKey[Bool]:
        phase = at(self.attribution.allocation_phase, self.allocation, Phase.OTHER)
        outside = outside & ((phase == Phase.OTHER) | (phase == Phase.FORWARD))
        edges = self.recording.flow
        step = at(self.attribution.allocation_step, self.allocation, -1)
        maker: PerKey[Int] = np.full(self.num_keys, -1, np.int64)
        maker[edges.edge_key[edges.edge_allocated]] = edges.edge_node[edges.edge_allocated]
        node_step: PerNode[Int] = np.full(self.num_nodes + 1, -1, np.int64)
        node_step[maker[maker >= 0]] = step[maker >= 0]
        was_there = step[edges.edge_key] < node_step[edges.edge_node]
        is_source = outside & (~is_given | from_loader)
        moved = outside & is_given & moves & ~is_source
        while True:
            strange = reads & ~was_there & ~is_source[edges.edge_key]
            is_pure: PerNode[Bool] = np.append(
                np.bincount(edges.edge_node[strange], minlength=self.num_nodes) == 0, False
            )
            new = moved & is_pure[maker] & ~is_source
            if not new.any():
                return is_source & ~self._pieces(is_source & puts_together, maker, reads)
            is_source = is_source | new

    def _pieces(self, wholes: PerKey[Bool], maker: PerKey[Int], reads: PerEdge[Bool]) -> PerKey[Bool]:
        """[K] whether nothing was done with it but to put it together with others."""
        edges = self.recording.flow
        puts_together: PerNode[Bool] = np.zeros(self.num_nodes, bool)
        puts_together[maker[wholes]] = True
        of_whole = puts_together[edges.edge_node]
        # Views and looks at a size or a value make nothing and write nothing.
        does_something = self._nodes_with((edges.edge_allocated & ~edges.edge_freed) | edges.edge_mutated)
        is_piece, is_used_otherwise = (np.zeros(self.num_keys, bool) for _ in range(2))
        is_piece[edges.edge_key[reads & of_whole]] = True
        is_used_otherwise[edges.edge_key[reads & ~of_whole & does_something[edges.edge_node]]] = True
        return np.asarray(is_piece & ~is_used_otherwise, np.bool_)

    def _targets(self, before: PerKey[Bool], reads: PerEdge[Bool]) -> PerKey[Bool]:
        edges, recording = self.recording.flow, self.recording
        forward = reads & ~edges.node_backward[edges.edge_node]
        is_parameter: PerKey[Bool] = np.zeros(self.num_keys, bool)
        is_parameter[recording.parameter_keys] = True
        with_parameter = self._nodes_with(forward & is_parameter[edges.edge_key])
        depends = self.categories.depends_on_parameter
        with_result = self._nodes_with(forward & depends[edges.edge_key])
        is_target: PerKey[Bool] = np.zeros(self.num_keys, bool)
        mine = forward & before[edges.edge_key] & ~depends[edges.edge_key]
        is_target[edges.edge_key[mine & with_parameter[edges.edge_node]]] = True
        rows = np.flatnonzero(mine & with_result[edges.edge_node] & ~is_target[edges.edge_key])
        if len(rows):
            followed = _Followed(recording.flow, forward)
            for row in rows.tolist():
                if not followed.leads_to(int(edges.edge_node[row]), with_parameter):
                    is_target[edges.edge_key[row]] = True
        return is_target

    def _nodes_with(self, chosen: PerEdge[Bool]) -> PerNode[Bool]:
        has_edge: PerNode[Bool] = np.zeros(self.num_nodes, bool)
        has_edge[self.recording.flow.edge_node[chosen]] = True
        return has_edge


class _Followed:
    """The data flow of forward, to be followed from one node to those that read what it has made."""

    def __init__(self, edges: DataFlow, forward: PerEdge[Bool]) -> None:
        self.edges = edges
        rows = np.flatnonzero(forward)
        self.readers = rows[np.argsort(edges.edge_key[rows], kind="stable")]
        self.reader_keys = edges.edge_key[self.readers]

    def leads_to(self, node: int, wanted: PerNode[Bool]) -> bool:
        """Whether a node's results reach a wanted node; also true if that is not found out within a limit."""
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
