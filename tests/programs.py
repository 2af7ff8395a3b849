"""Recordings built by hand: a few storages, nodes that read, write, make and free them, and blocks without a tensor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from tests.histories import NOTHING, START_NS
from tracer.capture.recording import Allocations, DataFlow, Keys, Recording

# A node and all that happens in it take this long, so that some share their microsecond and some do not.
NODE_NS = 700
_EVENT_NS = 25


@dataclass(frozen=True, slots=True)
class Storage:
    """A tensor's storage. The id groups storages that one tensor had in turn."""

    id: int
    size_bytes: int = 100
    device: int = 0


@dataclass(slots=True)
class Node:
    """One operator of the data flow; storages are named by their index."""

    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    allocates: set[int] = field(default_factory=set)
    frees: set[int] = field(default_factory=set)
    backward: bool = False
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    """Blocks that were never tensors, made and freed: device, address, bytes (negative for a free)."""


@dataclass(slots=True)
class Program:
    """A recording to be."""

    storages: list[Storage]
    nodes: list[Node]
    gradients: set[int] = field(default_factory=set)
    parameters: set[int] = field(default_factory=set)
    optimizer_states: set[int] = field(default_factory=set)
    devices: tuple[str, ...] = ("cpu",)

    def node_time_ns(self, index: int) -> int:
        return START_NS + index * NODE_NS

    def allocation_rows(self) -> list[tuple[int, int, int, int]]:
        """Time, storage or -1, bytes and device of every allocation and free, in order."""
        rows = []
        for index, node in enumerate(self.nodes):
            time_ns = self.node_time_ns(index)
            made = [(key, self.storages[key].size_bytes, self.storages[key].device) for key in sorted(node.allocates)]
            gone = [(key, -self.storages[key].size_bytes, self.storages[key].device) for key in sorted(node.frees)]
            blocks = [(-1, size, device) for device, _, size in node.blocks]
            for key, size, device in made + gone + blocks:
                time_ns += _EVENT_NS
                rows.append((time_ns, key, size, device))
        return rows

    def addresses(self) -> list[int]:
        """Addresses of `allocation_rows`; storage k lies at 1000 + k."""
        addresses = []
        for node in self.nodes:
            addresses += [1000 + key for key in (*sorted(node.allocates), *sorted(node.frees))]
            addresses += [address for _, address, _ in node.blocks]
        return addresses

    def recording(self) -> Recording:
        rows = self.allocation_rows()
        time_ns, key, size, device = (np.array([row[i] for row in rows], np.int64) for i in range(4))
        allocated = [0] * len(self.devices)
        totals = []
        for row in rows:
            allocated[row[3]] += row[2]
            totals.append(allocated[row[3]])
        none = np.full(len(rows), -1)
        edges = [
            (index, key, key in node.allocates, key in node.frees, key in node.writes)
            for index, node in enumerate(self.nodes)
            for key in sorted(node.reads | node.writes | node.allocates | node.frees)
        ]
        edge_node, edge_key, made, freed, written = (np.array([e[i] for e in edges], np.int64) for i in range(5))
        count = len(self.storages)
        return replace(
            NOTHING,
            devices=self.devices,
            allocations=Allocations(
                time_ns=time_ns,
                address=np.array(self.addresses(), np.int64),
                size_bytes=size,
                allocation_id=np.where(key >= 0, key, 10_000 + np.arange(len(rows))),
                key=key,
                device=device,
                total_allocated_bytes=np.array(totals, np.int64),
                total_reserved_bytes=np.zeros(len(rows), np.int64),
                op=none,
                call=none,
                assumed=np.zeros(len(rows), bool),
            ),
            keys=Keys(
                id=np.array([storage.id for storage in self.storages], np.int64),
                allocation_id=np.arange(count),
                device=np.array([storage.device for storage in self.storages], np.int64),
                address=1000 + np.arange(count),
                size_bytes=np.array([storage.size_bytes for storage in self.storages], np.int64),
                shape=np.full(count, -1),
                dtype=np.full(count, -1),
            ),
            flow=DataFlow(
                node_time_ns=np.array([self.node_time_ns(i) for i in range(len(self.nodes))], np.int64),
                node_backward=np.array([node.backward for node in self.nodes], bool),
                edge_node=edge_node,
                edge_key=edge_key,
                edge_allocated=made.astype(bool),
                edge_freed=freed.astype(bool),
                edge_mutated=written.astype(bool),
            ),
            gradient_keys=np.array(sorted(self.gradients), np.int64),
            parameter_keys=np.array(sorted(self.parameters), np.int64),
            optimizer_state_keys=np.array(sorted(self.optimizer_states), np.int64),
            num_events=len(rows) + len(self.nodes),
        )


@st.composite
def programs(draw: st.DrawFn, *, blocks: bool = True) -> Program:
    """Any data flow that torch would not reject: a storage is made once at most, and gone after its free."""
    num_nodes = draw(st.integers(0, 12))
    num_storages = draw(st.integers(0, 7))
    num_devices = draw(st.integers(1, 2))
    # Storages are in order of their ids, and some share one.
    ids = sorted(draw(st.lists(st.integers(0, 6), min_size=num_storages, max_size=num_storages)))
    nodes = [Node(backward=draw(st.booleans())) for _ in range(num_nodes)]
    storages = []
    for key, id_ in enumerate(ids):
        device = draw(st.integers(0, num_devices - 1))
        storages.append(Storage(id_, draw(st.integers(1, 1000)), device))
        first = draw(st.integers(-1, num_nodes - 1))
        last = draw(st.integers(max(first, 0), num_nodes))
        if first >= 0:
            nodes[first].allocates.add(key)
        for index in range(max(first, 0), min(last + 1, num_nodes)):
            access = draw(st.sampled_from(("none", "none", "read", "write")))
            if access == "read":
                nodes[index].reads.add(key)
            elif access == "write":
                nodes[index].writes.add(key)
        if last < num_nodes and draw(st.booleans()):
            nodes[last].frees.add(key)
    for node in nodes:
        for _ in range(draw(st.integers(0, 2)) if blocks else 0):
            address, size = draw(st.integers(0, 2)), draw(st.integers(1, 50))
            node.blocks.append((draw(st.integers(0, num_devices - 1)), address, draw(st.sampled_from((size, -size)))))
    some = st.sets(st.sampled_from(range(num_storages)), max_size=3) if num_storages else st.just(set())
    devices = ("cpu", "cuda:0")[:num_devices]
    return Program(storages, nodes, draw(some), draw(some), draw(some), devices)
