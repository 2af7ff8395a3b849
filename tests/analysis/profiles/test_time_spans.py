"""Stretches of time, against a plain loop over all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.profiles.time_spans import enclosing, merged
from tracer.arrays import Ints

SPAN = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda one: (one[0], one[0] + one[1]))
SPANS = st.lists(SPAN, max_size=12)


def columns(spans: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    return start, end


@given(SPANS)
def test_merged_spans_cover_the_same_moments_and_lie_apart(spans: list[tuple[int, int]]) -> None:
    start, end = merged(*columns(spans))
    wanted = {moment for a, b in spans for moment in range(a, b)}
    assert {moment for a, b in zip(start.tolist(), end.tolist(), strict=True) for moment in range(a, b)} == wanted
    assert (start[1:] > end[:-1]).all()


@given(SPANS, st.lists(st.integers(-5, 80), max_size=20))
def test_the_enclosing_span_is_that_of_a_plain_loop(spans: list[tuple[int, int]], times: list[int]) -> None:
    start, end = merged(*columns(spans))
    expected = [
        next((at for at, (a, b) in enumerate(zip(start.tolist(), end.tolist(), strict=True)) if a <= time < b), -1)
        for time in times
    ]
    assert enclosing(start, end, np.array(times, np.int64)).tolist() == expected
