"""Floating point operations of one step of a script, counted as it runs, behind the steps whose memory is counted."""

from __future__ import annotations

from typing import Any

from tracer.capture.torch_private.torch_dispatch import watched
from tracer.changes.flops import flops_of
from tracer.rehearsal.recorder import OperatorCall


class StepFlops:
    """Counts from when it begins until it ends; a step that does not end has no count.

    Attributes:
        is_on: Whether it counts.
        flops: Of the step; None until it has ended.
    """

    def __init__(self) -> None:
        """Count nothing yet."""
        self.is_on = False
        self.flops: int | None = None
        self._count = 0
        self._mode: Any = watched(self._see)

    def begin(self) -> None:
        """A step begins."""
        self.is_on = True
        self._mode.__enter__()

    def end(self) -> None:
        """It has ended."""
        self.stop()
        self.flops = self._count

    def stop(self) -> None:
        """Count no longer; once is enough."""
        if self.is_on:
            self.is_on = False
            self._mode.__exit__(None, None, None)

    def _see(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self._count += flops_of(OperatorCall(name, args, kwargs, out, is_backward=False))
