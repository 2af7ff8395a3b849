"""Kernels on the null GPU: torch's profiler joins them to operators as a GPU's, and no answer has their times."""

from __future__ import annotations

import torch

from tests.truth.isolate import Elsewhere

ACTIVITIES = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]


def _profiled() -> torch.profiler.profile:
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    with torch.profiler.profile(activities=ACTIVITIES, profile_memory=True) as profiler:
        (torch.ones(8, 64).cuda() @ weight).relu().sum().backward()
        with torch.cuda.stream(side):
            weight.grad.zero_().cpu()  # type: ignore[union-attr]
        torch.cuda.synchronize()
    return profiler


def kernels_by_operator() -> dict[str, list[str]]:
    """What each operator has launched, by torch's own list."""
    found: dict[str, list[str]] = {}
    for event in _profiled().events():
        for kernel in event.kernels:
            found.setdefault(event.name, []).append(kernel.name)
    return found


def test_each_operator_has_what_it_launched(elsewhere: Elsewhere) -> None:
    found = elsewhere(kernels_by_operator)
    assert [name[:6] for name in found["aten::mm"]] == ["cublas"] * 2  # forward, and the weight's gradient
    assert len(found["aten::clamp_min"]) == len(found["aten::threshold_backward"]) == 1
    assert "elementwise_kernel" in found["aten::clamp_min"][0]
    copies = [name for kernels in found.values() for name in kernels if name.startswith("Memcpy")]
    assert sorted(name.partition(" (")[0] for name in copies) == ["Memcpy DtoH", "Memcpy HtoD"]
