"""Counters of a step, the host's memory, and the allocator's history without times."""

from __future__ import annotations

import mmap

import pytest
import torch

from tracer.capture.device import memory_counters
from tracer.capture.device.allocator_history import snapshot_without_times
from tracer.capture.device.host_memory import host_total_bytes, resident_bytes
from tracer.capture.device.memory_counters import Counters, StepReader
from tracer.snapshot.load import snapshot_in_memory


def test_resident_memory_is_asked_for_at_every_sixteenth_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(memory_counters, "read_counters", lambda device: Counters(1, 1000, 2000, 0, 10, 0))
    monkeypatch.setattr(memory_counters, "resident_bytes", lambda: asked.append(0) or len(asked))
    reader = StepReader(torch.device("cuda:0"))
    rows = [reader.end_of_step(step, 0) for step in range(33)]
    assert [row["resident_bytes"] for row in rows] == [*[1] * 16, *[2] * 16, 3]
    assert all(row["end_bytes"] == 1 for row in rows)


def test_the_hosts_own_figures_are_plausible() -> None:
    resident, total = resident_bytes(), host_total_bytes()
    assert resident is not None and total is not None
    assert 10 << 20 < resident < total
    with mmap.mmap(-1, 64 << 20) as grown:  # no heap, of which other tests may have freed as much that is resident
        grown.write(b"\1" * (64 << 20))
        after = resident_bytes()
    assert after is not None and after - resident > 50 << 20


# ---------------------------------------------------------------------------------------------------- allocator history
def test_entries_keep_their_order_and_lose_their_times() -> None:
    entry = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 7, "frames": []}
    snapshot = {
        "segments": [],
        "device_traces": [[entry, {**entry, "action": "free_completed", "time_us": 9}], []],
        "external_annotations": [{"name": "step", "stage": "START", "time_us": 8}],
    }
    changed = snapshot_without_times(snapshot)
    assert [one["action"] for one in changed["device_traces"][0]] == ["alloc", "free_completed"]
    assert "time_us" not in str(changed) and entry["time_us"] == 7 and "time_us" in str(snapshot)
    assert snapshot_in_memory(changed).devices[0].trace.time_us.tolist() == [-1, -1]
