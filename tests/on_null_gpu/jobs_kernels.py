"""Kernels, copies and fills in torch's profile of a process on the null GPU."""

from __future__ import annotations

import torch

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
