"""Few rows that draw the same picture as many: the reduction of a long series that loses no peak."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracer.arrays import Ints, Rows


def reduce_rows(x: Ints, values: Ints, *, num_buckets: int, keep: Iterable[int] = ()) -> Rows:
    """Choose the rows that a drawing of `num_buckets` pixels needs.

    The range of x is cut into buckets of equal width. Of each bucket stay its first and last row and, for the total
    and for each column, the first row with its smallest and the first with its largest value. So a staircase through
    the chosen rows enters and leaves every bucket at the right height and touches every extreme, and each chosen row
    is one of the input's, with all its columns as they were.

    Args:
        x: Position of each row, in the order of the rows. A position smaller than an earlier one counts as that.
        values: [rows, columns]

    Returns:
        Indices of the chosen rows, ascending, each once: at most `num_buckets * (2 * columns + 4)` of them and `keep`.
    """
    if values.ndim != 2 or len(x) != len(values):
        raise ValueError(f"{len(x)} positions, but values of shape {values.shape}")
    if num_buckets < 1:
        raise ValueError(f"{num_buckets} buckets")
    kept = np.fromiter(keep, np.int64)
    if not len(x):
        return kept[:0]
    starts = bucket_starts(x, num_buckets)
    chosen = np.zeros(len(x), bool)
    chosen[starts] = True
    chosen[starts[1:] - 1] = True
    chosen[-1] = True
    chosen[kept] = True
    for column in (values.sum(axis=1), *values.T):
        chosen[_first_of(column, starts, np.maximum)] = True
        chosen[_first_of(column, starts, np.minimum)] = True
    return np.flatnonzero(chosen)


def bucket_starts(x: Ints, num_buckets: int) -> Rows:
    """First row of each bucket that has any; buckets have equal width, the last one includes the end of the range.

    Args:
        x: Where each row lies, in order; what steps back counts as standing still. One row at least.
    """
    position = np.maximum.accumulate(x)
    offset, width = position - position[0], int(position[-1] - position[0])
    # Floating point may move a row to the neighbouring bucket, never out of order: products of 64 bits would overflow.
    bucket = np.minimum((offset * (num_buckets / max(width, 1))).astype(np.int64), num_buckets - 1)
    return np.concatenate(([0], np.flatnonzero(np.diff(bucket)) + 1)).astype(np.int64)


def _first_of(column: Ints, starts: Rows, extreme: np.ufunc) -> Rows:
    extremes = extreme.reduceat(column, starts)
    lengths = np.diff(np.append(starts, len(column)))
    hits = np.flatnonzero(column == np.repeat(extremes, lengths))
    first = np.searchsorted(hits, starts)
    return np.asarray(hits[first], np.int64)
