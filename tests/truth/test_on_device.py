"""Programs of the harness on the null GPU: a few of each class; `python -m benchmarks.truth --on h100` has them all."""

from __future__ import annotations

import pytest

from tests.null_gpu.started import needs_null_gpu
from tests.truth.isolate import WITHOUT_CACHES
from tests.truth.on_device import judge_on_device
from tests.truth.test_truth import LEAST_PART, LOWER_PARTS
from tracer.null_gpu.cards import H100
from tracer.null_gpu.process import environment

SAMPLE = (
    "closures_for_lbfgs",
    "ensemble_by_vmap",
    "gan_two_optimizers",
    "truncated_lstm",
    "mixture_of_experts",
    "best_weights_so_far",
    "forward_in_a_thread_pool",
    "sparse_embedding_gradients",
    "loop_with_progress",
    "loop_epochs_with_evaluation",
    "workload:lbfgs",
    "fsdp2",
    "data_parallel",
    "tensor_parallel",
    "first_stage_of_a_pipeline",
    "failing_in_forward",
    "failing_in_the_loss",
    "failing_in_backward",
    "failing_in_the_optimizer",
)
pytestmark = [needs_null_gpu, pytest.mark.slow]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_program_is_explained_on_the_null_gpu_and_left_as_it_is(name: str) -> None:
    verdict = judge_on_device(name, environment([H100]) | WITHOUT_CACHES | {"OMP_NUM_THREADS": "1"})
    assert not verdict.broken
    assert verdict.wrong == {} and verdict.true_bytes > (0, 0)
    assert verdict.kinds is None or verdict.kinds.part >= LOWER_PARTS.get(name, LEAST_PART)
