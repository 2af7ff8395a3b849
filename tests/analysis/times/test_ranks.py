"""Ranks beside each other: who waits for whom, by hand and as a law."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.times.ranks import RankTimes, compare_ranks

REDUCE, GATHER = ("ncclAllReduce", "[0, 1, 2]"), ("ncclAllGather", "[0, 1]")


def rank(number: int | None, collectives: dict[tuple[str, str], list[int]], file: str = "") -> RankTimes:
    columns = {key: np.array(durations, np.int64) for key, durations in collectives.items()}
    return RankTimes(file or f"r{number}", number, None, None, None, 1, columns)


def test_who_waits_for_whom_by_hand() -> None:
    # In the first reduction rank 1 came last, in the second rank 0; only 0 and 1 gather, and 1 came last.
    found = compare_ranks(
        [rank(2, {REDUCE: [7, 20]}), rank(0, {REDUCE: [9, 10], GATHER: [8]}), rank(1, {REDUCE: [5, 30], GATHER: [3]})]
    )
    assert [(row.times.rank, row.waited_ns, row.waited_for_ns, row.num_last) for row in found.rows] == [
        (0, 4 + 5, 10 + 20, 1),
        (1, 20, 4 + 2 + 5, 2),
        (2, 2 + 10, 0, 0),
    ]
    assert found.slowest is found.rows[0] and (found.num_compared, found.num_left_out) == (3, 0)


def test_what_not_all_have_is_left_out_and_counted() -> None:
    found = compare_ranks([rank(0, {REDUCE: [9, 9], GATHER: [4]}), rank(1, {REDUCE: [9, 9, 9]})])
    assert (found.num_compared, found.num_left_out) == (0, 6) and found.slowest is None
    assert compare_ranks([rank(0, {REDUCE: [9]})]).num_left_out == 1


def test_ranks_without_a_number_come_last_by_name() -> None:
    found = compare_ranks([rank(None, {}, "b"), rank(None, {}, "a"), rank(3, {})])
    assert [row.times.name for row in found.rows] == ["rank 3", "a", "b"]


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(st.integers(0, 50), min_size=n, max_size=n), min_size=2)))
def test_what_is_waited_is_waited_for(durations: list[list[int]]) -> None:
    found = compare_ranks([rank(number, {REDUCE: column}) for number, column in enumerate(durations)])
    assert sum(row.waited_ns for row in found.rows) == sum(row.waited_for_ns for row in found.rows)
    assert sum(row.num_last for row in found.rows) == found.num_compared == len(durations[0])
    assert all(row.waited_for_ns == 0 for row in found.rows if not row.num_last)
