"""Kernels on the null GPU: torch's profiler joins them to operators as a GPU's, and no answer has their times."""

from __future__ import annotations

from tests.on_null_gpu import jobs_kernels as jobs
from tests.truth.isolate import Elsewhere


def test_each_operator_has_what_it_launched(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs.kernels_by_operator)
    assert [name[:6] for name in found["aten::mm"]] == ["cublas"] * 2  # forward, and the weight's gradient
    assert len(found["aten::clamp_min"]) == len(found["aten::threshold_backward"]) == 1
    assert "elementwise_kernel" in found["aten::clamp_min"][0]
    copies = [name for kernels in found.values() for name in kernels if name.startswith("Memcpy")]
    assert sorted(name.partition(" (")[0] for name in copies) == ["Memcpy DtoH", "Memcpy HtoD"]
