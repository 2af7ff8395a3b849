"""Who holds a tensor: the variable, container or attribute whose letting go frees it, as a person would write it.

All references are read once. From the memory the way goes up until a variable is met: a global one, a local one of a
function that runs, an attribute of a class. A holder is named only if without it no way is left: then letting go of it
frees the memory. What autograd keeps is reached through the tensor whose graph it is. Nothing is kept alive by it, and
no code of a user's class is called. It takes a look at all of Python's objects, so it is for a finding and never for a
step of a training.
"""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from tracer.capture.objects.holder_links import (
    ARROW,
    IN_DICT,
    OF_MODULES,
    closure_variable,
    is_users_frame,
    joined,
    link,
    locals_of,
    where,
)
from tracer.capture.objects.reference_graph import ReferenceGraph
from tracer.capture.sources.source_files import is_user_code
from tracer.capture.torch_private import torch_tensors
from tracer.collector import paused_gc

NOT_PYTHON: Final = "no Python object"
SEVERAL: Final = "more than one holder"
_MAX_ABOVE: Final = 50_000
_MAX_HOLDERS: Final = 3
_BARE: Final = 2
"""Vertices of a way on which a variable has the tensor itself: tensor and memory."""
_GRAPH: Final = f"{ARROW}graph of the tensor"
_OURS: Final = __name__.partition(".")[0]
# What a program takes nothing out of: these go when what holds them lets go.
_UNCHANGING: Final = (tuple, frozenset, types.FunctionType, types.MethodType, types.TracebackType)


@dataclass(frozen=True, slots=True)
class Holder:
    """What to let go of, and what memory that frees.

    Attributes:
        path: As `trainer.history[...]`; a reference cycle where no variable leads to it; `SEVERAL` where so many hold
            it that no one of them is worth a name.
        variable: Where the path begins: `local variable of main(), train.py:88`; empty where it is no variable.
        addresses: Of the memory asked about, what is held so.
        graph_of: The address of the tensor whose graph keeps it; None where it is held itself.
        also: Further paths that have to be let go of as well.
        frees: Address and bytes of all memory, asked about or not, that letting go of path and `also` frees.
    """

    path: str
    variable: str
    addresses: tuple[int, ...]
    graph_of: int | None = None
    also: tuple[str, ...] = ()
    frees: tuple[tuple[int, int], ...] = ()

    @property
    def is_certain(self) -> bool:
        """Whether it is known what to let go of: variables, or a reference cycle."""
        return self.path not in (NOT_PYTHON, SEVERAL)


def find_holders(
    addresses: Collection[int], *, device: torch.device | None = None, error: BaseException | None = None
) -> tuple[Holder, ...]:
    """Name who holds the memory at some addresses.

    Args:
        addresses: Where storages begin.
        device: Of the storages; None is any.
        error: On its way through the program: the functions that it has left count as running.

    Returns:
        What holds most of them first; addresses that differ in an index alone are one. Nothing for an address that no
        tensor has.
    """
    if not addresses:
        return ()
    with _searching(device, error) as search:
        return search.holders(addresses)


def find_common_holder(
    addresses: Collection[int], *, device: torch.device | None = None, error: BaseException | None = None
) -> Holder | None:
    """Name what alone holds all of the memory at some addresses, the innermost such variable, container or attribute.

    Args:
        addresses: Where storages begin.
        device: Of the storages; None is any.
        error: On its way through the program: the functions that it has left count as running.

    Returns:
        None where there is no such thing, or an address that no tensor has.
    """
    if not addresses:
        return None
    with _searching(device, error) as search:
        return search.common_holder(addresses)


@contextmanager
def _searching(device: torch.device | None, error: BaseException | None) -> Iterator[_Search]:
    with paused_gc(), torch_tensors.as_plain_tensors():
        search = _Search(device, error)
        try:
            yield search
        finally:
            search.close()


@dataclass(frozen=True, slots=True)
class _Root:
    """A variable: its name, where it is, whether it is the user's own, and of which frame or module."""

    name: str
    place: str
    is_users: bool
    scope: int = 0


@dataclass(frozen=True, slots=True)
class _Way:
    """From a variable down to some memory; the variable is None where something that is not Python's holds the first.

    Attributes:
        root: The variable.
        chain: Vertices: the first object, the last object, the memory.
    """

    root: _Root | None
    chain: tuple[int, ...]


_Cut: TypeAlias = int | tuple[int, int] | _Root
"""What can be let go of: all that is in a container, what an object has under a name, or a variable."""


@dataclass(frozen=True, slots=True)
class _Step:
    """How one object on a way holds the next, in words; `cut` is None where nobody could take it out."""

    text: str
    cut: int | tuple[int, int] | None

    def words(self, cuts: frozenset[_Cut]) -> str:
        """With `[...]` for the key where all that a dictionary has is to be let go of."""
        is_number = self.text.strip("[]").lstrip("-").isdigit()
        return "[...]" if isinstance(self.cut, int) and self.cut in cuts and not is_number else self.text


@dataclass(frozen=True, slots=True)
class _Above:
    """What holds some vertices: pairs of vertex and holder, pairs of vertex and variable, what C code holds."""

    holders: list[tuple[int, int]]
    roots: list[tuple[int, _Root]]
    loose: list[int]


class _Search:
    def __init__(self, device: torch.device | None, error: BaseException | None) -> None:
        self._locals, self._running, self._modules = _variables(error)
        self._graph = ReferenceGraph(device)
        self._address = {memory: address for address, memory in self._graph.memory.items()}
        self._freed: dict[frozenset[_Cut], tuple[tuple[int, int], ...]] = {}

    def close(self) -> None:
        """Keep nothing of what was looked at."""
        self._graph.close()
        self._modules.clear()

    def holders(self, addresses: Collection[int]) -> tuple[Holder, ...]:
        known = [(address, self._graph.memory.get(address)) for address in sorted(addresses)]
        return _merged([self._holder(address, memory) for address, memory in known if memory is not None])

    def _holder(self, address: int, memory: int) -> Holder:
        first = self._way(memory, frozenset())
        if first is None:
            return Holder(self._cycle(memory), "", (address,))
        if first.root is None:
            return Holder(NOT_PYTHON, "", (address,))
        for cut in self._cuts(first):
            if self._way(memory, frozenset({cut})) is None:
                return self._named([first], frozenset({cut}), address)
        return self._of_several(first, address, memory)

    def common_holder(self, addresses: Collection[int]) -> Holder | None:
        memories = {self._graph.memory.get(address) for address in addresses}
        known = {memory for memory in memories if memory is not None}
        first = self._way(max(known), frozenset()) if len(known) == len(memories) else None
        if first is None or first.root is None:
            return None
        for cut in self._cuts(first):
            if not self._still_held(known, frozenset({cut})):
                holder = self._named([first], frozenset({cut}), min(addresses))
                return replace(holder, path=self._name_of(first, cut), addresses=tuple(sorted(addresses)))
        return None

    def _of_several(self, first: _Way, address: int, memory: int) -> Holder:
        ways: list[_Way] = []
        cuts: frozenset[_Cut] = frozenset()
        way: _Way | None = first
        while way is not None:
            cut = next(self._cuts(way), None)
            if cut is None or len(ways) == _MAX_HOLDERS:
                return Holder(SEVERAL, "", (address,))
            ways.append(way)
            cuts |= {cut}
            way = self._way(memory, cuts)
        # A loop's variable is set anew by itself: what has put it somewhere is the one to name first.
        ways.sort(key=lambda each: len(each.chain) <= _BARE)
        return self._named(ways, cuts, address)

    def _named(self, ways: Sequence[_Way], cuts: frozenset[_Cut], address: int) -> Holder:
        if cuts not in self._freed:
            self._freed[cuts] = self._frees(cuts, ways)
        return Holder(
            path=self._spelled(ways[0], cuts),
            variable=self._place(ways[0]),
            addresses=(address,),
            graph_of=self._graph_of(ways[0]),
            also=tuple(self._spelled(way, cuts) for way in ways[1:]),
            frees=self._freed[cuts],
        )

    # ------------------------------------------------------------------------------------------------------ the way up
    def _way(self, memory: int, without: frozenset[_Cut]) -> _Way | None:
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
            return _Way(best[1], _chain(best[0], below))
        return None if loose is None else _Way(None, _chain(loose, below))

    def _above(self, level: Sequence[int], without: frozenset[_Cut]) -> _Above:
        found = _Above([], [], [])
        referred: set[int] = set()
        classes = {vertex for vertex in level if self._is_class(vertex)}
        for vertex in level:
            roots = [root for root in self._locals.get(vertex, ()) if root not in without]
            if vertex in classes:
                roots.append(_of_class(self._graph.objects[vertex]))
            found.roots.extend((vertex, root) for root in roots)
        for vertex, holder in self._graph.referrers(vertex for vertex in level if vertex not in classes):
            referred.add(vertex)
            if holder in self._modules:
                named = self._globals(holder, vertex)
                found.roots.extend((vertex, root) for root in named if root not in without)
            elif holder not in without and (holder, vertex) not in without and not self._is_no_holder(holder):
                found.holders.append((vertex, holder))
        bare = (vertex for vertex in level if vertex not in referred and vertex not in classes)
        found.loose.extend(vertex for vertex in bare if vertex not in self._locals and self._is_held_by_c(vertex))
        return found

    def _globals(self, module: int, vertex: int) -> Iterator[_Root]:
        name, values = self._modules[module]
        file = str(values.get("__file__") or "")
        is_main = name == "__main__"
        shown = file.replace("\\", "/").rpartition("/")[2] if is_main and file else name
        for key, value in list(values.items()):
            if id(value) == vertex and key != "__builtins__":
                is_users = (is_main or is_user_code(file)) and key != "_"
                yield _Root(str(key), f"global variable of {shown}", is_users, module)

    def _is_class(self, vertex: int) -> bool:
        return vertex >= 0 and issubclass(type(self._graph.objects.get(vertex)), type)

    def _is_held_by_c(self, vertex: int) -> bool:
        """Whether what no object refers to lives by itself; the object of a tensor may live because a graph has it."""
        if vertex < 0 or not issubclass(type(self._graph.objects.get(vertex)), Tensor | torch.UntypedStorage):
            return vertex >= 0
        memories = [memory for _, memory in self._graph.referents([vertex]) if memory < 0]
        return all(holder == vertex for _, holder in self._graph.referrers(memories))

    def _is_no_holder(self, vertex: int) -> bool:
        """What refers to an object without being why it lives: this program, and what runs anyway."""
        kind = type(self._graph.objects[vertex])
        if kind is types.FrameType:
            return vertex in self._running
        if kind is types.ModuleType or kind.__name__ in ("FrameLocalsProxy", "async_generator_asend"):
            return True
        return _is_ours(kind)

    # ------------------------------------------------------------------------------------------------- the way in words
    def _steps(self, way: _Way) -> list[_Step]:
        """One for each object on the way and what it holds."""
        steps: list[_Step] = []
        objects = [self._graph.objects.get(vertex) for vertex in way.chain]
        for at, (vertex, held) in enumerate(pairwise(way.chain)):
            one, inner = objects[at], objects[at + 1]
            if held < 0 or steps[-1:] == [_IN_GRAPH]:
                continue
            if self._graph.is_node(held):
                if not _is_tensor(one):  # a node that somebody has taken from a tensor
                    steps.append(_Step(link(one, inner), (vertex, held)))
                steps.append(_IN_GRAPH)
            elif type(one) is types.FunctionType and one.__closure__ is inner:
                steps.append(_Step(closure_variable(one, objects[at + 2]), None))
            elif type(inner) is types.CellType and type(one) is tuple:
                steps.append(_Step("", None))
            else:
                steps.append(self._step(one, inner, joined([step.text for step in steps])))
        return steps

    def _step(self, one: Any, inner: Any, before: str) -> _Step:
        kind, text = type(one), link(one, inner)
        if issubclass(kind, (*_UNCHANGING, type)):
            return _Step(text, None)
        is_attribute = text == IN_DICT or before.endswith((IN_DICT, *OF_MODULES))
        if issubclass(kind, list | set | deque) or (
            issubclass(kind, dict) and not is_attribute and _has_more_like(one, inner)
        ):
            return _Step(text, id(one))
        return _Step(text, (id(one), id(inner)))

    def _cuts(self, way: _Way) -> Iterator[_Cut]:
        """What on a way can be let go of, next to the memory first."""
        for step in reversed(self._steps(way)):
            if step.cut is not None:
                yield step.cut
        if way.root is not None and not self._is_class(way.chain[0]):
            yield way.root

    def _spelled(self, way: _Way, cuts: frozenset[_Cut]) -> str:
        assert way.root is not None
        return joined([way.root.name, *(step.words(cuts) for step in self._steps(way))])

    def _name_of(self, way: _Way, cut: _Cut) -> str:
        """The path as far as what is let go of."""
        assert way.root is not None
        steps = self._steps(way)
        at = next((at for at, step in enumerate(steps) if step.cut == cut), -1)
        return joined([way.root.name, *(step.text for step in steps[: at + (not isinstance(cut, int))])])

    def _place(self, way: _Way) -> str:
        assert way.root is not None
        if way.root.name != "self":
            return way.root.place
        return f"attribute of {type(self._graph.objects[way.chain[0]]).__name__}, {way.root.place}"

    def _graph_of(self, way: _Way) -> int | None:
        """The address of the tensor on a way whose graph it goes through."""
        for vertex, held in pairwise(way.chain):
            if self._graph.is_node(held):
                memories = [memory for _, memory in self._graph.referents([vertex]) if memory < 0]
                return self._address[memories[0]] if memories else None
        return None

    def _cycle(self, memory: int) -> str:
        """A reference cycle, which only a collection ends; that nobody holds it, where there is none."""
        around = _around(memory, self._graph)
        if not around:
            return NOT_PYTHON
        objects = [self._graph.objects[vertex] for vertex in around]
        return f"reference cycle {ARROW.join(_spelled_cycle(pairwise(objects)))}"

    # ------------------------------------------------------------------------------------------- what letting go frees
    def _frees(self, cuts: frozenset[_Cut], ways: Sequence[_Way]) -> tuple[tuple[int, int], ...]:
        starts: list[int] = []
        for cut in cuts:
            if isinstance(cut, _Root):
                starts += [way.chain[0] for way in ways if way.root == cut]
            else:
                starts += [held for _, held in self._graph.referents([cut])] if isinstance(cut, int) else [cut[1]]
        below = self._below(starts)
        left = below - self._still_held(below, cuts)
        return tuple(sorted((self._address[memory], self._graph.size_bytes[memory]) for memory in left))

    def _below(self, starts: Iterable[int]) -> set[int]:
        """The memory that can be reached from some vertices, without what is the interpreter's or a module's."""
        seen, level = set(starts), list(starts)
        while level and len(seen) < _MAX_ABOVE:
            found = {held for _, held in self._graph.referents(level) if held < 0 or self._leads_on(held)}
            level = list(found - seen)
            seen |= found
        return {vertex for vertex in seen if vertex < 0}

    def _leads_on(self, vertex: int) -> bool:
        if vertex not in self._graph.objects or vertex in self._modules or self._is_class(vertex):
            return False
        return type(self._graph.objects[vertex]) is not types.ModuleType

    def _still_held(self, memories: set[int], cuts: frozenset[_Cut]) -> set[int]:
        """Of some memory, what a variable or something else holds when some things are let go of."""
        held_by: dict[int, list[int]] = {}
        seen, level, alive = set(memories), list(memories), list[int]()
        while level and len(seen) < _MAX_ABOVE:
            above = self._above(level, cuts)
            alive += [vertex for vertex, _ in above.roots] + above.loose
            for vertex, holder in above.holders:
                held_by.setdefault(holder, []).append(vertex)
            level = list({holder for _, holder in above.holders} - seen)
            seen |= set(level)
        alive += level  # what was not looked at is taken for held
        reached = set(alive)
        while alive:
            fresh = {vertex for holder in alive for vertex in held_by.get(holder, ())} - reached
            reached |= fresh
            alive = list(fresh)
        return reached & memories


_IN_GRAPH: Final = _Step(_GRAPH, None)


def _chain(first: int, below: Mapping[int, int | None]) -> tuple[int, ...]:
    way: list[int] = []
    vertex: int | None = first
    while vertex is not None:
        way.append(vertex)
        vertex = below[vertex]
    return tuple(way)


def _has_more_like(holder: dict[Any, Any], held: Any) -> bool:
    """Whether a dictionary has several values of one kind, so that it and not the one key is what holds them."""
    return sum(type(value) is type(held) for value in dict.values(holder)) > 1


def _of_class(kind: type) -> _Root:
    return _Root(kind.__qualname__, f"attribute of the class, {kind.__module__}", not _is_ours(kind))


def _around(memory: int, graph: ReferenceGraph) -> list[int]:
    """The vertices around the first cycle above some memory, the first again at the end; empty where there is none."""
    holders: dict[int, int] = {}
    level = [memory]
    while level and len(holders) < _MAX_ABOVE:
        pairs = [(vertex, holder) for vertex, holder in graph.referrers(level) if vertex not in holders]
        for vertex, holder in pairs:
            holders.setdefault(vertex, holder)
        level = [holder for _, holder in pairs if holder not in holders]
    way = [memory]
    while holder := holders.get(way[-1], 0):
        if holder in way:
            return [holder, *reversed(way[way.index(holder) :]), *reversed(way[1 : way.index(holder)])]
        way.append(holder)
    return []


def _spelled_cycle(pairs: Iterable[tuple[Any, Any]]) -> list[str]:
    """`Node.other`, `Node.t`: each object with what it holds of the next, dictionaries with their owners."""
    shown: list[str] = []
    for holder, held in pairs:
        part = link(holder, held)
        if shown and type(holder) is dict and shown[-1].endswith(IN_DICT):
            shown[-1] = joined([shown[-1], part])
        else:
            shown.append(f"{type(holder).__name__}{part}")
    return shown


def _is_tensor(one: Any) -> bool:
    """Without asking the object for its class, as `isinstance` does: that may be code of anybody's."""
    return issubclass(type(one), Tensor)


def _merged(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """Paths that differ in an index alone become one, with `[...]` in its place."""
    alike: dict[tuple[str, str, tuple[str, ...]], list[Holder]] = {}
    for holder in holders:
        key = _without_indices(holder.path), holder.variable, tuple(map(_without_indices, holder.also))
        alike.setdefault(key, []).append(holder)
    merged = []
    for (path, variable, also), same in alike.items():
        first = same[0]
        is_one = {holder.path for holder in same} == {first.path}
        merged.append(
            Holder(
                path=first.path if is_one else path,
                variable=variable,
                addresses=tuple(sorted(address for holder in same for address in holder.addresses)),
                graph_of=next((holder.graph_of for holder in same if holder.graph_of is not None), None),
                also=first.also if is_one else also,
                frees=tuple(sorted({freed for holder in same for freed in holder.frees})),
            )
        )
    return tuple(sorted(merged, key=lambda one: (-len(one.addresses), one.path)))


def _without_indices(path: str) -> str:
    text, rest = "", path
    while (at := rest.find("[")) >= 0:
        end = rest.find("]", at)
        if end < 0:
            break
        inner = rest[at + 1 : end]
        text += rest[:at] + ("[...]" if inner.lstrip("-").isdigit() else rest[at : end + 1])
        rest = rest[end + 1 :]
    return text + rest


def _is_ours(kind: type) -> bool:
    return str(getattr(kind, "__module__", "")).partition(".")[0] == _OURS


def _all_frames(error: BaseException | None) -> Iterator[types.FrameType]:
    """Frames that run, of all threads, and those that an error on its way has left; the outermost last."""
    trace = error.__traceback__ if error is not None else None
    left = []
    while trace is not None:
        left.append(trace.tb_frame)
        trace = trace.tb_next
    yield from reversed(left)
    for frame in list(sys._current_frames().values()):
        inner: types.FrameType | None = frame
        while inner is not None:
            yield inner
            inner = inner.f_back


_Modules: TypeAlias = dict[int, tuple[str, dict[str, Any]]]


def _variables(error: BaseException | None) -> tuple[dict[int, list[_Root]], set[int], _Modules]:
    """Local variables of functions that run by the `id` of their value, these functions' frames, and modules.

    Of a value's variables the outermost of the user's functions comes first. Modules are by the `id` of their
    dictionaries; a script's own may be in no list of modules, and is that of its frame.
    """
    found: dict[int, list[_Root]] = {}
    running: set[int] = set()
    # A module may have several names, of which the first is its own.
    named = reversed(list(sys.modules.items()))
    modules = {id(vars(one)): (name, vars(one)) for name, one in named if type(one) is types.ModuleType}
    for frame in _all_frames(error):
        running.add(id(frame))
        name = str(frame.f_globals.get("__name__", ""))
        modules.setdefault(id(frame.f_globals), (name, frame.f_globals))
        if name.partition(".")[0] == _OURS:
            continue
        is_users = is_users_frame(frame)
        for variable, value in locals_of(frame):
            root = _Root(variable, f"local variable of {where(frame)}", is_users, id(frame))
            found.setdefault(id(value), []).insert(0, root)
    for roots in found.values():
        roots.sort(key=lambda root: not root.is_users)
    return found, running, modules
