"""Phases of trl's trainers: trl names and times parts of a step, such as `vLLM.generate`, and opens no region there."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from torch.profiler import record_function

from tracer.loaded_modules import when_loaded

_MODULE: Final = "trl.extras.profiling"
_CONTEXT: Final = "ProfilingContext"
"""Its class of context managers with a `name`; earlier versions of trl, in which it is missing, have no phases."""


@contextmanager
def trl_phases() -> Iterator[None]:
    """Where trl is loaded within the block, each part of a step that it times is a `record_function` region."""
    end = when_loaded(_MODULE, _open_regions)
    try:
        yield
    finally:
        end()


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
