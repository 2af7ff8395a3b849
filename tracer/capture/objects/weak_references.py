"""Weak references, also to objects that cannot be referred to weakly."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TypeVar

_Object = TypeVar("_Object")
WeakReference = Callable[[], _Object | None]
"""Called, it gives the object, or None when it is gone."""


def weak_reference(target: _Object) -> WeakReference[_Object]:
    """A reference to an object; one whose class has slots alone can only be held."""
    try:
        return weakref.ref(target)
    except TypeError:
        return lambda: target


def alive(references: Iterable[WeakReference[_Object]]) -> list[_Object]:
    """The objects that are still there."""
    return [target for reference in references if (target := reference()) is not None]
