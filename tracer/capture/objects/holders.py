"""Who holds a tensor: the way from a variable of the program to it, as a person would write it.

The garbage collector is asked who refers to an object, again and again, until a variable is met: a global one, a local
one of a function that runs, an attribute of a class. What autograd keeps is reached through the tensor whose graph it
is. Nothing is kept alive by it, and no code of a user's class is called. Each step of the way is a look through all of
Python's objects, so it is for a finding and never for a step of a training.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from tracer.capture import torch_private
from tracer.capture.objects.holder_links import (
    ARROW,
    IN_DICT,
    closure_variable,
    is_users_frame,
    joined,
    link,
    locals_of,
    where,
)
from tracer.capture.objects.plain_tensors import plain_tensors
from tracer.capture.sources.source_files import is_user_code
from tracer.collector import paused_gc

NOT_PYTHON: Final = "no Python object"
_MAX_DEPTH: Final = 24
_MAX_AT_ONCE: Final = 48
_MAX_NODES: Final = 200_000
_GRAPH: Final = f"{ARROW}graph of the tensor"
_OURS: Final = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Holder:
    """One way in which some memory is held.

    Attributes:
        path: As `trainer.history[...]`; a reference cycle where no variable leads to it.
        variable: Where the path begins: `local variable of main(), train.py:88`; empty where it is no variable.
        addresses: Of the memory asked about, what is held so.
        graph_of: The address of the tensor whose graph keeps it; None where it is held itself.
    """

    path: str
    variable: str
    addresses: tuple[int, ...]
    graph_of: int | None = None


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
    with paused_gc(), torch_private.as_plain_tensors():
        try:
            return _Search(frozenset(addresses), device, error).holders()
        finally:
            # What is raised inside would keep the search, and all that it looked at, alive.
            error = None


@dataclass(frozen=True, slots=True)
class _Root:
    """A variable: its name, where it is, and whether it is the user's own."""

    name: str
    place: str
    is_users: bool


class _Search:
    def __init__(self, addresses: Collection[int], device: torch.device | None, error: BaseException | None) -> None:
        self._addresses, self._device = addresses, device
        # A module may have several names, of which the first is its own.
        named = reversed(list(sys.modules.items()))
        self._modules = {id(vars(one)): name for name, one in named if type(one) is types.ModuleType}
        self._locals = _running_locals(error)
        self._running = _running_frames(error)
        # What torch holds itself, and the collector does not see: nodes of a graph, and gradients.
        self._graph_root: dict[int, Any] = {}
        self._gradient_of: dict[int, Tensor] = {}
        self._graphs_above: dict[int, list[Any]] = {}  # tensors whose graphs contain a tensor's
        self._own: set[int] = set()
        self._graph_of = 0  # the address of the first tensor on the latest path
        self._kept: list[Any] = []  # so that no id is given to another object meanwhile

    def holders(self) -> tuple[Holder, ...]:
        direct, saved = self._targets()
        self._own = {id(direct), id(saved)}
        found: dict[tuple[str, str], list[int]] = {}
        graphs: dict[tuple[str, str], int] = {}
        for address in sorted({*direct, *saved}):
            key = self._path(direct[address], "") if address in direct else (NOT_PYTHON, "")
            # The object of a tensor stays as long as a graph has the tensor, whoever has let go of it.
            if key[0] == NOT_PYTHON and address in saved:
                key = self._path(saved[address], _GRAPH)
            if _GRAPH in key[0]:
                graphs.setdefault(key, self._graph_of)
            found.setdefault(key, []).append(address)
        return _merged(found, graphs)

    # ------------------------------------------------------------------------------------------------------- targets
    def _targets(self) -> tuple[dict[int, Any], dict[int, Tensor]]:
        """By address: a tensor or storage that has it, or else the tensor whose graph keeps it."""
        objects = gc.get_objects()
        kinds = set(map(type, objects))
        places = {kind for kind in kinds if issubclass(kind, Tensor | torch.UntypedStorage)}
        nodes = {kind for kind in kinds if torch_private.has_next_functions(kind)} - places
        wanted = places | nodes
        chosen = [one for one in objects if type(one) in wanted]
        del objects
        tensors: list[Any] = [one for one in chosen if type(one) in places]
        roots: list[Any] = [one for one in chosen if type(one) in nodes]
        direct: dict[int, Any] = {}
        storages: dict[int, Any] = {}
        for tensor in tensors:
            for address in self._places(tensor):
                if address in self._addresses:
                    (direct if isinstance(tensor, Tensor) else storages).setdefault(address, tensor)
        own = [one for one in tensors if isinstance(one, Tensor)]
        for tensor in own:
            if torch_private.is_leaf(tensor) and (gradient := tensor.grad) is not None:
                self._gradient_of[id(gradient)] = tensor
        saved = self._saved(own, roots)
        # A storage may have an object of its own, which is there as long as anything has its memory.
        for address, storage in storages.items():
            if address not in saved:
                direct.setdefault(address, storage)
        self._kept += [*tensors, *roots]
        return direct, saved

    def _places(self, tensor: Any) -> Iterator[int]:
        try:
            storages = [tensor] if isinstance(tensor, torch.UntypedStorage) else [
                part.untyped_storage() for part in plain_tensors(tensor)
            ]  # fmt: skip
            for storage in storages:
                if self._device is None or storage.device == self._device:
                    yield storage.data_ptr()
        except Exception:  # tensors of other people's making raise what they like, and have no memory to be asked of
            return

    def _saved(self, tensors: Iterable[Tensor], nodes: Iterable[Any]) -> dict[int, Any]:
        """What graphs keep: by address, the tensor or node that Python holds and whose graph it is."""
        found: dict[int, Any] = {}
        starts = [(node, tensor) for tensor in tensors if (node := torch_private.made_by(tensor)) is not None]
        starts += [(node, node) for node in nodes]
        for start, owner in starts:
            stack = [start]
            while stack and len(self._graph_root) < _MAX_NODES:
                node = stack.pop()
                if (known := self._graph_root.get(id(node))) is not None:
                    if known is not owner:
                        self._graphs_above.setdefault(id(known), []).append(owner)
                    continue
                self._graph_root[id(node)] = owner
                self._kept.append(node)
                for tensor in torch_private.saved_by(node):
                    for address in self._places(tensor):
                        if address in self._addresses:
                            found.setdefault(address, owner)
                stack += [inner for inner, _ in node.next_functions if inner is not None]
        return found

    # ------------------------------------------------------------------------------------------------------ the way up
    def _path(self, target: Any, tail: str) -> tuple[str, str]:
        """The shortest way from a variable to an object: the path, and where the variable is."""
        below: dict[int, Any] = {id(target): None}
        seen: dict[int, Any] = {id(target): target}
        level: list[Any] = [target]
        best: tuple[_Root, Any] | None = None
        for _ in range(_MAX_DEPTH):
            for one in level:
                met = self._root(one, below)
                if met is not None and (best is None or met[0].is_users > best[0].is_users):
                    best = met
            if best is not None and best[0].is_users:
                break
            level = self._level_above(level, below, seen)
            if not level:
                break
        self._kept += seen.values()
        if best is not None:
            root, first = best
            self._graph_of = _address(_first_tensor(first, below))
            way = joined([root.name, *_links(first, below)])
            # One graph may contain another, which is the same to a person.
            way = way.replace(f"{_GRAPH}{_GRAPH}", _GRAPH)
            return way if way.endswith(_GRAPH) else f"{way}{tail}", root.place
        return self._without_variable(target, below, seen, tail), ""

    def _root(self, one: Any, below: Mapping[int, Any]) -> tuple[_Root, Any] | None:
        """The variable that an object is the value of, if it is; and the object from which the path goes on."""
        if (root := self._locals.get(id(one))) is not None:
            return root, one
        if (module := self._modules.get(id(one))) is not None and below[id(one)] is not None:
            child = below[id(one)]
            name = next((key for key, value in list(one.items()) if value is child), None)
            if name is None or name in ("__builtins__", "_"):
                return None
            file = str(one.get("__file__") or "")
            is_users = module == "__main__" or is_user_code(file)
            shown = file.replace("\\", "/").rpartition("/")[2] if module == "__main__" and file else module
            return _Root(str(name), f"global variable of {shown}", is_users), child
        if issubclass(type(one), type) and below[id(one)] is not None:
            return _Root(one.__qualname__, f"attribute of the class, {one.__module__}", not _is_ours(one)), one
        return None

    def _level_above(self, level: list[Any], below: dict[int, Any], seen: dict[int, Any]) -> list[Any]:
        inside = {id(one) for one in level}
        found = gc.get_referrers(*level)
        above: list[Any] = []
        mine = (
            level,
            below,
            seen,
            found,
            above,
            self._kept,
            self._graph_root,
            self._gradient_of,
            self._graphs_above,
            self.__dict__,
        )
        own = self._own | {id(one) for one in mine} | {id(one) for one in self._graphs_above.values()}
        for holder in found:
            if id(holder) in own or id(holder) in seen or self._is_no_holder(holder):
                continue
            child = next((each for each in gc.get_referents(holder) if id(each) in inside), None)
            if child is not None:
                self._add(holder, child, below, seen, above)
        for one in level:
            owners = [self._graph_root.get(id(one)), self._gradient_of.get(id(one))]
            for owner in (*owners, *self._graphs_above.get(id(one), ())):
                if owner is not None and id(owner) not in seen:
                    self._add(owner, one, below, seen, above)
        return above[:_MAX_AT_ONCE]

    @staticmethod
    def _add(holder: Any, child: Any, below: dict[int, Any], seen: dict[int, Any], above: list[Any]) -> None:
        below[id(holder)], seen[id(holder)] = child, holder
        above.append(holder)

    def _is_no_holder(self, holder: Any) -> bool:
        """What refers to an object without being why it lives: this search, this program, what runs anyway."""
        kind = type(holder)
        if kind is types.FrameType:
            return id(holder) in self._running
        if kind is types.ModuleType or kind.__name__ in ("FrameLocalsProxy", "async_generator_asend"):
            return True
        module = getattr(kind, "__module__", "")
        return isinstance(module, str) and module.partition(".")[0] == _OURS

    def _without_variable(self, target: Any, below: Mapping[int, Any], seen: Mapping[int, Any], tail: str) -> str:
        """A reference cycle, which only a collection ends, or something that is not Python's."""
        cycle = _cycle(target, below, seen)
        if not cycle:
            return f"{NOT_PYTHON}{tail}"
        around = ARROW.join(_spelled(cycle))
        return f"reference cycle {around}{tail}"


def _spelled(pairs: Iterable[tuple[Any, Any]]) -> list[str]:
    """`Node.other`, `Node.t`: each object with what it holds of the next, dictionaries with their owners."""
    shown: list[str] = []
    for holder, held in pairs:
        part = joined(_links_between(holder, held))
        if shown and type(holder) is dict and shown[-1].endswith(IN_DICT):
            shown[-1] = joined([shown[-1], part])
        else:
            shown.append(f"{type(holder).__name__}{''.join(_links_between(holder, held))}")
    return shown


def _links(first: Any, below: Mapping[int, Any]) -> list[str]:
    parts, one = [], first
    while (child := below.get(id(one))) is not None:
        cell = below.get(id(child))
        if type(one) is types.FunctionType and one.__closure__ is child and cell is not None:
            parts.append(closure_variable(one, cell))
            child = below.get(id(cell), cell)
        else:
            parts += _links_between(one, child)
        one = child
    return parts


def _is_tensor(one: Any) -> bool:
    """Without asking the object for its class, as `isinstance` does: that may be code of anybody's."""
    return issubclass(type(one), Tensor)


def _first_tensor(first: Any, below: Mapping[int, Any]) -> Any:
    one = first
    while one is not None and not _is_tensor(one):
        one = below.get(id(one))
    return one


def _links_between(holder: Any, held: Any) -> list[str]:
    if torch_private.has_next_functions(type(held)) and _is_tensor(holder):
        return [f"{_GRAPH}{ARROW}{type(held).__name__}"]
    if _is_tensor(holder) and _is_tensor(held):
        return [link(holder, held) or _GRAPH]
    return [link(holder, held)]


def _cycle(target: Any, below: Mapping[int, Any], seen: Mapping[int, Any]) -> list[tuple[Any, Any]]:
    """Pairs of holder and held around the first cycle above a target; empty where there is none."""
    holders: dict[int, Any] = {}
    for one in seen.values():
        for held in gc.get_referents(one):
            if id(held) in seen:
                holders.setdefault(id(held), one)
    way, one = [target], target
    while (holder := holders.get(id(one))) is not None:
        at = next((at for at, earlier in enumerate(way) if earlier is holder), None)
        way.append(holder)
        if at is not None:
            return [(way[k + 1], way[k]) for k in range(len(way) - 2, -1, -1)]
        one = holder
    return []


def _merged(found: Mapping[tuple[str, str], list[int]], graphs: Mapping[tuple[str, str], int]) -> tuple[Holder, ...]:
    """Paths that differ in an index alone become one, with `[...]` in its place."""
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path, place in found:
        alike.setdefault((_without_indices(path), place), []).append((path, place))
    holders = []
    for (general, place), paths in alike.items():
        held = tuple(sorted(address for path in paths for address in found[path]))
        graph = next((graphs[path] for path in paths if path in graphs), None)
        holders.append(Holder(paths[0][0] if len(paths) == 1 else general, place, held, graph))
    return tuple(sorted(holders, key=lambda one: (-len(one.addresses), one.path)))


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


def _address(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except Exception:  # a node, or a tensor without memory
        return 0


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


def _running_frames(error: BaseException | None) -> set[int]:
    return {id(frame) for frame in _all_frames(error)}


def _running_locals(error: BaseException | None) -> dict[int, _Root]:
    """The values of local variables of functions that run, by `id`; of the outermost user's function, if several."""
    found: dict[int, _Root] = {}
    for frame in _all_frames(error):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OURS:
            continue
        is_users = is_users_frame(frame)
        for name, value in locals_of(frame):
            known = found.get(id(value))
            if known is None or is_users >= known.is_users:
                found[id(value)] = _Root(name, f"local variable of {where(frame)}", is_users)
    return found
