"""Kernels, copies and fills in torch's profile of a process on the null GPU."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from tracer.analysis.profiles.attribution import attribute
from tracer.analysis.times.findings import find_times
from tracer.results.trace_report import explain_trace
from tracer.trace.load import load_trace

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


def work_of_a_trace() -> dict[str, Any]:
    """What the reader of traces has of it, and what is said of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        _profiled().export_chrome_trace(str(path))
        trace, report = load_trace(path), explain_trace(path)
    times = find_times(trace.recording, attribute(trace.recording), trace.work)
    assert times is not None
    return {
        "streams": {stream.stream: stream.count for stream in times.streams},
        "sums": [sum(int(lane.busy_ns.sum()) for lane in times.lanes), times.work_ns],
        "overlap": bool((trace.work.start_ns[1:] < trace.work.end_ns[:-1]).any()),
        "operators": sorted({row.launcher.op for row in times.rows if row.launcher.op}),
        "said": [report.times, report.is_of_null_gpu, *report.notes[:1]],
    }
