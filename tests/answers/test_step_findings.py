"""Findings of a run's counters: growth told from noise, stairs and filling caches, and columns made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracer.answers.step_findings import LEAST_BYTES, MIN_ROWS, StepFindings, explain_steps, find_trend
from tracer.capture.step_columns import StepColumns, StepTable

MIB = 1 << 20
STEPS = np.arange(1, 2001)


def test_a_mebibyte_a_step() -> None:
    """100 MiB and one more each step; a tenth of 2,000 steps is warm-up, so that step 201 is the first."""
    trend = find_trend(STEPS, 100 * MIB + STEPS * MIB)
    assert trend is not None
    assert trend.bytes_per_step == MIB
    assert (trend.first_step, trend.last_step, trend.last_bytes) == (201, 2000, 2100 * MIB)
    # 2,150 MiB are 50 steps away; the request of the next one does not fit.
    assert trend.step_at(2150 * MIB) == 2051


def test_growth_beside_a_large_transient() -> None:
    trend = find_trend(STEPS, 100 * MIB + STEPS * (MIB // 10) + np.random.default_rng(0).integers(0, 10 * MIB, 2000))
    assert trend is not None
    assert abs(trend.bytes_per_step / (MIB // 10) - 1) < 0.05


def test_a_list_that_grows_once_an_epoch() -> None:
    trend = find_trend(STEPS, 100 * MIB + (STEPS // 250) * 10 * MIB)
    assert trend is not None
    assert abs(trend.bytes_per_step / (10 * MIB / 250) - 1) < 0.1


def test_one_of_few_stairs_has_a_slope_too() -> None:
    """Three stairs of 100 MiB: between most pairs of steps there is none, and the median alone would be 0 or more."""
    trend = find_trend(STEPS, 100 * MIB + np.searchsorted([700, 1200, 1700], STEPS) * 100 * MIB)
    assert trend is not None and trend.bytes_per_step > 0


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
    trend = find_trend(steps, start + steps * slope + noise)
    if slope * (int(steps[-1]) - int(steps[rows // 8])) > 2 * LEAST_BYTES:
        assert trend is not None
        assert abs(trend.bytes_per_step / slope - 1) < 0.1


@given(st.lists(st.integers(0, 1 << 40), min_size=60, max_size=200), st.randoms(use_true_random=False))
def test_a_step_that_is_left_out_is_not_missed(sizes: list[int], random: object) -> None:
    """Rows that were not seen count for nothing, whatever stands beside them."""
    steps, size = np.arange(len(sizes)), np.array(sizes)
    holes = np.concatenate([size, np.full(10, -1)])
    assert find_trend(np.arange(len(holes)), holes) == find_trend(steps, size)


# ---- columns made by hand --------------------------------------------------------------------------------------------


def columns(num_steps: int = 400, **given: Any) -> StepColumns:
    """A run that holds 100 MiB when a step ends and 300 MiB at most, all of it in MiB."""
    usual = {"end_bytes": 100, "reserved_bytes": 400, "peak_bytes": 300}
    table = StepTable()
    for step in range(1, num_steps + 1):
        row = {name: int(MIB * (value(step) if callable(value) else value)) for name, value in (usual | given).items()}
        row["num_retries"] = given["num_retries"](step) if "num_retries" in given else 0
        table.add({"step": step, "resident_bytes": 1000 * MIB, **row})
    return table.columns()


def found(**given: Any) -> StepFindings:
    return explain_steps(columns(**given), limit_bytes=1000 * MIB)


def test_a_steady_run_has_nothing_to_say() -> None:
    assert found() == StepFindings(400)
    assert explain_steps(StepTable().columns(), limit_bytes=None) == StepFindings(0)


def test_growth_ends_where_the_peak_of_a_step_meets_the_limit() -> None:
    """One MiB a step from 100; each step's peak is 500 more, so that 1000 MiB are reached by step 400."""
    growth = found(end_bytes=lambda step: 100 + step, peak_bytes=lambda step: 600 + step).growth
    assert growth is not None and growth.trend.bytes_per_step == MIB
    assert growth.end_step is not None and abs(growth.end_step - 400) <= 1
    assert not growth.is_at_latest
    # A peak of long ago says nothing of these steps.
    growth = found(end_bytes=lambda step: 100 + step, peak_bytes=900).growth
    assert growth is not None and growth.end_step is not None and abs(growth.end_step - 900) <= 1
    assert growth.is_at_latest


def test_without_a_limit_there_is_no_end() -> None:
    growth = explain_steps(columns(end_bytes=lambda step: 100 + step), limit_bytes=None).growth
    assert growth is not None and growth.end_step is None


def test_reserved_memory_that_grows_alone_is_in_pieces() -> None:
    pieces = found(reserved_bytes=lambda step: 400 + step).fragmenting
    assert pieces is not None
    assert (pieces.trend.bytes_per_step, pieces.in_use_bytes) == (MIB, 300 * MIB)
    both = found(reserved_bytes=lambda step: 400 + step, end_bytes=lambda step: 100 + step)
    assert both.growth is not None and both.fragmenting is None
    peaks = found(reserved_bytes=lambda step: 400 + step, peak_bytes=lambda step: 300 + step)
    assert peaks.fragmenting is None


def test_retries_are_those_of_the_run() -> None:
    assert found(num_retries=lambda step: 7 + (step > 200) + (step > 300)).num_retries == 2


def test_resident_memory_alone_says_what_it_can() -> None:
    table = StepTable()
    for step in range(1, 401):
        table.add({"step": step, "end_bytes": (1000 + step) * MIB, "resident_bytes": (1000 + step) * MIB})
    only = explain_steps(table.columns(), limit_bytes=None, has_allocator=False)
    assert only.growth is not None and only.fragmenting is None


def test_a_long_run_keeps_its_last_step_and_its_length() -> None:
    """8 rows at most: after 39 steps each stands for 8, and the last for the 7 that are left."""
    table = StepTable(8)
    for step in range(1, 40):
        table.add({"step": step, "end_bytes": step})
    kept = table.columns()
    assert kept.step.tolist() == kept.end_bytes.tolist() == [8, 16, 24, 32, 39]
    assert (kept.peak_bytes == -1).all()


def test_every_length_ends_with_the_last_step() -> None:
    table = StepTable(4)
    for step in range(1, 200):
        table.add({"step": step})
        kept = table.columns().step
        assert kept[-1] == step and len(kept) <= 5 and (np.diff(kept) > 0).all()
