"""Filters of warnings that change nothing else of the program's warnings."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def ignore(message: str, module: str = "", *, is_last: bool = False) -> Callable[[], None]:
    """Ignore warnings, as `warnings.filterwarnings` does, without having others said again.

    Python says most warnings once for each line, and forgets which it has said when `filterwarnings` or
    `catch_warnings` is called.

    Args:
        message: A regular expression for the beginning of the text.
        is_last: Whether the program's own filters come before.

    Returns:
        A function that ends it; a second call does no harm.
    """
    about = re.compile(module) if module else None
    added = ("ignore", re.compile(message, re.IGNORECASE), Warning, about, 0)
    filters: list[object] = warnings.filters  # type: ignore[assignment]
    filters.insert(len(filters) if is_last else 0, added)

    def end() -> None:
        current: list[object] = warnings.filters  # type: ignore[assignment]
        for at, each in enumerate(current):
            if each is added:  # an equal one may be the program's
                del current[at]
                return

    return end


@contextmanager
def ignored(message: str, module: str = "") -> Iterator[None]:
    """Ignore warnings while a block lasts; see `ignore`."""
    end = ignore(message, module)
    try:
        yield
    finally:
        end()
