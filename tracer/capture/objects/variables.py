"""Variables of the running program: local ones of functions, global ones of modules, attributes of classes."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tracer.capture.objects.holder_links import is_users_frame, locals_of, where

_OURS: Final = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Root:
    """A variable: its name, where it is, whether it is the user's own, and of which frame or module."""

    name: str
    place: str
    is_users: bool
    scope: int = 0


def of_class(kind: type) -> Root:
    """A class, as what holds its attributes."""
    return Root(kind.__qualname__, f"attribute of the class, {kind.__module__}", not is_ours(kind))


def of_loop(iterator: Any) -> Root:
    """Return an iterator that a running `for` has in no variable, as the root of the items it keeps.

    `for i, x in enumerate(loader)` keeps the last pair until the next one, a generator all of its local variables.
    """
    frame = iterator.gi_frame if type(iterator) is types.GeneratorType else None
    is_users = frame is not None and is_users_frame(frame)
    return Root(f"the loop's {type(iterator).__name__}", "iterator of a loop", is_users, id(iterator))


def is_iterator(kind: type) -> bool:
    """Whether instances of a class are iterators."""
    return any("__next__" in vars(base) for base in kind.__mro__)


def is_ours(kind: type) -> bool:
    """Whether a class is this program's."""
    return str(getattr(kind, "__module__", "")).partition(".")[0] == _OURS


def is_of_ours(frame: types.FrameType) -> bool:
    """Whether a frame runs code of this program."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OURS


def running_frames(error: BaseException | None) -> Iterator[types.FrameType]:
    """Frames that run, of all threads, and those that an error on its way has left; the outermost last."""
    trace = error.__traceback__ if error is not None else None
    left = []
    while trace is not None:
        left.append(trace.tb_frame)
        trace = trace.tb_next
    yield from reversed(left)
    innermost: dict[int, types.FrameType | None] = dict(sys._current_frames())
    # Not this function's own, which would hold itself and with it, from Python 3.12 on, all that called it.
    innermost[threading.get_ident()] = sys._getframe(1)
    for frame in innermost.values():
        while frame is not None:
            yield frame
            frame = frame.f_back


_Modules: TypeAlias = dict[int, tuple[str, dict[str, Any]]]
Variables: TypeAlias = tuple[dict[int, list[Root]], set[int], _Modules]


def variables_of(error: BaseException | None) -> Variables:
    """Local variables of functions that run by the `id` of their value, these functions' frames, and modules.

    Of a value's variables the outermost of the user's functions comes first. Modules are by the `id` of their
    dictionaries; a script's own may be in no list of modules, and is that of its frame.
    """
    roots_of: dict[int, list[Root]] = {}
    running: set[int] = set()
    # A module may have several names, of which the first is its own.
    named = reversed(list(sys.modules.items()))
    modules = {id(vars(module)): (name, vars(module)) for name, module in named if type(module) is types.ModuleType}
    for frame in running_frames(error):
        running.add(id(frame))
        name = str(frame.f_globals.get("__name__", ""))
        modules.setdefault(id(frame.f_globals), (name, frame.f_globals))
        if is_of_ours(frame):
            continue
        is_users = is_users_frame(frame)
        for variable, value in locals_of(frame):
            root = Root(variable, f"local variable of {where(frame)}", is_users, id(frame))
            roots_of.setdefault(id(value), []).insert(0, root)
    for roots in roots_of.values():
        roots.sort(key=lambda root: not root.is_users)
    return roots_of, running, modules
