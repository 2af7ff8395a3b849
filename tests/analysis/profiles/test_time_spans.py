"""Stretches of time, against a plain loop over all of them."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.profiles.time_spans import covered, enclosing, gaps, merged
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


SHORT_SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=8)


@given(SHORT_SPANS, st.lists(st.integers(0, 60), min_size=2, max_size=5))
def test_covered_time_is_each_nanosecond_once(spans: list[tuple[int, int]], edges: list[int]) -> None:
    start = np.array([first for first, _ in spans], np.int64)
    end = np.array([first + length for first, length in spans], np.int64)
    edges = sorted(edges)
    inside = {now for first, length in spans for now in range(first, first + length)}
    wanted = [sum(now in inside for now in range(a, b)) for a, b in itertools.pairwise(edges)]
    assert covered(start, end, np.array(edges, np.int64)).tolist() == wanted
    begins, stops = gaps(start, end, edges[0], edges[-1])
    free = {now for a, b in zip(begins.tolist(), stops.tolist(), strict=True) for now in range(a, b)}
    assert free == set(range(edges[0], edges[-1])) - inside
