"""Profilers of the program's own: torch can have one at a time, and the program's goes first."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tracer.capture.torch_private import torch_profiler


class OtherProfilers:
    """The `torch.autograd.profiler.profile` objects that are not ours."""

    def __init__(self) -> None:
        self._found: weakref.WeakSet[Any] = weakref.WeakSet()

    def start(self, begins: Callable[[Any], None]) -> Callable[[], None]:
        """Look for those that are there, and call back before any profiler prepares to record.

        Returns:
            A function that ends it.
        """
        self._found.update(torch_profiler.prepared_profilers())
        return torch_profiler.on_preparing(begins)

    def add(self, profiler: Any) -> None:
        """Add one that prepares to record and is not ours."""
        self._found.add(profiler)

    @property
    def are_at_work(self) -> bool:
        """True if another profiler is active; starting ours would stop it."""
        return torch_profiler.is_recorded_by_profiler() or any(map(torch_profiler.is_prepared, self._found))
