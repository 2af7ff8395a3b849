"""Two recordings on one axis: bytes stay, and the same step and phase lie at the same place."""

from __future__ import annotations

import numpy as np

from tracer.analysis.aligned_curves import MemoryCurve, align, highest, positions_of
from tracer.analysis.snapshots.timeline import Band


def curve(levels: list[int], *stretches: tuple[str, int, int]) -> MemoryCurve:
    bands = tuple(Band(kind, kind, start, end) for kind, start, end in stretches)  # type: ignore[arg-type]
    return MemoryCurve(np.arange(len(levels)), {"activation": np.array(levels)}, bands)


def test_the_second_step_of_both_begins_at_one_place() -> None:
    """Two micro-steps before, one after: the backward of the second step is the third before and the second after."""
    before = curve(
        [0, 3, 1, 3, 0, 5, 0], ("backward", 1, 2), ("backward", 3, 4), ("optimizer", 4, 5), ("backward", 5, 6)
    )
    after = curve([0, 6, 0, 0, 9, 0], ("backward", 1, 2), ("optimizer", 2, 3), ("backward", 4, 5))
    both = align(before, after)
    assert [(band.kind, band.start) for band in both.stretches] == [("backward", 1), ("optimizer", 4), ("backward", 6)]
    old, new = both.totals()
    for band, (most_before, most_after) in zip(both.stretches, ((3, 6), (0, 0), (5, 9)), strict=True):
        assert highest(old, both.position, band)[1] == most_before
        assert highest(new, both.position, band)[1] == most_after
    assert (old.max(), new.max()) == (5, 9)


def test_without_steps_beginning_and_end_are_the_same_places() -> None:
    both = align(curve([1, 2, 3, 4]), curve([7, 8]))
    assert both.position.tolist() == [0, 1, 2, 3]
    assert [side.tolist() for side in both.totals()] == [[1, 2, 3, 4], [7, 7, 8, 8]]
    assert both.growth_at(3) == (("activation", 4),)


def test_steps_that_one_side_alone_has_are_beside_no_step_of_the_other() -> None:
    """One step before, which ends with 1, and three after: what follows the first lies beside its end."""
    one = curve([0, 5, 1], ("backward", 1, 2))
    three = curve([0, 6, 1, 7, 1, 8, 1], ("backward", 1, 2), ("backward", 3, 4), ("backward", 5, 6))
    both = align(one, three)
    assert both.position.tolist() == list(range(7))
    assert [side.tolist() for side in both.totals()] == [[0, 5, 1, 1, 1, 1, 1], [0, 6, 1, 7, 1, 8, 1]]
    long_tail = align(curve([0, 5, 4, 3, 2], ("backward", 1, 2)), three)
    assert long_tail.totals()[0].tolist() == [0, 5, 4, 3, 2, 2, 2]


def test_a_kind_that_one_side_lacks_has_no_bytes_there() -> None:
    other = MemoryCurve(np.arange(2), {"gradient": np.array([5, 5])})
    assert align(curve([1, 1]), other).growth_at(0) == (("gradient", 5),)


def test_times_become_positions() -> None:
    times = np.array([10, 10, 20, 30])
    (band,) = positions_of((Band("step", "a", 10, 25),), times, np.array([4, 5, 6, 9]))
    assert (band.start, band.end) == (0, 5)
