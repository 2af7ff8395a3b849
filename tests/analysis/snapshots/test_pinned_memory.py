"""Pinned host memory is a cause with its change for each that pins, where it is much."""

from __future__ import annotations

from typing import Any

import pytest

from tests.snapshot.dumps import block, frame, segment, snapshot
from tracer.analysis.snapshots.causes.pinned_memory import pinned_memory
from tracer.snapshot.load import snapshot_in_memory

BASE = 1 << 40
MIB = 1 << 20
PACKAGES = "/x/site-packages"
LOADER = [frame("pin_memory", f"{PACKAGES}/torch/utils/data/_utils/pin_memory.py", 60)]
SAVED = [frame("pack_to_cpu", f"{PACKAGES}/torch/autograd/graph.py", 447), frame("main", "/home/me/train.py", 3)]
DEEPSPEED = [frame("__init__", f"{PACKAGES}/deepspeed/runtime/zero/stage_1_and_2.py", 9)]
OWN = [frame("main", "/home/me/train.py", 7)]


def cause(*blocks: tuple[int, list[dict[str, Any]]]) -> str:
    """The cause of blocks of some MiB with their frames."""
    rows = [block(BASE + at * 4096 * MIB, size * MIB, frames=frames) for at, (size, frames) in enumerate(blocks)]
    return pinned_memory(snapshot_in_memory(snapshot([], host_segments=[segment(BASE, 1 << 40, rows)]))).cause


@pytest.mark.parametrize(
    ("frames", "change"),
    [
        (LOADER, "by a DataLoader's batches: use fewer workers, a smaller prefetch_factor or pin_memory=False"),
        (SAVED, "by activations under save_on_cpu: give it pin_memory=False"),
        (DEEPSPEED, '"pin_memory": false'),
        (OWN, "by lines of the program"),
    ],
)
def test_who_pins_decides_the_change(frames: list[dict[str, Any]], change: str) -> None:
    """From 256 MiB on."""
    said = cause((256, frames))
    assert said.startswith("256.00 MiB of the host's memory are pinned, 256.00 MiB by ") and change in said
    assert cause((255, frames)) == ""


def test_the_largest_is_first_and_what_is_little_is_not_said() -> None:
    said = cause((100, LOADER), (300, OWN), (20, SAVED), (200, LOADER), (300, OWN))
    assert said.index("600.00 MiB by lines of the program") < said.index("300.00 MiB by a DataLoader")
    assert "save_on_cpu" not in said
