"""Names of models: by class, and models of one class by the variables and attributes that hold them."""

from __future__ import annotations

import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from torch import Tensor, nn

from tracer.capture.objects.holder_links import (
    attributes_of,
    is_of_ours,
    is_ours,
    is_users_frame,
    locals_of,
    running_frames,
    variables_of,
)
from tracer.capture.sources.source_files import is_user_code

_Path: TypeAlias = tuple[str, ...]
_MAX_DEPTH: Final = 5
"""Attributes and items on the way from a variable to a model."""
_MAX_OBJECTS: Final = 20_000
_MAX_ITEMS: Final = 1_000
_OF_TORCH: Final = ("_parameters", "_buffers", "_modules")
_NO_HOLDERS: Final = (type, Tensor, types.ModuleType, types.FunctionType, types.FrameType, str, bytes, int, float)


def names_of(models: Iterable[nn.Module], given: Mapping[str, nn.Module] | None = None) -> dict[int, str]:
    """Name models that lie in no other.

    A model goes by its class, and where several have one class, each by the global variable that holds it, by the local
    one of the outermost function, or by attributes and items: `learner.online` is `online`, `nets[0]` is `nets.0`. A
    number tells apart those that still have one name.

    Args:
        given: Names that models already have; "" for a single model, which shows as its class.
    """
    given = given or {}
    names = {id(model): name for name, model in given.items()}
    others = list({id(model): model for model in models if id(model) not in names}.values())
    kinds = Counter(type(model).__name__ for model in (*given.values(), *others))
    alike = [model for model in others if kinds[type(model).__name__] > 1]
    variables = _by_variable(alike, given) if alike else {}
    taken = {name or type(model).__name__ for name, model in given.items()}
    for model in others:
        name = kind = variables.get(id(model), type(model).__name__)
        number = 1
        while name in taken:
            number += 1
            name = f"{kind}_{number}"
        taken.add(name)
        names[id(model)] = name
    return names


def _by_variable(models: Sequence[nn.Module], given: Mapping[str, nn.Module]) -> dict[int, str]:
    of_locals, _, modules = variables_of(None)
    wanted = {id(model) for model in models}
    names: dict[int, str] = {}
    for _, variables in modules.values():
        names = {id(value): name for name, value in list(variables.items()) if id(value) in wanted} | names
    for number in wanted - names.keys():
        of_users = (root.name for root in of_locals.get(number, ()) if root.is_users)
        name = next((name for name in of_users if name.isidentifier() and name != "self"), None)
        if name is not None:
            names[number] = name
    others = wanted - names.keys()
    paths, inside = _paths(others, given) if others else ({}, {})
    names |= {number: ".".join(path) for number, path in inside.items()}
    return names | _shortened(paths, set(names.values()))


def _paths(wanted: set[int], given: Mapping[str, nn.Module]) -> tuple[dict[int, _Path], dict[int, _Path]]:
    """The shortest paths by `id()` of the model: from variables, the user's first, and from a model with a name."""
    named = {id(model): tuple(name.split(".")) if name else () for name, model in given.items()}
    paths, inside = dict[int, _Path](), dict[int, _Path]()
    seen: set[int] = set()
    for roots in (_variables(is_users=True), _variables(is_users=False)):
        named_roots = [((name,) if name.isidentifier() and name != "self" else (), value) for name, value in roots]
        queue = deque[tuple[_Path, Any, bool, int]]((path, value, False, 0) for path, value in named_roots)
        while queue and len(paths) + len(inside) < len(wanted) and len(seen) < _MAX_OBJECTS:
            path, holder, is_inside, depth = queue.popleft()
            if id(holder) in seen:
                continue
            seen.add(id(holder))
            if id(holder) in wanted and path:
                (inside if is_inside else paths)[id(holder)] = path
            if id(holder) in named:
                path, is_inside = named[id(holder)], True
            if depth < _MAX_DEPTH:
                held = ((part, value) for part, value in _held_by(holder) if path or not part.isdigit())
                queue += [((*path, part), value, is_inside, depth + 1) for part, value in held]
    return paths, inside


def _variables(*, is_users: bool) -> list[tuple[str, Any]]:
    """Global variables of the user's modules, and local ones of functions that run, the outermost first."""
    variables: list[tuple[str, Any]] = []
    running = (frame for frame in running_frames(None) if not is_of_ours(frame))
    frames = [frame for frame in running if is_users_frame(frame) == is_users]
    if is_users:
        _, _, modules = variables_of(None)
        users = [values for _, values in modules.values() if is_user_code(str(values.get("__file__") or ""))]
        of_frames = {id(frame.f_globals): frame.f_globals for frame in frames}
        for values in ({id(values): values for values in users} | of_frames).values():
            variables += [(name, value) for name, value in list(values.items()) if not name.startswith("__")]
    for frame in reversed(frames):
        variables += locals_of(frame)
    return variables


def _held_by(holder: Any) -> Iterator[tuple[str, Any]]:
    """Attributes and items of an object by name, found without calling a user's class."""
    kind = type(holder)
    if issubclass(kind, _NO_HOLDERS) or is_ours(kind):
        return
    if issubclass(kind, dict):
        items = ((key, value) for key, value in dict.items(holder) if type(key) in (str, int))
    elif issubclass(kind, list | tuple):
        base = list if issubclass(kind, list) else tuple
        items = enumerate(base.__iter__(holder))  # type: ignore[assignment]
    else:
        items = ((name, value) for name, value in (attributes_of(holder) or {}).items() if name not in _OF_TORCH)
    for number, (key, value) in enumerate(items):
        if number == _MAX_ITEMS:
            return
        if not issubclass(type(value), _NO_HOLDERS):
            yield str(key).replace(".", "_"), value


def _shortened(paths: Mapping[int, _Path], taken: set[str]) -> dict[int, str]:
    """The last parts of each path by which it differs from all others, beginning with the name of an attribute."""
    names: dict[int, str] = {}
    for number, path in paths.items():
        others = [other for key, other in paths.items() if key != number]
        names[number] = ".".join(path)
        for length in range(1, len(path)):
            end = path[-length:]
            if end[0].isdigit() or ".".join(end) in taken or any(other[-length:] == end for other in others):
                continue
            names[number] = ".".join(end)
            break
    return names
