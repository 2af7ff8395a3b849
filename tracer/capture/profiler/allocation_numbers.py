"""Numbers for allocations that the profiler did not number, as without `record_shapes`: by address, in order of time.

What a GPU's thread of the engine does is read behind all that the main thread does, so that the order of reading says
nothing of which free is which allocation's.

Shapes: A rows of allocations and frees, A' with the frees that no row tells of, N numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracer.arrays import Ints

TIME, SIZE, NUMBER, WIDTH = 0, 2, 3, 9
"""Columns of a row, and how many there are: time, address, size, number, two counters, operator, call, assumed."""


def number_in_time(rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Ints]:
    """Give each allocation and its free a number of their own.

    An allocation where another one lies was preceded by a free that no row tells of; it is put in right before, the
    latest it can have been.

    Args:
        rows: [A, WIDTH] in the order of reading, which for one thread is that of time. Their number is that of a device
            and address.

    Returns:
        The rows [A', WIDTH] with their numbers, and [N] the device and address of each number.
    """
    order = np.lexsort((rows[:, TIME], rows[:, NUMBER]))
    place, size = rows[order, NUMBER], rows[order, SIZE]
    is_first = np.diff(place, prepend=-1) != 0
    size_before = np.concatenate([[0], size[:-1]])
    begins = is_first | (size > 0) | (size_before <= 0)
    number = np.cumsum(begins) - 1
    numbered = rows.copy()
    numbered[order, NUMBER] = number
    again = np.flatnonzero(~is_first & (size > 0) & (size_before > 0))
    frees = np.full((len(again), WIDTH), -1, np.int64)
    frees[:, :SIZE] = rows[order[again], :SIZE]
    # The timeline puts frees behind allocations of the same time; but no block is freed before it is allocated.
    frees[:, TIME] = np.maximum(frees[:, TIME] - 1, rows[order[again - 1], TIME])
    frees[:, SIZE], frees[:, NUMBER], frees[:, -1] = -size_before[again], number[again] - 1, 1
    return np.insert(numbered, order[again], frees, axis=0), place[begins]
