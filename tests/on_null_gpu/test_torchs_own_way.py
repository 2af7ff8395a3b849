"""What a rehearsal once asked for otherwise than torch's CUDA code: each to the byte beside the null GPU."""

from __future__ import annotations

import pytest

from tests.elsewhere import Elsewhere
from tests.on_null_gpu import jobs_predictions
from tests.on_null_gpu.jobs_predictions import TORCHS_OWN_WAY
from tracer.commands.workload_options import PredictedWorkload


@pytest.mark.parametrize("name", TORCHS_OWN_WAY)
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
    assert rehearsed.need.peak_allocated_bytes == null.need.peak_allocated_bytes
    assert rehearsed.need.peak_reserved_bytes == null.need.peak_reserved_bytes
