"""What is known of files, remembered for one session: until the next begins, a file may come, change or be imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Known = TypeVar("_Known")
_forget: list[Callable[[], None]] = []


def remembered(function: Callable[_Given, _Known]) -> Callable[_Given, _Known]:
    """Decorate a function so that it is called once a session for the same arguments."""
    known = cache(function)
    _forget.append(known.cache_clear)
    return known  # type: ignore[return-value]


def forget_files() -> None:
    """Look at files, `sys.path` and imported modules anew; every session and watch begins with it."""
    for forget in _forget:
        forget()
