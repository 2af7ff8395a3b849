"""Growth told from noise, stairs and what fills up: by hand, and on generated runs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.steps.step_findings import LEAST_BYTES, MIN_ROWS, find_trend

MIB = 1 << 20
STEPS = np.arange(1, 2001)


def test_a_mebibyte_a_step() -> None:
    """100 MiB and one more each step; a tenth of 2,000 steps is warm-up, so that step 201 is the first."""
    found = find_trend(STEPS, 100 * MIB + STEPS * MIB)
    assert found is not None
    assert found.bytes_per_step == MIB
    assert (found.first_step, found.last_step, found.last_bytes) == (201, 2000, 2100 * MIB)
    # 2,150 MiB are 50 steps away; the request of the next one does not fit.
    assert found.step_at(2150 * MIB) == 2051


def test_growth_beside_a_large_transient() -> None:
    found = find_trend(STEPS, 100 * MIB + STEPS * (MIB // 10) + np.random.default_rng(0).integers(0, 10 * MIB, 2000))
    assert found is not None
    assert abs(found.bytes_per_step / (MIB // 10) - 1) < 0.05


def test_a_list_that_grows_once_an_epoch() -> None:
    found = find_trend(STEPS, 100 * MIB + (STEPS // 250) * 10 * MIB)
    assert found is not None
    assert abs(found.bytes_per_step / (10 * MIB / 250) - 1) < 0.1


def test_one_of_few_stairs_has_a_slope_too() -> None:
    """Three stairs of 100 MiB: between most pairs of steps there is none, and the median alone would be 0 or more."""
    found = find_trend(STEPS, 100 * MIB + np.searchsorted([700, 1200, 1700], STEPS) * 100 * MIB)
    assert found is not None and found.bytes_per_step > 0


def test_what_is_no_growth() -> None:
    noise = np.random.default_rng(1).integers(0, 20 * MIB, 2000)
    for size in (
        0 * STEPS,
        100 * MIB + noise,
        100 * MIB + np.minimum(STEPS, 600) * MIB,  # a cache that has filled up
        100 * MIB + (STEPS > 900) * 30 * MIB,  # the first evaluation
        3000 * MIB - STEPS * MIB,
        100 * MIB + np.where(STEPS % 500 < 250, STEPS % 500, 250 - STEPS % 500) * MIB,  # up and down
        STEPS * (LEAST_BYTES // 4000),  # less than is worth a word
        np.full(2000, -1),
    ):
        assert find_trend(STEPS, size) is None


def test_too_few_rows_say_nothing() -> None:
    assert find_trend(STEPS[: MIN_ROWS + 2], STEPS[: MIN_ROWS + 2] * MIB) is None
    assert find_trend(STEPS[: MIN_ROWS + 3], STEPS[: MIN_ROWS + 3] * MIB) is not None


@given(
    slope=st.integers(4096, 1 << 24),
    start=st.integers(0, 1 << 34),
    rows=st.integers(40, 300),
    stride=st.integers(1, 50),
    seed=st.integers(0, 99),
)
def test_the_slope_is_found_whatever_the_level_and_the_distance_of_rows(
    slope: int, start: int, rows: int, stride: int, seed: int
) -> None:
    steps = np.arange(1, rows + 1) * stride
    noise = np.random.default_rng(seed).integers(0, max(1, slope * rows * stride // 100), rows)
    found = find_trend(steps, start + steps * slope + noise)
    if slope * (int(steps[-1]) - int(steps[rows // 8])) > 2 * LEAST_BYTES:
        assert found is not None
        assert abs(found.bytes_per_step / slope - 1) < 0.1


@given(st.lists(st.integers(0, 1 << 40), min_size=60, max_size=200), st.randoms(use_true_random=False))
def test_a_step_that_is_left_out_is_not_missed(sizes: list[int], random: object) -> None:
    """Rows that were not seen count for nothing, whatever stands beside them."""
    steps, size = np.arange(len(sizes)), np.array(sizes)
    holes = np.concatenate([size, np.full(10, -1)])
    assert find_trend(np.arange(len(holes)), holes) == find_trend(steps, size)
