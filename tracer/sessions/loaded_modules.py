"""Tells of each Python module that the program loads, while a session asks for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress


class LoadedModules:
    """A finder of modules, before all others, that finds none."""

    def __init__(self, is_loading: Callable[[], None]) -> None:
        """Set up; nothing is asked.

        Args:
            is_loading: Called before each module that is looked for.
        """
        self._is_loading = is_loading

    def start(self) -> None:
        """Begin to tell."""
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """End it; more than once does no harm."""
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Tell of a module, as `importlib` asks; other finders find it."""
        self._is_loading()
