"""Which device a run is about when nobody names one, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.programs import Node, Program, Storage
from tracer.analysis.profiles.devices_held import default_device, most_held_bytes
from tracer.capture.recording import Recording

DEVICES = ("cpu", "cuda:0", "cuda:1")


def recording(*totals: int) -> Recording:
    """One allocation on each device, after which its allocator has this much in use."""
    blocks = [(index, 5000, 100 * (index + 1)) for index in range(3)]
    made = Program([Storage(index, 8, device=index) for index in range(3)], [Node(blocks=blocks)], devices=DEVICES)
    found = made.recording()
    total = np.array(totals, np.int64)[found.allocations.device]
    return replace(found, allocations=replace(found.allocations, total_allocated_bytes=total))


def test_the_accelerator_that_held_most_in_any_cycle_is_meant() -> None:
    """Whatever moved: the CPU's counter begins with the recording and says nothing."""
    cycles = [recording(9000, 70, 40), recording(9000, 10, 80)]
    assert most_held_bytes(cycles) == {"cuda:1": 80, "cuda:0": 70}
    assert list(most_held_bytes(cycles)) == ["cuda:1", "cuda:0"]
    assert default_device(cycles) == "cuda:1"
    assert default_device(cycles[:1]) == "cuda:0"


def test_without_an_accelerator_it_is_the_cpu() -> None:
    assert default_device([]) == "cpu"
    assert default_device([replace(recording(1, 0, 0), devices=("cpu",) * 3)]) == "cpu"
