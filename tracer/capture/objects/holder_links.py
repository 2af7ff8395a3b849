"""Links from one Python object to another, in the words of the language; local, global and class variables.

No code of a user's class is called: attributes are looked up where objects keep them, and items of built-in containers
alone are looked through.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from tracer.capture.objects.at_failure import FUNCTOOLS
from tracer.capture.sources.source_files import is_user_code

ARROW: Final = " -> "
IN_DICT: Final = ".__dict__"
OF_MODULES: Final = ("._modules", "._parameters", "._buffers")
_MAX_KEY: Final = 40
_GENERATORS: Final = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_CACHED: Final = type(functools.cache(lambda: None))
_ITERATORS: Final = (enumerate, zip, map, filter)


def link(holder: Any, held: Any) -> str:
    """Text that, written behind a holder's name, names what it holds: `.history`, `[3]`, ` -> closure variable x`."""
    kind = type(holder)
    if issubclass(kind, type):
        # A class shows its dictionary through a proxy alone.
        return (
            IN_DICT
            if type(held) is dict
            else next((f".{name}" for name, value in vars(holder).items() if value is held), "")
        )
    if issubclass(kind, dict):
        return next((f"[{_key(key)}]" for key, value in dict.items(holder) if value is held), " (a key)")
    if issubclass(kind, list | tuple):
        base = list if issubclass(kind, list) else tuple
        return next((f"[{at}]" for at, value in enumerate(base.__iter__(holder)) if value is held), "")
    if kind is deque:
        return next((f"[{at}]" for at, value in enumerate(holder) if value is held), "")
    if kind in (types.CellType, types.TracebackType):
        return ""
    if kind is types.FunctionType:
        if holder.__defaults__ is held or holder.__kwdefaults__ is held:
            return f"{ARROW}defaults of {holder.__name__}()"
        return IN_DICT if holder.__dict__ is held else ""
    if kind is types.FrameType:
        return _local(holder, held)
    if kind in _GENERATORS:
        return _of_generator(holder, held)
    if kind is types.MethodType:
        return ".__self__" if holder.__self__ is held else ".__func__"
    if issubclass(kind, functools.partial):
        return next((f"{ARROW}{name} of the partial" for name in ("func", "args", "keywords")
                     if getattr(holder, name) is held), "")  # fmt: skip
    if issubclass(kind, BaseException):
        for name in ("__traceback__", "__cause__", "__context__", "args"):
            if getattr(BaseException, name).__get__(holder) is held:
                return f".{name}"
    if kind is _CACHED and attributes_of(holder) is not held:
        return FUNCTOOLS
    if kind in _ITERATORS and type(held) is not tuple:  # the iterator that it draws from; the tuple is its last item
        return f"{ARROW}{type(held).__name__}"
    return _attribute(holder, held)


def _key(key: object) -> str:
    """A key as it is written in a program, where that is short; never the words of a user's class."""
    if isinstance(key, str | int | float | bool | bytes | None):
        text = repr(key)
        return text if len(text) <= _MAX_KEY else f"{text[:_MAX_KEY]}..."
    return f"<{type(key).__name__}>"


def closure_variable(holder: types.FunctionType, cell: Any) -> str:
    """Text for the variable of a function's closure that is stored in this cell."""
    cells = zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=False)
    name = next((name for name, candidate in cells if candidate is cell), "")
    return f"{ARROW}closure variable {name} of {holder.__name__}()"


def _local(frame: types.FrameType, held: Any) -> str:
    name = next((name for name, value in locals_of(frame) if value is held), "")
    if frame.f_back is held or not name:
        return ""
    return f"{ARROW}local variable {name} of {where(frame)}"


def _of_generator(holder: Any, held: Any) -> str:
    frame = next((value for name in ("gi_frame", "cr_frame", "ag_frame")
                  if (value := getattr(holder, name, None)) is not None), None)  # fmt: skip
    return "" if frame is None else _local(frame, held)


def _attribute(holder: Any, held: Any) -> str:
    own = attributes_of(holder)
    if own is held:
        return IN_DICT
    for name, value in (own or {}).items():
        if value is held:
            return f".{name}"
    for base in type(holder).__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType) and _slot(slot, holder) is held:
                return f".{name}"
    if isinstance(holder, torch.Tensor):
        return next((f".{name}" for name in ("grad", "_base") if _of_tensor(holder, name) is held), "")
    return ""


def _slot(slot: types.MemberDescriptorType, holder: Any) -> Any:
    try:
        return slot.__get__(holder)
    except AttributeError:  # not set
        return None


def _of_tensor(tensor: torch.Tensor, name: str) -> Any:
    try:
        if name == "grad" and not (tensor.is_leaf or tensor.retains_grad):  # torch would warn
            return None
        return getattr(torch.Tensor, name).__get__(tensor)
    except (AttributeError, RuntimeError):
        return None


def attributes_of(holder: Any) -> dict[str, Any] | None:
    """The attributes that an object keeps in a dictionary; None where it has none."""
    try:
        attributes = object.__getattribute__(holder, "__dict__")
    except (AttributeError, TypeError):
        return None
    return attributes if type(attributes) is dict else None


def locals_of(frame: types.FrameType) -> Iterator[tuple[str, Any]]:
    """The local variables of a frame, without leaving a reference behind.

    Until Python 3.12 asking for them fills a dictionary that the frame keeps: what nobody else has of it is emptied.
    """
    variables = frame.f_locals
    if variables is frame.f_globals or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return
    pairs = list(variables.items())
    # The frame's reference, this function's and that of the call: a fourth is somebody's `locals()`.
    if sys.version_info < (3, 13) and sys.getrefcount(variables) <= 3:
        variables.clear()
    yield from pairs


def where(frame: types.FrameType) -> str:
    """`step(), train.py:31` for a frame."""
    name, file = frame.f_code.co_name, Path(frame.f_code.co_filename).name
    shown = file if name == "<module>" else f"{name}()"
    return f"{shown}, {file}:{frame.f_lineno}" if name != "<module>" else f"{file}:{frame.f_lineno}"


def is_users_frame(frame: types.FrameType) -> bool:
    """True if a frame runs code of the user's."""
    return not frame.f_globals.get("__tracebackhide__") and is_user_code(frame.f_code.co_filename)


def joined(parts: list[str]) -> str:
    """The parts of a path in one: an object's dictionary and a module's tables are its attributes."""
    text = ""
    for part in parts:
        name = part[2:-2] if part.startswith("['") and part.endswith("']") else ""
        table = next((name for name in (IN_DICT, *OF_MODULES) if text.endswith(name)), None)
        if table is not None and (name.isidentifier() or name.isdigit()):
            text = text.removesuffix(table) + (f"[{name}]" if name.isdigit() else f".{name}")
        else:
            text += part
    return text.removesuffix(IN_DICT)


_TRACER_PACKAGE: Final = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Root:
    """A variable: its name, where it is, whether it is the user's own, and of which frame or module."""

    name: str
    place: str  # Empty for a function of torch's
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
    """True if instances of a class are iterators."""
    return any("__next__" in vars(base) for base in kind.__mro__)


def is_ours(kind: type) -> bool:
    """True if a class is this program's."""
    return str(getattr(kind, "__module__", "")).partition(".")[0] == _TRACER_PACKAGE


def is_of_ours(frame: types.FrameType) -> bool:
    """True if a frame runs code of this program."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _TRACER_PACKAGE


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
        is_torchs = str(frame.f_globals.get("__name__")).startswith("torch.")  # which has passed it on
        place = "" if is_torchs else f"local variable of {where(frame)}"
        for variable, value in locals_of(frame):
            root = Root(variable, place, is_users, id(frame))
            roots_of.setdefault(id(value), []).insert(0, root)
    for roots in roots_of.values():
        roots.sort(key=lambda root: not root.is_users)
    return roots_of, running, modules
