"""Findings of a run of many steps, and the rows of a curve that are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tracer.answers.step_findings import LEAST_BYTES, MIN_ROWS, StepFindings, explain_steps, find_trend
from tracer.capture.step_columns import StepColumns, StepTable
from tracer.exporters.page.data import bucket_starts, reduce_rows

# ---- Findings of a run's counters: growth told from noise, stairs and filling caches, and columns made by hand.

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


# ---- The reduction of long series: exact rows, and of every bucket the ends and extremes.


def test_nothing_and_one_row() -> None:
    none = np.zeros(0, np.int64)
    assert reduce_rows(none, np.zeros((0, 3), np.int64), num_buckets=4).tolist() == []
    assert reduce_rows(none + 7, np.zeros((0, 0), np.int64), num_buckets=4).tolist() == []
    assert reduce_rows(np.array([7]), np.array([[1, 2]]), num_buckets=4).tolist() == [0]


def test_a_clock_that_steps_back_stands_still() -> None:
    # Row 2 lies before row 1 and stays in its bucket; row 3 opens the last one.
    assert bucket_starts(np.array([0, 60, 10, 100]), 2).tolist() == [0, 1]
    assert bucket_starts(np.array([0, 40, 10, 100]), 2).tolist() == [0, 3]


@pytest.mark.parametrize(("rows", "num_buckets"), [(3, 0), (2, 1)])
def test_refuses_what_cannot_be(rows: int, num_buckets: int) -> None:
    with pytest.raises(ValueError):
        reduce_rows(np.arange(3), np.zeros((rows, 1), np.int64), num_buckets=num_buckets)


def naive(x: list[int], values: list[list[int]], num_buckets: int) -> list[int]:
    """Bucket by bucket, column by column."""
    highest_x = x[0]
    buckets: dict[int, list[int]] = {}
    position = []
    for one in x:
        highest_x = max(highest_x, one)
        position.append(highest_x - x[0])
    width = max(position[-1], 1)
    for row, at in enumerate(position):
        buckets.setdefault(min(int(at * (num_buckets / width)), num_buckets - 1), []).append(row)
    chosen = set()
    for rows in buckets.values():
        chosen |= {rows[0], rows[-1]}
        for column in [[sum(line) for line in values], *map(list, zip(*values, strict=True))]:
            chosen.add(max(rows, key=lambda row: column[row]))
            chosen.add(min(rows, key=lambda row: column[row]))
    return sorted(chosen)


SERIES = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.int64, n, elements=st.integers(0, 200)),
        hnp.arrays(np.int64, st.tuples(st.just(n), st.integers(1, 4)), elements=st.integers(0, 2**48)),
        st.integers(1, 12),
    )
)


@given(SERIES)
def test_agrees_with_a_plain_loop(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    x, values, num_buckets = case
    rows = reduce_rows(x, values, num_buckets=num_buckets)
    assert rows.tolist() == naive(x.tolist(), values.tolist(), num_buckets)


@given(SERIES)
def test_the_peak_of_everything_survives(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    x, values, num_buckets = case
    rows = reduce_rows(x, values, num_buckets=num_buckets)
    assert len(rows) <= num_buckets * (2 * values.shape[1] + 4)
    assert (np.diff(rows) > 0).all()
    for column in (values.sum(axis=1), *values.T):
        assert column[rows].max() == column.max()
        assert column[rows].min() == column.min()
    assert int(values.sum(axis=1).argmax()) in rows


def test_a_million_rows_keep_a_single_spike() -> None:
    values = np.full((1_000_000, 8), 100, np.int64)
    values[654_321, 3] = 101
    rows = reduce_rows(np.arange(1_000_000), values, num_buckets=1000)
    assert 654_321 in rows
    assert len(rows) < 4100
