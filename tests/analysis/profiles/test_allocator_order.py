"""The order of one device's events, and what is alive after each: by hand, and a plain loop beside it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import Event, recording_of
from tracer.analysis.profiles.allocator_order import alive_bytes, allocator_order


def test_several_threads_are_merged_by_their_nanoseconds_and_ties_stay_as_they_came() -> None:
    # Rows 0 to 2 are one thread's, 3 to 5 another's; row 4 is another device's.
    times = [10, 20, 30, 5, 15, 20]
    events = [Event(row * 8, 8, row, at_ns=time_ns, device=int(row == 4)) for row, time_ns in enumerate(times)]
    recording = recording_of(events, devices=("cpu", "cuda:0"))
    assert allocator_order(recording, 0).tolist() == [3, 0, 1, 5, 2]
    assert allocator_order(recording, 1).tolist() == [4]


def test_within_a_nanosecond_the_order_is_that_of_the_tree() -> None:
    """Many, because a sort that is not stable keeps the order of few."""
    times = [row % 2 for row in range(200)]
    recording = recording_of([Event(row * 8, 8, row, at_ns=time_ns) for row, time_ns in enumerate(times)])
    assert allocator_order(recording, 0).tolist() == [*range(0, 200, 2), *range(1, 200, 2)]


def test_bytes_alive_by_hand() -> None:
    # 100 from before, freed by event 1; 7 made by event 0 and never freed; 5 made by event 1 and freed by event 2.
    size, made, freed = (np.array(column, np.int64) for column in ([100, 7, 5], [-1, 0, 1], [1, 3, 2]))
    assert alive_bytes(size, made, freed, 3).tolist() == [107, 12, 7]


BLOCKS = st.lists(st.tuples(st.integers(0, 10**12), st.integers(-1, 5), st.integers(0, 6)), max_size=20)


@given(BLOCKS)
def test_a_plain_loop_agrees(drawn: list[tuple[int, int, int]]) -> None:
    blocks = [(size, made, max(made, freed)) for size, made, freed in drawn]
    expected = [sum(size for size, made, freed in blocks if made <= at < freed) for at in range(6)]
    size, made_at, freed_at = (np.array([block[which] for block in blocks], np.int64) for which in range(3))
    assert alive_bytes(size, made_at, freed_at, 6).tolist() == expected
