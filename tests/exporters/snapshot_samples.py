"""Snapshots that several tests of the exporters share."""

from __future__ import annotations

from typing import Any

from tests.answers.test_snapshot_findings import APPLY, BASE, FORWARD, FREE_BACKWARD, MAIN, MALLOC, MIB, UNWIND
from tests.snapshot.dumps import block, entry, frame, freed, segment, snapshot

LINEAR_BUILD = [UNWIND, MALLOC, APPLY, frame("build", "/home/me/model.py", 3), MAIN]


def out_of_memory() -> dict[str, Any]:
    """2 MiB of parameters and 3 MiB of activations in use, and two failures of one line."""
    oom = {"action": "oom", "device_free": MIB, "stream": 0, "frames": FORWARD}
    trace = [
        entry("alloc", BASE, 2 * MIB, time_us=10, frames=LINEAR_BUILD),
        entry("alloc", BASE + 4 * MIB, MIB, time_us=20, frames=FORWARD),
        entry("alloc", BASE + 6 * MIB, 2 * MIB, time_us=30, frames=FORWARD),
        oom | {"size": 64 * MIB, "time_us": 40},
        oom | {"size": 48 * MIB, "time_us": 50},
        *freed(BASE + 6 * MIB, 2 * MIB, time_us=60, frames=FREE_BACKWARD),
        *freed(BASE + 4 * MIB, MIB, time_us=70, frames=FREE_BACKWARD),
    ]
    return snapshot(trace, [segment(BASE, 8 * MIB, [block(BASE, 2 * MIB)])])
