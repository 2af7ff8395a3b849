"""Peak counters: a program reads what it would have read without us."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from tracer.capture.torch_private.torch_cuda import PeakCounters

STATS: dict[str, Any] = {
    "allocated_bytes": {"all": {"current": 2, "peak": 9}},
    "oversize_segments": {"current": 0, "peak": 4},
    "num_alloc_retries": 3,
    "reserved_bytes_by_private_pools": {(0, 1): {"all": {"current": 5, "peak": 7}}},
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The counters of an allocator, which a reset brings down to what is in use."""
    stats = deepcopy(STATS)

    def reset(device: int) -> None:
        for counter in (stats["allocated_bytes"]["all"], stats["oversize_segments"]):
            counter["peak"] = counter["current"]

    for name in ("_cuda_memoryStats", "_accelerator_getDeviceStats"):
        monkeypatch.setattr(torch._C, name, lambda device: deepcopy(stats), raising=False)
    for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
        monkeypatch.setattr(torch._C, name, reset, raising=False)
    return stats


def test_a_reset_of_ours_leaves_the_programs_peaks_and_private_pools(counted: dict[str, Any]) -> None:
    peaks = PeakCounters()
    peaks.reset(0)
    assert peaks.peak_bytes(0, "allocated_bytes") == 2
    assert torch._C._cuda_memoryStats(0) == STATS
    counted["allocated_bytes"]["all"]["peak"] = 6
    assert peaks.peak_bytes(0, "allocated_bytes") == 6


def test_a_reset_of_the_programs_leaves_ours(counted: dict[str, Any]) -> None:
    peaks = PeakCounters()
    peaks.reset(0)
    counted["allocated_bytes"]["all"]["peak"] = 6
    torch._C._cuda_resetPeakMemoryStats(0)
    assert torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 2
    assert peaks.peak_bytes(0, "allocated_bytes") == 6
