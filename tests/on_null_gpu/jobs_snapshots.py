"""A history with C++ frames, as people record it by themselves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.snapshot.explained import explain_snapshot
from tracer.snapshot.load import load_snapshot


def history_with_frames_of_cpp() -> dict[str, Any]:
    """What is said of the peak of three steps."""
    torch.cuda.memory._record_memory_history(stacks="all", max_entries=10_000)
    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    model = nn.Linear(256, 256, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pkl"
        torch.cuda.memory._dump_snapshot(str(path))
        traced = torch.cuda.memory._snapshot()["device_traces"][0]
        (device,) = explain_snapshot(load_snapshot(path)).devices
    torch.cuda.memory._record_memory_history(None)
    return {
        "peak_bytes": device.peak.allocated_bytes,
        "counted_bytes": torch.cuda.max_memory_allocated() - before_bytes,
        "requested_bytes": device.peak.requested_bytes,
        "groups": [(group.kind.words, group.bytes, group.site.file) for group in device.peak.groups],
        "frames": {frame["name"] for entry in traced for frame in entry.get("frames", ())},
    }
