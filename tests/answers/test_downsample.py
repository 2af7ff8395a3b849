"""The reduction of long series: exact rows, and of every bucket the ends and extremes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tracer.answers.downsample import bucket_starts, reduce_rows


def test_nothing_and_one_row() -> None:
    none = np.zeros(0, np.int64)
    assert reduce_rows(none, np.zeros((0, 3), np.int64), num_buckets=4).tolist() == []
    assert reduce_rows(none + 7, np.zeros((0, 0), np.int64), num_buckets=4).tolist() == []
    assert reduce_rows(np.array([7]), np.array([[1, 2]]), num_buckets=4).tolist() == [0]


def test_a_clock_that_steps_back_stands_still() -> None:
    # Row 2 lies before row 1 and stays in its bucket; row 3 opens the last one.
    assert bucket_starts(np.array([0, 60, 10, 100]), 2).tolist() == [0, 1]
    assert bucket_starts(np.array([0, 40, 10, 100]), 2).tolist() == [0, 3]


@pytest.mark.parametrize(("rows", "num_buckets"), [(3, 0), (2, 1)])
def test_refuses_what_cannot_be(rows: int, num_buckets: int) -> None:
    with pytest.raises(ValueError):
        reduce_rows(np.arange(3), np.zeros((rows, 1), np.int64), num_buckets=num_buckets)


def naive(x: list[int], values: list[list[int]], num_buckets: int) -> list[int]:
    """Bucket by bucket, column by column."""
    highest_x = x[0]
    buckets: dict[int, list[int]] = {}
    position = []
    for one in x:
        highest_x = max(highest_x, one)
        position.append(highest_x - x[0])
    width = max(position[-1], 1)
    for row, at in enumerate(position):
        buckets.setdefault(min(int(at * (num_buckets / width)), num_buckets - 1), []).append(row)
    chosen = set()
    for rows in buckets.values():
        chosen |= {rows[0], rows[-1]}
        for column in [[sum(line) for line in values], *map(list, zip(*values, strict=True))]:
            chosen.add(max(rows, key=lambda row: column[row]))
            chosen.add(min(rows, key=lambda row: column[row]))
    return sorted(chosen)


SERIES = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.int64, n, elements=st.integers(0, 200)),
        hnp.arrays(np.int64, st.tuples(st.just(n), st.integers(1, 4)), elements=st.integers(0, 2**48)),
        st.integers(1, 12),
    )
)


@given(SERIES)
def test_agrees_with_a_plain_loop(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    x, values, num_buckets = case
    rows = reduce_rows(x, values, num_buckets=num_buckets)
    assert rows.tolist() == naive(x.tolist(), values.tolist(), num_buckets)


@given(SERIES)
def test_the_peak_of_everything_survives(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    x, values, num_buckets = case
    rows = reduce_rows(x, values, num_buckets=num_buckets)
    assert len(rows) <= num_buckets * (2 * values.shape[1] + 4)
    assert (np.diff(rows) > 0).all()
    for column in (values.sum(axis=1), *values.T):
        assert column[rows].max() == column.max()
        assert column[rows].min() == column.min()
    assert int(values.sum(axis=1).argmax()) in rows


def test_a_million_rows_keep_a_single_spike() -> None:
    values = np.full((1_000_000, 8), 100, np.int64)
    values[654_321, 3] = 101
    rows = reduce_rows(np.arange(1_000_000), values, num_buckets=1000)
    assert 654_321 in rows
    assert len(rows) < 4100
