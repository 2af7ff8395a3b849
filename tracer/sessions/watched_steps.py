"""Count a watched device's memory after each step, and notice growth and errors that a program catches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import torch

from tracer.answers.step_findings import explain_steps
from tracer.answers.watch_report import OUT_OF_MEMORY
from tracer.blocks.from_snapshot.timeline import StepEnds
from tracer.capture.device.memory_counters import StepReader, read_counters
from tracer.capture.objects.live_tensors import Alike, unnamed_tensors
from tracer.capture.step_columns import StepColumns, StepTable
from tracer.capture.torch_private import torch_history

BASELINE_STEP: Final = 3
_GROWS: Final = "memory grows from step to step"
"""The event of a report that nobody asked for."""
_FIRST_LOOK, _LOOK_AGAIN = 32, 2


class WatchedSteps:
    """The counters of the steps so far.

    Attributes:
        earlier: Reachable tensors outside of modules at the end of step `BASELINE_STEP`, where there is no history.
    """

    def __init__(self, device: torch.device, *, max_entries: int) -> None:
        self.earlier: Mapping[str, Alike] | None = None
        self._device, self._reader, self._table = device, StepReader(device), StepTable()
        # The ring holds far fewer steps than this; a step without an allocation needs no place in it.
        self._ends: deque[tuple[int, int]] = deque(maxlen=max_entries)
        self._num_raised = 0  # Errors of full memory that Python has seen, when the last step ended
        self._next_look: float = _FIRST_LOOK  # Step at which growth is looked for; infinite when it has been told

    @property
    def has_allocator(self) -> bool:
        """True if the device's allocator has counters."""
        return self._reader.has_allocator

    @property
    def columns(self) -> StepColumns:
        """The counters of the steps so far."""
        return self._table.columns()

    @property
    def grow(self) -> bool:
        """True if memory grows from step to step."""
        steps = explain_steps(self.columns, limit_bytes=None, has_allocator=self.has_allocator)
        return steps.growth is not None

    def start(self) -> None:
        """Begin."""
        self._num_raised = torch_history.RAISED.number

    def end_step(self, step: int, *, has_history: bool) -> Iterator[str]:
        """Count a step that has ended; yield each event in it that is to be explained."""
        num_raised, num_failures = self._num_raised, self._reader.num_failures
        if torch_history.RAISED.number > num_raised:
            torch_history.RAISED.forget()
        self._num_raised = torch_history.RAISED.number
        row = self._reader.end_of_step(step, time.time_ns())
        self._table.add(row)
        if "num_allocations" in row:
            self._ends.append((step, row["num_allocations"]))
        if step == BASELINE_STEP and not has_history:
            self.earlier = unnamed_tensors(self._device)
        # A library such as cuDNN tries a request again with less: an error that reaches Python has failed.
        if self._reader.num_failures > num_failures and self._num_raised > num_raised:
            yield f"{OUT_OF_MEMORY}, and the program went on"
        if step >= self._next_look:
            self._next_look *= _LOOK_AGAIN
            if self.grow:
                self._next_look = float("inf")
                yield _GROWS

    @property
    def ends(self) -> StepEnds | None:
        """Ends of steps, by what the allocator had served; None where it does not count."""
        counters = read_counters(self._device)
        if counters is None:
            return None
        table = np.array(self._ends, np.int64).reshape(-1, 2)
        # A program may set the counts back: what was counted before is of no use then.
        falls = np.flatnonzero(np.diff(table[:, 1]) < 0)
        table = table[falls[-1] + 1 :] if len(falls) else table
        return StepEnds(table[:, 0].copy(), table[:, 1].copy(), counters.num_allocations)
