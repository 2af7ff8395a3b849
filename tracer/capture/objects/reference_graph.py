"""The graph of references: Python's objects as the garbage collector sees them, autograd's nodes, and their memory.

All of it is read once, so that any number of questions costs one look through all objects. A vertex is the `id()` of an
object; memory is a negative number. No code of a user's class is called, and nothing is kept when the graph is let go.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tracer.arrays import Ints
from tracer.capture.objects.plain_tensors import plain_tensors
from tracer.capture.torch_private import torch_graph

MAX_NODES: Final = 200_000


class ReferenceGraph:
    """References at one moment."""

    def __init__(self, device: torch.device | None = None) -> None:
        """Read the graph from the garbage collector and from autograd.

        Args:
            device: The device whose memory is of interest; None for any.
        """
        self._device = device
        self.memory: dict[int, int] = {}  # By address the vertex of its memory
        self.size_bytes: dict[int, int] = {}  # Bytes of each memory, by vertex
        objects = gc.get_objects()
        # What the collector knows, and nodes of graphs, by vertex
        self.objects: dict[int, Any] = dict(zip(map(id, objects), objects, strict=True))
        num_held, children = array("q"), array("q")
        for held in map(gc.get_referents, objects):
            num_held.append(len(held))
            children.extend(map(id, held))
        parents = np.repeat(np.fromiter(map(id, objects), np.int64, len(objects)), np.array(num_held, np.int64))
        more_parents, more_children = np.array(list(self._of_torch(objects)), np.int64).reshape(-1, 2).T
        self._parents = np.concatenate([parents, more_parents])
        self._children = np.concatenate([np.array(children, np.int64), more_children])
        self._by_child = _Index(self._children, self._parents)
        self._by_parent: _Index | None = None

    def close(self) -> None:
        """Let go of all objects: this one is among them, which only a collection would end."""
        self.objects.clear()

    def referrers(self, vertices: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Pairs of one of the vertices and what refers to it."""
        return self._by_child.pairs(vertices)

    def referents(self, vertices: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Pairs of one of the vertices and what it refers to."""
        if self._by_parent is None:
            self._by_parent = _Index(self._parents, self._children)
        return self._by_parent.pairs(vertices)

    def is_node(self, vertex: int) -> bool:
        """Whether it is a node of an autograd graph."""
        return vertex in self.objects and torch_graph.has_next_functions(type(self.objects[vertex]))

    # ---------------------------------------------------------------------------------- what the collector does not see
    def _of_torch(self, objects: list[Any]) -> Iterator[tuple[int, int]]:
        """References within torch: to memory, gradients and graphs."""
        kinds = set(map(type, objects))
        places = {kind for kind in kinds if issubclass(kind, Tensor | torch.UntypedStorage)}
        nodes = {kind for kind in kinds if torch_graph.has_next_functions(kind)} - places
        stack = [thing for thing in objects if type(thing) in nodes]
        for thing in (thing for thing in objects if type(thing) in places):
            for memory in self._memory_of(thing):
                yield id(thing), memory
            if not isinstance(thing, Tensor):
                continue
            if torch_graph.is_leaf(thing) and thing.grad is not None:
                yield id(thing), self._vertex(thing.grad)
            if (node := torch_graph.made_by(thing)) is not None:
                yield id(thing), self._vertex(node)
                stack.append(node)
        yield from self._of_graphs(stack)

    def _of_graphs(self, stack: list[Any]) -> Iterator[tuple[int, int]]:
        seen: set[int] = set()
        while stack and len(seen) < MAX_NODES:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(self._vertex(node))
            for tensor in (*torch_graph.saved_by(node), *torch_graph.accumulates_into(node)):
                for memory in self._memory_of(tensor):
                    yield id(node), memory
                if id(tensor) in self.objects:
                    yield id(node), id(tensor)
            for inner, _ in node.next_functions:
                if inner is not None:
                    yield id(node), self._vertex(inner)
                    stack.append(inner)

    def _vertex(self, thing: Any) -> int:
        """Keeps it, so that no other object is given its `id()` meanwhile."""
        self.objects.setdefault(id(thing), thing)
        return id(thing)

    def _memory_of(self, tensor: Any) -> Iterator[int]:
        try:
            storages = [tensor] if isinstance(tensor, torch.UntypedStorage) else [
                part.untyped_storage() for part in plain_tensors(tensor)
            ]  # fmt: skip
            tensors = [
                (storage.data_ptr(), storage.nbytes())
                for storage in storages
                if self._device is None or storage.device == self._device
            ]
        except Exception:  # tensors of other people's making raise what they like, and have no memory to be asked of
            return
        for address, size_bytes in tensors:
            vertex = self.memory.setdefault(address, -len(self.memory) - 1)
            self.size_bytes[vertex] = size_bytes
            yield vertex


class _Index:
    """Edges by one of their ends."""

    def __init__(self, ends: Ints, others: Ints) -> None:
        order = np.argsort(ends, kind="stable")
        self._ends, self._others = ends[order], others[order]

    def pairs(self, vertices: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Pairs of a vertex and the other end of one of its edges, for some vertices."""
        wanted = np.fromiter(vertices, np.int64)
        first = np.searchsorted(self._ends, wanted, side="left").tolist()
        last = np.searchsorted(self._ends, wanted, side="right").tolist()
        for vertex, start, end in zip(wanted.tolist(), first, last, strict=True):
            for other in self._others[start:end].tolist():
                yield vertex, other
