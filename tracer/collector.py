"""Python's cyclic garbage collector: paused where millions of objects come and none is garbage; and what it knows."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, compress, tee
from typing import Any


@contextmanager
def paused_gc() -> Iterator[None]:
    """Pause the collector, which otherwise takes two thirds of the time of a load, and leave it as it was."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def make_all_old() -> None:
    """Have the collector take all objects as old ones, without a walk over them."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


def _with_subclasses(classes: Iterable[type]) -> set[type]:
    found: set[type] = set()
    rest = list(classes)
    while rest:
        if (kind := rest.pop()) not in found:
            found.add(kind)
            rest += type.__subclasses__(kind)
    return found


_LOOK = threading.local()
"""Of a thread within `one_look`: the classes that are looked for, and what was found, None until somebody asks."""


@contextmanager
def one_look(classes: Iterable[type]) -> Iterator[None]:
    """Within the block, objects of these classes are looked for once: it is to be short, and runs no user's code."""
    _LOOK.classes, _LOOK.found = tuple(classes), None
    try:
        yield
    finally:
        _LOOK.classes, _LOOK.found = (), None


def objects_with_type(classes: tuple[type, ...]) -> list[Any]:
    """Return the objects that the collector knows and that are of these classes, or of classes below them.

    No other thread runs while a list of all objects exists: Python refuses to complete a tuple that another thread is
    making, as `tuple(x for x in ...)` does, if a list has it. So one call of C code makes, reads and clears the list.

    Source: `_PyTuple_Resize` in Objects/tupleobject.c.
    """
    shared = getattr(_LOOK, "classes", ())
    if not all(any(issubclass(kind, known) for known in shared) for kind in classes):
        return _look(classes)
    if _LOOK.found is None:
        _LOOK.found = _look(shared)
    return [thing for thing in _LOOK.found if issubclass(type(thing), classes)]


def _look(classes: Iterable[type]) -> list[Any]:
    with paused_gc():  # a collection may call Python code
        wanted = _with_subclasses(classes)
        # Three times the same list, made when the first is asked for. It has these iterators, which have it.
        objects, alike, cleared = tee(map(gc.get_objects, (None,)), 3)
        is_of_wanted = map(wanted.__contains__, map(type, chain.from_iterable(alike)))
        found = list(chain(compress(chain.from_iterable(objects), is_of_wanted), map(list.clear, cleared)))
    return found[:-1]  # without what `clear` returned
