"""A run's memory, step by step, in columns whose length has a bound: a training may have a million steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.arrays import ColumnTable, Int, Ints, PerSteps

NOT_SEEN: Final = -1
MAX_ROWS: Final = 4096
"""Eight columns of 8 bytes: 256 KiB."""
_TOGETHER: Final = 64


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
        self._steps_per_row = 1
        self._rows: Ints = np.zeros((max_rows, len(_NAMES)), np.int64)
        self._num_rows = 0
        self._waiting: list[Mapping[str, int]] = []
        self._open: Mapping[str, int] | None = None  # The last step, if it is no whole row yet
        self._num_open = 0

    def add(self, values: Mapping[str, int]) -> None:
        """Add a step; what is not among the values was not seen. They are kept, and put into columns when many wait."""
        self._waiting.append(values)
        if len(self._waiting) >= _TOGETHER:
            self._put_in()

    def _put_in(self) -> None:
        waiting, self._waiting = self._waiting, []
        for values in waiting:
            self._open = values
            self._num_open += 1
            if self._num_open >= self._steps_per_row and self._num_rows == len(self._rows):
                self._num_rows //= 2
                self._rows[: self._num_rows] = self._rows[1 : 2 * self._num_rows : 2]
                self._steps_per_row *= 2
            if self._num_open >= self._steps_per_row:
                self._rows[self._num_rows] = _row(values)
                self._num_rows += 1
                self._open, self._num_open = None, 0

    def columns(self) -> StepColumns:
        """Return the rows so far, with a last one for the steps that are no whole row yet."""
        self._put_in()
        rows = self._rows[: self._num_rows]
        if self._open is not None:
            rows = np.vstack([rows, _row(self._open)])
        return StepColumns(**{name: rows[:, at].copy() for at, name in enumerate(_NAMES)})


def _row(values: Mapping[str, int]) -> Ints:
    return np.array([values.get(name, NOT_SEEN) for name in _NAMES], np.int64)
