"""Programs of the harness on the null GPU: a few of each class; `python -m benchmarks.truth --on h100` has them all."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu
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
)
pytestmark = [needs_null_gpu, pytest.mark.slow]


def test_a_sample_of_programs_is_explained_on_the_null_gpu_and_left_as_it_is() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.truth.test_on_device"],
        cwd=ROOT, env=environment([H100], os.environ | {"OMP_NUM_THREADS": "1"}), capture_output=True, text=True,
        timeout=1800, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.strip().splitlines()[-1])
    assert {name: verdict["wrong"] for name, verdict in found.items()} == {name: {} for name in SAMPLE}
    assert all(verdict["peak_bytes"] > 0 for verdict in found.values())
    assert {name for name, verdict in found.items() if verdict["part"] < LOWER_PARTS.get(name, LEAST_PART)} == set()


def _print_verdicts() -> None:
    found = {}
    for name in SAMPLE:
        verdict = judge_on_device(name)
        wrong = {**verdict.wrong, **({"broken": verdict.broken} if verdict.broken else {})}
        part = verdict.kinds.part if verdict.kinds is not None else 1.0
        found[name] = {"wrong": wrong, "peak_bytes": verdict.counted_bytes, "part": part}
    print(json.dumps(found))


if __name__ == "__main__":
    _print_verdicts()
