"""Python's cyclic garbage collector: paused where millions of objects come and none is garbage; and what it knows."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
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


def objects_with_type(is_wanted: Callable[[type], bool]) -> list[Any]:
    """Return the objects that the collector knows and whose type is wanted.

    No other thread runs while a list of all objects exists: Python refuses to complete a tuple that another thread is
    making, as `tuple(x for x in ...)` does, if a list has it. So one call of C code makes, reads and clears the list.

    Source: `_PyTuple_Resize` in Objects/tupleobject.c.
    """
    with paused_gc():  # a collection may call Python code
        wanted = set(filter(is_wanted, set(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))))
        # Three times the same list, made when the first is asked for. It has these iterators, which have it.
        objects, alike, cleared = tee(map(gc.get_objects, (None,)), 3)
        is_of_wanted = map(wanted.__contains__, map(type, chain.from_iterable(alike)))
        found = list(chain(compress(chain.from_iterable(objects), is_of_wanted), map(list.clear, cleared)))
    return found[:-1]  # without what `clear` returned
