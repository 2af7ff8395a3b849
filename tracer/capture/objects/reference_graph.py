"""The graph of references: Python's objects as the garbage collector sees them, autograd's nodes, and their memory.

All of it is read once, so that any number of questions costs one look through all objects. A vertex is the `id()` of an
object; memory is a negative number. No code of a user's class is called, and nothing is kept when the graph is let go.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from itertools import chain, compress
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tracer.arrays import Ints
from tracer.capture.objects.storage_columns import plain_tensors
from tracer.capture.torch_private import torch_graph

MAX_NODES: Final = 200_000
_CHUNK: Final = 10_000
"""Objects whose references are listed at once."""


class ReferenceGraph:
    """References at one moment."""

    def __init__(self, device: torch.device | None = None) -> None:
        """Read the graph from the garbage collector and from autograd."""
        self._device = device
        self.memory: dict[int, int] = {}  # By address the vertex of its memory
        objects = gc.get_objects()
        # What the collector knows, and nodes of graphs, by vertex
        self.objects: dict[int, Any] = dict(zip(map(id, objects), objects, strict=True))
        vertices = np.fromiter(map(id, objects), np.int64, len(objects))
        num_held, children = _held_by(objects)
        more_parents, more_children = np.array(list(self._of_torch(objects)), np.int64).reshape(-1, 2).T
        # What objects hold, object by object, and what only torch knows: both by holder and by what is held.
        self._held = _Referents(vertices, num_held, children)
        self._more_held = _EdgesByEnd(more_parents, more_children)
        parents = np.concatenate([np.repeat(vertices, num_held), more_parents])
        self._by_child = _EdgesByEnd(np.concatenate([children, more_children]), parents)

    def close(self) -> None:
        """Let go of all objects: this one is among them, which only a collection would end."""
        self.objects.clear()

    def referrers(self, vertices: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Pairs of one of the vertices and what refers to it."""
        return self._by_child.pairs(vertices)

    def referents(self, vertices: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Pairs of one of the vertices and what it refers to."""
        for vertex in vertices:
            yield from ((vertex, held) for held in self._held.of(vertex))
            yield from self._more_held.pairs([vertex])

    def is_node(self, vertex: int) -> bool:
        """True if a vertex is a node of an autograd graph."""
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
            here = (storage for storage in storages if self._device is None or storage.device == self._device)
            addresses = [storage.data_ptr() for storage in here]
        except Exception:  # tensors of other people's making raise what they like, and have no memory to be asked of
            return
        for address in addresses:
            yield self.memory.setdefault(address, -len(self.memory) - 1)


def _held_by(objects: list[Any]) -> tuple[Ints, Ints]:
    """Number of objects that each object holds, and the `id()` of these, of those that the collector knows.

    All others, such as numbers and texts, hold nothing. Without a line of Python's for each object.
    """
    num_held, children = [], []
    for start in range(0, len(objects), _CHUNK):
        held = list(map(gc.get_referents, objects[start : start + _CHUNK]))
        count = np.fromiter(map(len, held), np.int64, len(held))
        flat = list(chain.from_iterable(held))
        is_known = bytes(map(gc.is_tracked, flat))
        children.append(np.fromiter(map(id, compress(flat, is_known)), np.int64))
        num_known = np.concatenate([[0], np.cumsum(np.frombuffer(is_known, np.uint8), dtype=np.int64)])
        ends = num_known[np.concatenate([[0], np.cumsum(count)])]
        num_held.append(np.diff(ends))
    nothing = np.zeros(0, np.int64)
    return np.concatenate([nothing, *num_held]), np.concatenate([nothing, *children])


class _Referents:
    """Objects that each vertex refers to, in one array with the edges of a vertex side by side."""

    def __init__(self, vertices: Ints, num_held: Ints, children: Ints) -> None:
        self._order = np.argsort(vertices)
        self._vertices = vertices[self._order]
        self._offset = np.concatenate([[0], np.cumsum(num_held)])
        self._children = children

    def of(self, vertex: int) -> list[int]:
        """Return what a vertex refers to; nothing for an unknown vertex."""
        at = int(np.searchsorted(self._vertices, vertex))
        if at == len(self._vertices) or self._vertices[at] != vertex:
            return []
        row = self._order[at]
        held: list[int] = self._children[self._offset[row] : self._offset[row + 1]].tolist()
        return held


class _EdgesByEnd:
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
