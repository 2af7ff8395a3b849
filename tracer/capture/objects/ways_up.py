"""Ways from some memory up to the variables that hold it, in words too; what is still held without some of them."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from tracer.capture.objects.at_failure import GRAPH_OF
from tracer.capture.objects.holder_links import (
    IN_DICT,
    OF_MODULES,
    Root,
    Variables,
    closure_variable,
    is_iterator,
    is_ours,
    joined,
    link,
    of_class,
    of_loop,
)
from tracer.capture.objects.reference_graph import ReferenceGraph
from tracer.capture.sources.source_files import is_user_code

_MAX_ABOVE: Final = 50_000


@dataclass(frozen=True, slots=True)
class Way:
    """A path from a variable down to some memory; without a variable if C++ code holds the first object."""

    root: Root | None  # The variable
    chain: tuple[int, ...]  # Vertices: the first object, the last object, the memory


Cut: TypeAlias = int | tuple[int, int] | Root
"""A reference that can be cut: all elements of a container, an object's attribute by name, or a variable."""


@dataclass(frozen=True, slots=True)
class _Above:
    """Holders of some vertices: pairs of vertex and holder, pairs of vertex and variable, vertices held by C code."""

    holders: list[tuple[int, int]]
    roots: list[tuple[int, Root]]
    loose: list[int]


class WaysUp:
    """Looks for variables above memory, level by level.

    Args:
        variables: Read before the references, among which are the frames that this looks into.
    """

    def __init__(self, graph: ReferenceGraph, variables: Variables) -> None:
        self._graph = graph
        self._locals, self._running, self._modules = variables

    def close(self) -> None:
        """Keep nothing of what was looked at."""
        self._modules.clear()

    def way(self, memory: int, without: frozenset[Cut]) -> Way | None:
        """The shortest way from a variable, the user's own if there is one; None where nothing is left."""
        below: dict[int, int | None] = {memory: None}
        level, best, loose = [memory], None, None
        while level:
            above = self._above(level, without)
            for vertex, root in above.roots:
                if best is None or root.is_users > best[1].is_users:
                    best = vertex, root
            if best is not None and best[1].is_users:
                break
            loose = above.loose[0] if loose is None and above.loose else loose
            level = []
            for vertex, holder in above.holders:
                if holder not in below:
                    below[holder] = vertex
                    level.append(holder)
            if len(below) > _MAX_ABOVE and loose is None:  # who holds it is not to be found in a time worth waiting for
                loose = memory
                break
        if best is not None:
            return Way(best[1], _chain(best[0], below))
        return None if loose is None else Way(None, _chain(loose, below))

    def _above(self, level: Sequence[int], without: frozenset[Cut]) -> _Above:
        above = _Above([], [], [])
        referred: set[int] = set()
        classes = {vertex for vertex in level if is_class(vertex, self._graph)}
        for vertex in level:
            roots = [root for root in self._locals.get(vertex, ()) if root not in without]
            if vertex in classes:
                roots.append(of_class(self._graph.objects[vertex]))
            above.roots.extend((vertex, root) for root in roots)
        for vertex, holder in self._graph.referrers(vertex for vertex in level if vertex not in classes):
            referred.add(vertex)
            if (module := self._module_of(holder)) is not None:
                named = self._globals(holder, *module, vertex)
                above.roots.extend((vertex, root) for root in named if root not in without)
            elif holder not in without and (holder, vertex) not in without and not self._is_no_holder(holder):
                above.holders.append((vertex, holder))
        for vertex in level:
            if vertex in referred or vertex in classes or vertex in self._locals:
                continue
            if vertex >= 0 and is_iterator(type(self._graph.objects[vertex])):
                if (loop := of_loop(self._graph.objects[vertex])) not in without:
                    above.roots.append((vertex, loop))
            elif self._is_held_by_c(vertex):
                above.loose.append(vertex)
        return above

    def _module_of(self, vertex: int) -> tuple[str, dict[str, Any]] | None:
        """Name and globals, of a script that has ended as well: no module and no frame has them, its functions do."""
        if (module := self._modules.get(vertex)) is not None:
            return module
        values = self._graph.objects.get(vertex)
        if type(values) is not dict or "__builtins__" not in values or type(values.get("__name__")) is not str:
            return None
        return values["__name__"], values

    def _globals(self, module: int, name: str, values: dict[str, Any], vertex: int) -> Iterator[Root]:
        file = str(values.get("__file__") or "")
        is_main = name == "__main__"
        shown = file.replace("\\", "/").rpartition("/")[2] if is_main and file else name
        for key, value in list(values.items()):
            if id(value) == vertex and key != "__builtins__":
                is_users = (is_main or is_user_code(file)) and key != "_"
                yield Root(str(key), f"global variable of {shown}", is_users, module)

    def _is_held_by_c(self, vertex: int) -> bool:
        """True if an unreferenced vertex lives by itself; a tensor's object may also live because a graph has it."""
        if vertex < 0 or not issubclass(type(self._graph.objects.get(vertex)), Tensor | torch.UntypedStorage):
            return vertex >= 0
        memories = [memory for _, memory in self._graph.referents([vertex]) if memory < 0]
        return all(holder == vertex for _, holder in self._graph.referrers(memories))

    def _is_no_holder(self, vertex: int) -> bool:
        """True if an object refers to others without keeping them alive: this program's, or one that runs anyway."""
        kind = type(self._graph.objects[vertex])
        if kind is types.FrameType:
            return vertex in self._running
        if kind is types.GeneratorType:  # the variables of one that runs are known as those of its frame
            return bool(self._graph.objects[vertex].gi_running)
        if kind is types.ModuleType or kind.__name__ in ("FrameLocalsProxy", "async_generator_asend"):
            return True
        return is_ours(kind)


def is_class(vertex: int, graph: ReferenceGraph) -> bool:
    """True if an object is a class; unlike `isinstance`, this does not ask the object."""
    return vertex >= 0 and issubclass(type(graph.objects.get(vertex)), type)


def _chain(first: int, below: Mapping[int, int | None]) -> tuple[int, ...]:
    way: list[int] = []
    vertex: int | None = first
    while vertex is not None:
        way.append(vertex)
        vertex = below[vertex]
    return tuple(way)


def around(memory: int, graph: ReferenceGraph) -> list[int]:
    """The vertices around the first cycle above some memory, the first again at the end; empty where there is none."""
    holders: dict[int, list[int]] = {}
    level = [memory]
    while level and len(holders) < _MAX_ABOVE:
        found = dict[int, list[int]]((vertex, []) for vertex in level)
        for vertex, holder in graph.referrers(level):
            found[vertex].append(holder)
        holders |= found
        level = list(dict.fromkeys(holder for of in found.values() for holder in of if holder not in holders))
    # What nothing holds is above no cycle, such as a storage that somebody looks at.
    held = dict[int, list[int]]()
    for vertex, of in holders.items():
        for holder in of:
            held.setdefault(holder, []).append(vertex)
    left = {vertex: len(of) for vertex, of in holders.items()}
    ends = [vertex for vertex, number in left.items() if not number]
    while ends:
        for vertex in held.get(ends.pop(), ()):
            left[vertex] -= 1
            ends += [vertex] * (not left[vertex])
    way = [memory]
    while upper := [holder for holder in holders[way[-1]] if left.get(holder)]:
        if upper[0] in way:
            return [upper[0], *reversed(way[way.index(upper[0]) :]), *reversed(way[1 : way.index(upper[0])])]
        way.append(upper[0])
    return []


# No program takes anything out of these: they go when their holder lets go.
_UNCHANGING: Final = (tuple, frozenset, types.FunctionType, types.MethodType, types.TracebackType)


@dataclass(frozen=True, slots=True)
class _Step:
    """Words for the link from one object of a way to the next; `cut` is None where nobody could take it out."""

    text: str
    cut: int | tuple[int, int] | None

    def words(self, cuts: frozenset[Cut]) -> str:
        """Words of the way, with `[...]` for the key where a dictionary is to be emptied."""
        is_number = self.text.strip("[]").lstrip("-").isdigit()
        return "[...]" if isinstance(self.cut, int) and self.cut in cuts and not is_number else self.text


_IN_GRAPH: Final = _Step(GRAPH_OF, None)


def _steps(way: Way, graph: ReferenceGraph) -> list[_Step]:
    """Steps in words, for each object on the way and what it holds."""
    steps: list[_Step] = []
    objects = [graph.objects.get(vertex) for vertex in way.chain]
    for at, (vertex, held) in enumerate(pairwise(way.chain)):
        holder, inner = objects[at], objects[at + 1]
        if held < 0 or steps[-1:] == [_IN_GRAPH]:
            continue
        if graph.is_node(held):
            if not issubclass(type(holder), Tensor):  # a node that somebody has taken from a tensor
                steps.append(_Step(link(holder, inner), (vertex, held)))
            steps.append(_IN_GRAPH)
        elif type(holder) is types.FunctionType and holder.__closure__ is inner:
            steps.append(_Step(closure_variable(holder, objects[at + 2]), None))
        elif type(inner) is types.CellType and type(holder) is tuple:
            steps.append(_Step("", None))
        else:
            steps.append(_step(holder, inner, [step.text for step in steps]))
    return steps


def _step(holder: Any, inner: Any, before: list[str]) -> _Step:
    kind, text = type(holder), link(holder, inner)
    if issubclass(kind, (*_UNCHANGING, type)):
        return _Step(text, None)
    is_attribute = text == IN_DICT or before[-1:] == [IN_DICT] or joined(before).endswith(OF_MODULES)
    is_collection = issubclass(kind, list | set | deque)
    if issubclass(kind, dict) and not is_attribute:  # with several values of one kind, it and not the one key holds
        is_collection = sum(type(value) is type(inner) for value in dict.values(holder)) > 1
    if is_collection:
        return _Step(text, id(holder))
    return _Step(text, (id(holder), id(inner)))


def cuts_of(way: Way, graph: ReferenceGraph) -> Iterator[Cut]:
    """References on a path that can be cut, the one next to the memory first."""
    for step in reversed(_steps(way, graph)):
        if step.cut is not None:
            yield step.cut
    if way.root is not None and not is_class(way.chain[0], graph):
        yield way.root


def spelled(way: Way, cuts: frozenset[Cut], graph: ReferenceGraph) -> str:
    """The path in words, with `[...]` for a dictionary's key if the whole dictionary is to be cleared."""
    assert way.root is not None
    return joined([way.root.name, *(step.words(cuts) for step in _steps(way, graph))])


def place_of(way: Way, graph: ReferenceGraph) -> str:
    """Words for the place of the variable."""
    assert way.root is not None
    if way.root.name != "self" or not way.root.place:
        return way.root.place
    return f"attribute of {type(graph.objects[way.chain[0]]).__name__}, {way.root.place}"


def graph_of(way: Way, graph: ReferenceGraph) -> int | None:
    """The memory of the tensor on a way whose graph it goes through."""
    for vertex, held in pairwise(way.chain):
        if graph.is_node(held):
            memories = [memory for _, memory in graph.referents([vertex]) if memory < 0]
            return memories[0] if memories else None
    return None


def spelled_cycle(pairs: Iterable[tuple[Any, Any]]) -> list[str]:
    """`Node.other`, `Node.t`: each object with what it holds of the next, dictionaries with their owners."""
    shown: list[str] = []
    for holder, held in pairs:
        part = link(holder, held)
        if shown and type(holder) is dict and shown[-1].endswith(IN_DICT):
            shown[-1] = joined([shown[-1], part])
        else:
            shown.append(f"{type(holder).__name__}{part}")
    return shown
