"""A run's memory, step by step, in columns whose length has a bound: a training may have a million steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.arrays import ColumnTable, Int, PerSteps

NOT_SEEN: Final = -1
MAX_ROWS: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns(ColumnTable):
    """Memory in use at the end of each step, columns [J]; -1 stands for an unknown value.

    A row is one step, or several consecutive ones of a long run: its values are those of the last.
    """

    step: PerSteps[Int]  # The number of steps that had ended, from 1
    time_ns: PerSteps[Int]  # When the step ended
    # Bytes in use when it ended: by the allocator, or on the CPU resident memory of the process.
    end_bytes: PerSteps[Int]
    reserved_bytes: PerSteps[Int]  # Held from the driver when the step ended
    peak_bytes: PerSteps[Int]  # The allocator's own peak, since the program began or set it back
    num_retries: PerSteps[Int]  # Requests so far for which the cache was emptied
    resident_bytes: PerSteps[Int]  # Resident memory of the process
    num_allocations: PerSteps[Int]  # Requests so far that the allocator has served


_NAMES: Final = StepColumns.names()


class StepTable:
    """Collects rows; a full table drops every second one, and from then on a row stands for twice as many steps."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        """An empty table."""
        self._max_rows, self._steps_per_row, self._num_open = max_rows, 1, 0
        self._rows: list[tuple[int, ...]] = []
        self._last: tuple[int, ...] = ()  # The last step; of the rows, where the last one stands for no more than it

    def add(self, values: Mapping[str, int]) -> None:
        """Add a step; what is not among the values was not seen."""
        self._last = tuple(values.get(name, NOT_SEEN) for name in _NAMES)
        self._num_open += 1
        if self._num_open >= self._steps_per_row and len(self._rows) == self._max_rows:
            del self._rows[::2]
            self._steps_per_row *= 2
        if self._num_open >= self._steps_per_row:
            self._rows.append(self._last)
            self._num_open = 0

    def columns(self) -> StepColumns:
        """Return the rows so far, with a last one for the steps that are no whole row yet."""
        rows = np.array([*self._rows, *[self._last] * bool(self._num_open)], np.int64).reshape(-1, len(_NAMES))
        return StepColumns(**{name: rows[:, at].copy() for at, name in enumerate(_NAMES)})
