"""Categories by torch's data-flow rules: those of `torch.profiler._memory_profiler`, on columns.

A storage (key) has versions, counted from 0, one more each time it is written to. A category can be given to an id (a
group of keys), to a key, or to one version of a key; the id's wins over the key's, the key's over the version's.

Source: `MemoryProfile` in torch/profiler/_memory_profiler.py; behaviour identical from torch 2.11 to 2.15. Where
passes depend on the order of the nodes they walk them one by one, on integers; everything else is vectorised.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tracer.arrays import Bool, Int, Ints, PerEdge, PerKey, PerSlot, Rows
from tracer.capture.recording import DataFlow, Recording


class Category(IntEnum):
    """Torch's categories of tensor memory, in the order of its timeline's columns. UNTAGGED is torch's None."""

    PARAMETER = 0
    OPTIMIZER_STATE = 1
    INPUT = 2
    TEMPORARY = 3
    ACTIVATION = 4
    GRADIENT = 5
    AUTOGRAD_DETAIL = 6
    UNTAGGED = 7


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The data flow with versions: slot = one version of one key. Nodes [N], edges [X], slots [V]."""

    slot_offset: Ints  # [K + 1]: the slots of key k are `slot_offset[k] : slot_offset[k + 1]`, version by version
    edge_version: PerEdge[Int]  # [X]: the key's version when the node ran; for an allocation -1
    inputs: list[list[int]]  # Per node, the slots it found
    outputs: list[list[int]]  # Per node, the slots it left
    intermediate_keys: Rows  # Keys that one node allocated and freed
    known_slots: PerSlot[Bool]  # [V]: slots that some node found, left or used up


@dataclass(frozen=True, slots=True, eq=False)
class Categories:
    """The category of every version of every tensor storage in a recording."""

    flow: Flow  # Versions of storages, which the timeline follows
    of_slot: PerSlot[Int]  # [V] Category of each slot
    known_slots: PerSlot[Bool]  # [V] Slots that the data flow or a rule by id has named; torch lists only these
    # [K] Whether a gradient or parameter went into it, or into a storage of the same id.
    depends_on_parameter: PerKey[Bool]

    def of(self, keys: Ints, versions: Ints) -> Ints:
        """Categories of (key, version) pairs; key -1, never a tensor, is UNTAGGED."""
        out = np.full(len(keys), int(Category.UNTAGGED), np.int64)
        tensors = keys >= 0
        out[tensors] = self.of_slot[self.flow.slot_offset[keys[tensors]] + versions[tensors]]
        return out


def categorize(recording: Recording) -> Categories:
    """Give every version of every storage torch's category."""
    flow = build_flow(recording.flow, len(recording.keys.id))
    return _Passes(recording, flow).run()


def build_flow(edges: DataFlow, num_keys: int) -> Flow:
    """Number the versions of every key along the data flow."""
    key, allocated, freed = edges.edge_key, edges.edge_allocated, edges.edge_freed
    # A node that allocates a storage does not also bump it; one that frees it leaves no version behind.
    bumps = edges.edge_mutated & ~allocated & ~freed
    by_key = np.argsort(key, kind="stable")
    before: PerEdge[Int] = np.cumsum(bumps[by_key]) - bumps[by_key]
    num_bumps = np.bincount(key, weights=bumps, minlength=num_keys).astype(np.int64)
    version = np.empty(len(key), np.int64)
    version[by_key] = before - np.concatenate(([0], np.cumsum(num_bumps)))[key[by_key]]
    offset = np.concatenate(([0], np.cumsum(num_bumps + 1))).astype(np.int64)
    slot = offset[key] + np.where(allocated, 0, version)
    is_input = ~allocated
    is_output = ~freed & (allocated | edges.edge_mutated)
    output_slot = slot + np.where(allocated, 0, 1)
    intermediate = allocated & freed
    known = np.zeros(int(offset[-1]), bool)
    known[slot[is_input]] = True
    known[output_slot[is_output]] = True
    known[slot[intermediate]] = True
    num_nodes = len(edges.node_time_ns)
    return Flow(
        slot_offset=offset,
        edge_version=np.where(allocated, -1, version),
        inputs=_per_node(edges.edge_node[is_input], slot[is_input], num_nodes),
        outputs=_per_node(edges.edge_node[is_output], output_slot[is_output], num_nodes),
        intermediate_keys=np.unique(key[intermediate]),
        known_slots=known,
    )


def _per_node(node: PerEdge[Int], slots: PerEdge[Int], num_nodes: int) -> list[list[int]]:
    bounds = np.searchsorted(node, np.arange(num_nodes + 1)).tolist()
    flat = slots.tolist()
    return [flat[a:b] for a, b in itertools.pairwise(bounds)]


# Inside the passes: torch's own truthiness, 0 means no category. Category c is stored as c + 1.
_NONE = 0
_PARAMETER, _OPTIMIZER_STATE, _INPUT, _TEMPORARY, _ACTIVATION, _GRADIENT, _AUTOGRAD_DETAIL = range(1, 8)


class _Passes:
    """Torch's seven passes in their order; each reads what the earlier ones wrote."""

    def __init__(self, recording: Recording, flow: Flow) -> None:
        self.recording, self.flow = recording, flow
        self.backward = recording.flow.node_backward.tolist()
        ids = recording.keys.id
        self.num_slots = int(flow.slot_offset[-1])
        self.key_of_slot = np.repeat(np.arange(len(ids)), np.diff(flow.slot_offset))
        # Ids are dense numbers already, but a recording may start at any.
        self.unique_ids, self.id_of_key = np.unique(ids, return_inverse=True)
        self.id_of_slot = self.id_of_key[self.key_of_slot]
        self.by_id = np.zeros(len(self.unique_ids), np.int64)
        self.by_key = np.zeros(len(ids), np.int64)
        self.by_slot = np.zeros(self.num_slots, np.int64)
        self.known = flow.known_slots.copy()

    def run(self) -> Categories:
        recording = self.recording
        self._set_by_id(recording.gradient_keys, _GRADIENT)
        self.by_key[self.flow.intermediate_keys] = _TEMPORARY
        self._set_by_id(recording.parameter_keys, _PARAMETER)
        depends = self._depends_on_gradient_or_parameter()
        self._set_inputs(depends)
        self._set_parameters_by_data_flow(depends)
        self._set_activations()
        self._set_by_id(recording.optimizer_state_keys, _OPTIMIZER_STATE)
        self._set_autograd_detail()
        category = self._current()
        of_slot = np.where(category == _NONE, int(Category.UNTAGGED), category - 1)
        return Categories(
            flow=self.flow, of_slot=of_slot, known_slots=self.known, depends_on_parameter=depends[self.id_of_key]
        )

    def _current(self) -> PerSlot[Int]:
        by_id, by_key = self.by_id[self.id_of_slot], self.by_key[self.key_of_slot]
        return np.where(by_id != _NONE, by_id, np.where(by_key != _NONE, by_key, self.by_slot))

    def _set_by_id(self, keys: Rows, category: int) -> None:
        self.by_id[self.id_of_key[keys]] = category
        self.known[self.flow.slot_offset[keys]] = True

    def _depends_on_gradient_or_parameter(self) -> PerSlot[Bool]:
        """[ids] whether a tensor is one that a gradient or parameter went into, or such an operator's result.

        Source: `MemoryProfile._any_version_depends_on_gradient`, whose repeated loops are one closure.
        """
        flow, ids = self.flow, self.id_of_slot.tolist()
        current = self._current()
        readers: list[list[int]] = [[] for _ in self.by_id]
        for node, inputs in enumerate(flow.inputs):
            for slot in inputs:
                readers[ids[slot]].append(node)
        is_input = np.zeros(self.num_slots, bool)
        is_input[list(itertools.chain.from_iterable(flow.inputs))] = True
        start = is_input & ((current == _GRADIENT) | (current == _PARAMETER))
        depends = np.zeros(len(self.by_id), bool)
        # Every node is followed once: an operator on lists has thousands of inputs and outputs.
        followed = bytearray(len(flow.inputs))
        work = np.unique(self.id_of_slot[start]).tolist()
        while work:
            which = work.pop()
            if not depends[which]:
                depends[which] = True
                for node in readers[which]:
                    if not followed[node]:
                        followed[node] = True
                        work.extend(ids[slot] for slot in flow.outputs[node])
        return depends

    def _set_inputs(self, depends: PerSlot[Bool]) -> None:
        """INPUT: what leads to a gradient or parameter without depending on one.

        Source: `MemoryProfile._set_inputs`.
        """
        current = self._current()
        produces = bytearray((((current == _GRADIENT) | (current == _PARAMETER)).astype(np.uint8)).tobytes())
        marked = bytearray(self.num_slots)
        flow = self.flow
        for inputs, outputs in zip(reversed(flow.inputs), reversed(flow.outputs), strict=True):
            slots = inputs + outputs
            for slot in slots:
                if produces[slot]:
                    for reached in slots:
                        produces[reached] = marked[reached] = 1
                    break
        for outputs, backward in zip(flow.outputs, self.backward, strict=True):
            if backward:
                for slot in outputs:
                    marked[slot] = 0
        slots_marked = np.frombuffer(marked, np.uint8).astype(bool)
        self.by_slot[slots_marked & ~depends[self.id_of_slot] & (self.by_slot == _NONE)] = _INPUT

    def _set_parameters_by_data_flow(self, depends: PerSlot[Bool]) -> None:
        """PARAMETER: what a forward pass takes besides its inputs and a backward pass has a gradient for.

        Source: `MemoryProfile._set_parameters_using_data_flow`.
        """
        current, flow = self._current(), self.flow
        gradient = set(np.flatnonzero(current == _GRADIENT).tolist())
        forward = set(np.flatnonzero((current == _INPUT) & self.known).tolist())
        candidates: set[int] = set()
        for inputs, outputs, backward in zip(flow.inputs, flow.outputs, self.backward, strict=True):
            if backward or forward.isdisjoint(inputs):
                continue
            if gradient.isdisjoint(inputs) and gradient.isdisjoint(outputs):
                forward.update(outputs)
                candidates.update(slot for slot in inputs if slot not in forward)
        used, in_used = gradient, set[int]()
        for inputs, outputs in zip(reversed(flow.inputs), reversed(flow.outputs), strict=True):
            if not used.isdisjoint(outputs):
                used.update(inputs)
                in_used.update(inputs)
        slots = np.array(list(candidates & in_used), np.int64)
        is_parameter = np.zeros(len(self.by_id), bool)
        is_parameter[self.id_of_slot[slots]] = True
        is_parameter &= depends
        keys = np.unique(self.key_of_slot[self.known & is_parameter[self.id_of_slot]])
        self._set_by_id(keys, _PARAMETER)

    def _set_activations(self) -> None:
        """ACTIVATION: results outside backward of inputs and activations, perhaps with parameters and temporaries.

        Source: `MemoryProfile._set_activations`.
        """
        feeds, allowed = {_INPUT, _ACTIVATION}, {_INPUT, _ACTIVATION, _PARAMETER, _TEMPORARY}
        current = self._current().tolist()
        fixed = ((self.by_id[self.id_of_slot] != _NONE) | (self.by_key[self.key_of_slot] != _NONE)).tolist()
        by_slot = self.by_slot.tolist()
        for inputs, outputs, backward in zip(self.flow.inputs, self.flow.outputs, self.backward, strict=True):
            if backward:
                continue
            categories = {current[slot] for slot in inputs}
            if categories & feeds and categories <= allowed:
                for slot in outputs:
                    if by_slot[slot] == _NONE:
                        by_slot[slot] = _ACTIVATION
                        if not fixed[slot]:
                            current[slot] = _ACTIVATION
        self.by_slot = np.array(by_slot, np.int64)

    def _set_autograd_detail(self) -> None:
        """AUTOGRAD_DETAIL: what backward makes, or writes into a tensor without a category.

        Source: `MemoryProfile._set_autograd_detail`.
        """
        current = self._current().tolist()
        fixed = ((self.by_id[self.id_of_slot] != _NONE) | (self.by_key[self.key_of_slot] != _NONE)).tolist()
        by_slot = self.by_slot.tolist()
        first = np.zeros(self.num_slots, bool)
        first[self.flow.slot_offset[:-1]] = True
        is_first = first.tolist()
        for outputs, backward in zip(self.flow.outputs, self.backward, strict=True):
            if not backward:
                continue
            for slot in outputs:
                extends = is_first[slot] or current[slot - 1] in (_NONE, _AUTOGRAD_DETAIL)
                if extends and by_slot[slot] == _NONE:
                    by_slot[slot] = _AUTOGRAD_DETAIL
                    if not fixed[slot]:
                        current[slot] = _AUTOGRAD_DETAIL
        self.by_slot = np.array(by_slot, np.int64)
