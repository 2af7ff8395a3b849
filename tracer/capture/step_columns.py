"""A run's memory, step by step, in columns whose length has a bound: a training may have a million steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from tracer.arrays import ColumnTable, Int, Ints, PerSteps

NOT_SEEN: Final = -1
MAX_ROWS: Final = 4096
"""Twelve columns of 8 bytes: 384 KiB."""
_TOGETHER: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns(ColumnTable):
    """What was in use in each step, columns [J]; -1 is what was not seen.

    A row is one step, or several that follow each other when the run is long: then `step`, `end_bytes` and the counts
    are of the last of them, and what was highest is the highest of all.

    Moments within a step are looked at in the first steps and then in one of eight, see `moments`.
    """

    step: PerSteps[Int]  # The number of steps that had ended, from 1
    time_ns: PerSteps[Int]  # When the step ended
    # Bytes in use when it ended: by the allocator, or on the CPU resident memory of the process.
    end_bytes: PerSteps[Int]
    forward_bytes: PerSteps[Int]  # Most that was in use right after a call of a model in training
    backward_bytes: PerSteps[Int]  # Bytes in use when an optimizer began its step
    # Most that was in use right after a call of a model in evaluation, or with gradients off.
    evaluation_bytes: PerSteps[Int]
    reserved_bytes: PerSteps[Int]  # Held from the driver when the step ended
    peak_bytes: PerSteps[Int]  # The allocator's own peak, since the program began or set it back
    num_retries: PerSteps[Int]  # Requests so far for which the cache was emptied
    device_used_bytes: PerSteps[Int]  # Bytes in use on the device by everybody, as its driver says
    resident_bytes: PerSteps[Int]  # Resident memory of the process
    num_allocations: PerSteps[Int]  # Requests so far that the allocator has served

    @property
    def moments(self) -> Self:
        """The rows in which a moment within a step was looked at; all of them where none was."""
        looked = (self.forward_bytes > NOT_SEEN) | (self.backward_bytes > NOT_SEEN)
        if looked.all() or not looked.any():
            return self
        return self.take(looked)

    @property
    def most_bytes(self) -> PerSteps[Int]:
        """The most that was seen in use in each row's steps, at whichever moment they were looked at."""
        return np.maximum(np.maximum(self.end_bytes, self.forward_bytes), self.backward_bytes)


_NAMES: Final = StepColumns.names()
_HIGHEST: Final = np.array(
    [name in ("forward_bytes", "backward_bytes", "evaluation_bytes", "peak_bytes") for name in _NAMES]
)


class StepTable:
    """Collects rows; when there are too many, two and two become one, and so do those that follow."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        """An empty table."""
        self.steps_per_row = 1  # How many steps a row stands for
        self._rows: Ints = np.zeros((max_rows, len(_NAMES)), np.int64)
        self._num_rows = 0
        self._waiting: list[Mapping[str, int]] = []
        self._open: Ints | None = None
        self._num_open = 0

    def add(self, values: Mapping[str, int]) -> None:
        """Add a step; what is not among the values was not seen. They are kept, and put into columns when many wait."""
        self._waiting.append(values)
        if len(self._waiting) >= _TOGETHER:
            self._put_in()

    def _put_in(self) -> None:
        waiting, self._waiting = self._waiting, []
        for values in waiting:
            row = np.array([values.get(name, NOT_SEEN) for name in _NAMES], np.int64)
            self._open = row if self._open is None else _together(self._open, row)
            self._num_open += 1
            if self._num_open >= self.steps_per_row:
                self._close()

    def _close(self) -> None:
        if self._num_rows == len(self._rows):
            self._halve()
            if self._num_open < self.steps_per_row:
                return
        assert self._open is not None
        self._rows[self._num_rows] = self._open
        self._num_rows += 1
        self._open, self._num_open = None, 0

    def _halve(self) -> None:
        half = self._num_rows // 2
        rows = self._rows[: 2 * half]
        self._rows[:half] = _together(rows[0::2], rows[1::2])
        self._num_rows = half
        self.steps_per_row *= 2

    def columns(self) -> StepColumns:
        """What there is so far, with a last row of the steps that are no whole row yet."""
        self._put_in()
        rows = self._rows[: self._num_rows]
        if self._open is not None:
            rows = np.vstack([rows, self._open])
        return StepColumns(**{name: rows[:, at].copy() for at, name in enumerate(_NAMES)})


def _together(first: Ints, second: Ints) -> Ints:
    return np.where(_HIGHEST, np.maximum(first, second), second)
