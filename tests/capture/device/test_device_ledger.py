"""The device as a ledger, with a driver and processes of the test's own making."""

from __future__ import annotations

import mmap
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tracer.capture.device import device_ledger as ledger
from tracer.capture.device.host_memory import host_total_bytes, resident_bytes

GIB = 1 << 30
CUDA = torch.device("cuda", 1)


class Nvml:
    """What is asked of `pynvml`."""

    class NVMLError(Exception):
        pass

    def __init__(self, processes: dict[int, int | None], fails: str = "") -> None:
        self._processes, self._fails = processes, fails
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: object) -> object:
            self.asked.append(name)
            if name == self._fails:
                raise Nvml.NVMLError(name)
            if name.endswith("RunningProcesses"):
                return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self._processes.items()]
            return None

        return answer


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 GiB, of which 70 are used; torch has reserved 40."""
    monkeypatch.setattr(ledger, "device_memory", lambda device: (10 * GIB, 80 * GIB))
    monkeypatch.setattr(ledger, "reserved_bytes", lambda device: 40 * GIB)
    monkeypatch.setattr(ledger, "pinned_bytes", lambda: (GIB, 2 * GIB))
    monkeypatch.setattr(ledger, "uuid_of", lambda device: "1-2")


def sums(found: ledger.DeviceLedger | None) -> ledger.DeviceLedger:
    assert found is not None
    parts = found.reserved_bytes + (found.context_bytes or 0) + (found.other_bytes or 0) + found.rest_bytes
    assert parts == found.used_bytes == 70 * GIB
    return found


def test_with_processes_everything_is_told_apart() -> None:
    """This one has 42 GiB, 2 of them no allocator's; others 27; the driver keeps 1."""
    nvml = Nvml({os.getpid(): 42 * GIB, 4711: 20 * GIB, 4712: 7 * GIB})
    found = sums(ledger.device_ledger(CUDA, nvml=nvml))
    assert (found.context_bytes, found.other_bytes, found.num_others, found.rest_bytes) == (2 * GIB, 27 * GIB, 2, GIB)
    assert found.pinned_bytes == (GIB, 2 * GIB) and found.resident_bytes
    assert nvml.asked == [
        "nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetComputeRunningProcesses", "nvmlShutdown",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "nvml",
    [
        Nvml({4711: 20 * GIB}),  # in a container this process has another number there
        Nvml({os.getpid(): 42 * GIB, 4711: None}),  # the driver does not say
        Nvml({}, fails="nvmlInit"),
        Nvml({}, fails="nvmlDeviceGetComputeRunningProcesses"),
    ],
)
def test_what_cannot_be_told_apart_is_one_number(nvml: Nvml) -> None:
    found = sums(ledger.device_ledger(CUDA, nvml=nvml))
    assert (found.context_bytes, found.other_bytes, found.rest_bytes) == (None, None, 30 * GIB)


def test_pools_are_those_of_the_devices_segments() -> None:
    def segment(size: int, pool: tuple[int, int], device: int = 1) -> dict[str, Any]:
        return {"device": device, "total_size": size, "segment_pool_id": pool}

    segments = [
        segment(5, (0, 0)),
        segment(7, (2, 0)),
        segment(11, (0, 3)),
        segment(13, (0, 0)),
        segment(99, (0, 0), 0),
    ]
    found = ledger.device_ledger(CUDA, segments, nvml=Nvml({}))
    assert found is not None
    assert found.pools == {ledger.DEFAULT_POOL: 18, ledger.GRAPH_POOL: 7, ledger.OWN_POOL: 11}


def test_a_driver_that_says_nothing_has_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "device_memory", lambda device: None)
    assert ledger.device_ledger(CUDA) is None


def test_the_hosts_own_figures_are_plausible() -> None:
    resident, total = resident_bytes(), host_total_bytes()
    assert resident is not None and total is not None
    assert 10 << 20 < resident < total
    with mmap.mmap(-1, 64 << 20) as grown:  # no heap, of which other tests may have freed as much that is resident
        grown.write(b"\1" * (64 << 20))
        after = resident_bytes()
    assert after is not None and after - resident > 50 << 20
