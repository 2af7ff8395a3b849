"""Stretches of entries: by hand, and beside a loop that walks them one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.snapshots.phases import FAR, Stretches, _without, runs_of

ENTRIES = st.lists(st.sampled_from(["in", "out", "silent"]), max_size=20)


def plain_runs(entries: list[str]) -> list[set[int]]:
    """Silent entries belong to the run that they lie in, also those right behind it."""
    found: list[set[int]] = []
    is_open = False
    for number, entry in enumerate(entries):
        if entry == "in" and not is_open:
            found.append(set())
        is_open = entry == "in" or (is_open and entry == "silent")
        if is_open:
            found[-1].add(number)
    return found


@given(ENTRIES)
def test_runs_are_those_of_a_loop(entries: list[str]) -> None:
    runs = runs_of(
        np.array([entry == "in" for entry in entries], dtype=np.bool_),
        np.array([entry != "silent" for entry in entries], dtype=np.bool_),
    )
    found = [
        {number for number in range(start, end) if number < len(entries)}
        for start, end in zip(runs.start.tolist(), runs.end.tolist(), strict=True)
    ]
    assert found == plain_runs(entries)


def test_where_an_entry_lies() -> None:
    two = Stretches(start=np.array([2, 8]), end=np.array([4, 9]))
    entries = np.arange(-1, 10)
    assert two.containing(entries).tolist() == [-1, -1, -1, 0, 0, -1, -1, -1, -1, 1, -1]
    assert two.next_start(entries).tolist() == [2, 2, 2, 8, 8, 8, 8, 8, 8, FAR, FAR]
    assert two.end_after(np.array([1, 3, 8])).tolist() == [FAR, 4, 9]


def test_without_any_no_entry_lies_in_one() -> None:
    none = Stretches(start=np.zeros(0, dtype=np.int64), end=np.zeros(0, dtype=np.int64))
    assert none.containing(np.array([0, 5])).tolist() == [-1, -1]
    assert none.next_start(np.array([0])).tolist() == [FAR]


def test_a_stretch_without_what_lies_in_it() -> None:
    """Two closures in one, and a stretch that a closure fills: its end stays as a step; the last has none."""
    steps = Stretches(start=np.array([0, 10, 20]), end=np.array([9, 15, 25]))
    calls = Stretches(start=np.array([0, 5, 10, 22]), end=np.array([3, 7, 15, 24]))
    left = _without(steps, calls, np.array([1, 5, 12]))
    assert (left.start.tolist(), left.end.tolist()) == ([3, 7, 15, 20], [5, 9, 15, 25])
