"""Phases of trl's trainers: trl names and times parts of a step, such as `vLLM.generate`, and opens no region there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from torch.profiler import record_function

from tracer.loaded_modules import when_loaded

_MODULE: Final = "trl.extras.profiling"
_CONTEXT: Final = "ProfilingContext"
"""Its class of context managers with a `name`; earlier versions of trl, in which it is missing, have no phases."""


def follow_trl() -> Callable[[], None]:
    """Have each part of a step that trl times be a `record_function` region, as soon as trl is loaded.

    Returns:
        A function that ends the waiting for trl.
    """
    return when_loaded(_MODULE, _open_regions)


def _open_regions(module: Any) -> None:
    if (context := getattr(module, _CONTEXT, None)) is None:
        return
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
