"""A way from a variable to some memory in words, as a person would write it: `trainer.history[...]`."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from torch import Tensor

from tracer.capture.objects.holder_links import ARROW, IN_DICT, OF_MODULES, closure_variable, joined, link
from tracer.capture.objects.reference_graph import ReferenceGraph
from tracer.capture.objects.ways_up import Cut, Way, is_class

# What a program takes nothing out of: these go when what holds them lets go.
_UNCHANGING: Final = (tuple, frozenset, types.FunctionType, types.MethodType, types.TracebackType)


@dataclass(frozen=True, slots=True)
class _Step:
    """How one object on a way holds the next, in words; `cut` is None where nobody could take it out."""

    text: str
    cut: int | tuple[int, int] | None

    def words(self, cuts: frozenset[Cut]) -> str:
        """With `[...]` for the key where all that a dictionary has is to be let go of."""
        is_number = self.text.strip("[]").lstrip("-").isdigit()
        return "[...]" if isinstance(self.cut, int) and self.cut in cuts and not is_number else self.text


_IN_GRAPH: Final = _Step(f"{ARROW}graph of the tensor", None)


def _steps(way: Way, graph: ReferenceGraph) -> list[_Step]:
    """Steps in words, for each object on the way and what it holds."""
    steps: list[_Step] = []
    objects = [graph.objects.get(vertex) for vertex in way.chain]
    for at, (vertex, held) in enumerate(pairwise(way.chain)):
        holder, inner = objects[at], objects[at + 1]
        if held < 0 or steps[-1:] == [_IN_GRAPH]:
            continue
        if graph.is_node(held):
            if not _is_tensor(holder):  # a node that somebody has taken from a tensor
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
    if issubclass(kind, list | set | deque) or (
        issubclass(kind, dict) and not is_attribute and _has_more_like(holder, inner)
    ):
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


def name_of(way: Way, cut: Cut, graph: ReferenceGraph) -> str:
    """The part of the path down to the reference that is cut, in words."""
    assert way.root is not None
    steps = _steps(way, graph)
    at = next((at for at, step in enumerate(steps) if step.cut == cut), -1)
    return joined([way.root.name, *(step.text for step in steps[: at + (not isinstance(cut, int))])])


def place_of(way: Way, graph: ReferenceGraph) -> str:
    """Words for the place of the variable."""
    assert way.root is not None
    if way.root.name != "self":
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


def _has_more_like(holder: dict[Any, Any], held: Any) -> bool:
    """Whether a dictionary has several values of one kind, so that it and not the one key is what holds them."""
    return sum(type(value) is type(held) for value in dict.values(holder)) > 1


def _is_tensor(thing: Any) -> bool:
    """Without asking the object for its class, as `isinstance` does: that may be code of anybody's."""
    return issubclass(type(thing), Tensor)
