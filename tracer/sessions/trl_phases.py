"""Phases of trl's trainers: trl names and times parts of a step, such as `vLLM.generate`, and opens no region there."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Final
from weakref import WeakKeyDictionary

from torch.profiler import record_function

_MODULE: Final = "trl.extras.profiling"
_CONTEXT: Final = "ProfilingContext"
"""Its class of context managers with a `name`; earlier versions of trl, in which it is missing, have no phases."""


@contextmanager
def trl_phases() -> Iterator[None]:
    """Where trl is loaded within the block, each part of a step that it times is a `record_function` region."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with suppress(ValueError):  # a script may set the list anew
            sys.meta_path.remove(finder)


class _Finder:
    """Finds trl's module as Python would, and changes its class as soon as it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return where the module is, as `importlib` asks; None for all others."""
        spec = PathFinder.find_spec(name, path, target) if name == _MODULE else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            if (context := getattr(module, _CONTEXT, None)) is not None:
                _open_regions(context)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def _open_regions(context: Any) -> None:
    """Have each `with` block of a class of trl's be a region."""
    enter, leave = context.__enter__, context.__exit__
    regions: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @functools.wraps(enter)
    def entered(block: Any) -> Any:
        regions[block] = record_function(f"trl: {block.name}")
        regions[block].__enter__()
        return enter(block)

    @functools.wraps(leave)
    def left(block: Any, *error: Any) -> Any:
        try:
            return leave(block, *error)
        finally:
            regions.pop(block).__exit__(*error)

    context.__enter__, context.__exit__ = entered, left
