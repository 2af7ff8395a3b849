"""What CUDA graphs work in is said beside a peak that torch counts without it, and explained from their captures."""

from __future__ import annotations

import pytest

from tests.on_null_gpu import jobs_graphs
from tests.on_null_gpu.jobs_graphs import BATCH, WIDTH, Make, Told
from tests.truth.isolate import Elsewhere
from tracer.capture.torch_private.torch_cuda import are_workspaces_kept
from tracer.sessions.schedule import Schedule

HIDDEN_BYTES = 4 * BATCH * 4 * WIDTH
"""Of the result of the first layer, of ReLU's, and of their gradients."""


# Where torch keeps workspaces, before 2.15, a capture also allocates the seed and offset of a generator, in no pool.
GENERATOR_BYTES = 2 * 512 if are_workspaces_kept() else 0


def assert_laws(told: Told) -> None:
    assert told.rows_bytes == told.peak_bytes == told.counted_bytes
    for pool in told.pools:
        assert (
            pool["peak_bytes"] == sum(row["bytes"] for row in pool["rows"]) <= pool["reserved_bytes"] + GENERATOR_BYTES
        )
    assert told.is_same_when_read_back and told.is_as_before


@pytest.mark.parametrize("make", [jobs_graphs.whole_step, jobs_graphs.two_of_one_pool])
def test_a_graph_captured_before_the_recorded_steps_is_explained(elsewhere: Elsewhere, make: Make) -> None:
    told = elsewhere(jobs_graphs.told, make)
    assert_laws(told)
    (pool,) = told.pools
    # What ReLU made and its gradient are in the graph's memory, and in no row of a step that only replays.
    assert told.uncounted_bytes >= 2 * HIDDEN_BYTES and told.peak_bytes < 2 * HIDDEN_BYTES
    if make is jobs_graphs.two_of_one_pool or not are_workspaces_kept():  # else the sum of a gradient is at the peak
        assert {row["category"] for row in pool["rows"]} >= {"ACTIVATION", "AUTOGRAD_DETAIL"}
        activations = [row for row in pool["rows"] if row["category"] == "ACTIVATION"]
        assert sum(row["bytes"] for row in activations) >= HIDDEN_BYTES
        assert "1" in {row["module"] for row in activations}
    assert {file for file, _ in jobs_graphs.lines_of(pool)} == {"jobs_graphs.py"}
    assert "of CUDA graphs;" in told.screen and "With it the step takes" in told.screen
    assert "In the memory of" in told.screen


@pytest.mark.parametrize("make", [jobs_graphs.deleted, jobs_graphs.reset])
def test_of_a_graph_that_is_gone_nothing_is_said(elsewhere: Elsewhere, make: Make) -> None:
    told = elsewhere(jobs_graphs.told, make)
    assert_laws(told)
    assert told.pools == () and told.uncounted_bytes == 0 and "CUDA graph" not in told.screen


def test_what_make_graphed_callables_captures_is_of_one_pool(elsewhere: Elsewhere) -> None:
    told = elsewhere(jobs_graphs.told, jobs_graphs.graphed_callable)
    assert_laws(told)
    (pool,) = told.pools
    assert pool["num_graphs"] == 2 and pool["has_backward"]
    # Backward's graph works beside what forward's has saved.
    assert {row["category"] for row in pool["rows"]} >= {"ACTIVATION", "AUTOGRAD_DETAIL"}


def test_a_graph_of_inference_has_no_backward(elsewhere: Elsewhere) -> None:
    told = elsewhere(jobs_graphs.told, jobs_graphs.teacher)
    assert_laws(told)
    (pool,) = told.pools
    assert not pool["has_backward"] and pool["peak_bytes"] >= HIDDEN_BYTES
    assert {row["category"] for row in pool["rows"] if row["bytes"] > GENERATOR_BYTES} == {"EVALUATION"}


def test_a_capture_that_a_cycle_records_is_explained_from_it(elsewhere: Elsewhere) -> None:
    told = elsewhere(jobs_graphs.told, jobs_graphs.captured_while_recorded, Schedule(0, 0, 3, 1))
    assert_laws(told)
    (pool,) = told.pools
    assert pool["peak_bytes"] >= 2 * HIDDEN_BYTES
    # The peak came in the step before it: that memory is in no way beside it.
    assert told.uncounted_bytes == 0 and " of CUDA graphs;" not in told.screen
