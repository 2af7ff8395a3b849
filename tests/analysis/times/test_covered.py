"""Covered time, against a set of nanoseconds."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.times.covered import covered, gaps

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=8)


@given(SPANS, st.lists(st.integers(0, 60), min_size=2, max_size=5))
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
