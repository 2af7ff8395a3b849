"""Snapshots that a program takes by itself on the null GPU."""

from __future__ import annotations

import pytest

from tests.on_null_gpu import jobs_snapshots
from tests.truth.isolate import Elsewhere

KIB = 1 << 10


def test_a_history_with_frames_of_cpp_is_explained_as_one_of_python(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_snapshots.history_with_frames_of_cpp)
    assert any(name.startswith("at::") for name in found["frames"])
    assert found["peak_bytes"] == found["counted_bytes"]
    assert sum(size for _, size, _ in found["groups"]) == found["requested_bytes"] <= found["peak_bytes"]
    # Weight and bias of 256, two states of each, and their gradients; none of them by a file of torch's.
    kinds = {kind: sum(size for one, size, _ in found["groups"] if one == kind) for kind, _, _ in found["groups"]}
    assert kinds["parameter"] == 257 * KIB and kinds["optimizer state"] == 2 * 257 * KIB
    assert {file for kind, _, file in found["groups"] if kind == "parameter"} == {jobs_snapshots.__file__}


def test_allocated_is_what_torch_counts_with_a_rest_that_it_does_not_split_off(elsewhere: Elsewhere) -> None:
    counted_bytes, modelled_bytes, rounded_bytes = elsewhere(jobs_snapshots.peak_with_a_rest_that_is_not_split_off)
    assert counted_bytes == modelled_bytes == 54 << 20 > rounded_bytes


@pytest.mark.parametrize("model", jobs_snapshots.MODELS)
@pytest.mark.parametrize("optimizer", jobs_snapshots.OPTIMIZERS)
def test_parameters_and_state_from_before_the_history_are_told_apart(
    elsewhere: Elsewhere, model: str, optimizer: str
) -> None:
    said = elsewhere(jobs_snapshots.bytes_of_steps_after_a_warm_up, model, optimizer)
    right_bytes = sum(size for (true, kind), size in said.items() if true == kind)
    wrong_bytes = sum(size for (true, kind), size in said.items() if kind not in (true, "before recording"))
    assert right_bytes > 0.98 * said.total() and wrong_bytes < 0.005 * said.total(), said
