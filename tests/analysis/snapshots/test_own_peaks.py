"""The most that groups of blocks had in use at once, against a walk over every moment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.snapshots.own_peaks import own_peaks
from tracer.snapshot.replay import Lives


@given(
    st.lists(st.tuples(st.integers(-1, 20), st.integers(1, 20), st.integers(0, 2**40), st.integers(0, 3)), max_size=20)
)
def test_own_peaks_are_those_of_a_walk_over_all_moments(blocks: list[tuple[int, int, int, int]]) -> None:
    begin, duration, size, group = (
        (np.array(column, dtype=np.int64) for column in zip(*blocks, strict=True))
        if blocks
        else (np.zeros(0, dtype=np.int64),) * 4
    )
    nothing = np.zeros(len(begin), dtype=np.int64)
    lives = Lives(nothing, size, size, begin, begin + duration, nothing, nothing, nothing.astype(np.int32))
    expected = [
        max(
            int(size[lives.alive_after(entry)][group[lives.alive_after(entry)] == number].sum())
            for entry in range(-1, 41)
        )
        for number in range(4)
    ]
    assert own_peaks(lives, group, 4).tolist() == expected
