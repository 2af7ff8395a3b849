"""What a rehearsal once asked for otherwise than torch's CUDA code: each to the byte beside the null GPU."""

from __future__ import annotations

import pytest

from tests.on_null_gpu import jobs_predictions
from tests.on_null_gpu.jobs_predictions import TORCHS_OWN_WAY
from tests.truth.isolate import Elsewhere
from tracer.capture.torch_private.torch_cuda import are_workspaces_kept
from tracer.commands.workload_options import PredictedWorkload

# A kernel of its own, a mask, attention, an optimizer; the others have their bytes by hand in tests/rehearsal.
QUICK = {"rms norm", "dropout", "efficient, 96 wide", "adafactor"}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TORCHS_OWN_WAY]
)
def test_a_rehearsal_asks_for_what_torch_does(elsewhere: Elsewhere, name: str) -> None:
    case = TORCHS_OWN_WAY[name]
    workload = PredictedWorkload(
        model=f"{jobs_predictions.__name__}:as_named",
        model_arg=[f"name={name}"],
        model_input=[case.input],
        batch_size=case.batch_size,
        optimizer=case.optimizer,
        amp=case.amp,
        loss="mean-square",
    )
    null, rehearsed = elsewhere(jobs_predictions.both, workload)
    # Before 2.15 the seed and offset that efficient attention keeps are not on the device.
    seed_bytes = 2 * 512 if name.startswith("efficient") and are_workspaces_kept() else 0
    assert rehearsed.need.peak_allocated_bytes == null.need.peak_allocated_bytes + seed_bytes
    assert rehearsed.need.peak_reserved_bytes == null.need.peak_reserved_bytes
