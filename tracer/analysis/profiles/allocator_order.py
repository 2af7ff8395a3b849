"""The order in which one device's allocator worked, which is the only clock of every analysis."""

from __future__ import annotations

import numpy as np

from tracer.arrays import Int, Ints, PerEvent
from tracer.capture.recording import Recording


def allocator_order(recording: Recording, device: int) -> PerEvent[Int]:
    """[D] rows of one device's allocations and frees, in the order in which its allocator served them.

    One thread's rows come in order. Those of several threads are merged by their nanoseconds; within one nanosecond
    the order of the event tree stays.
    """
    rows = np.flatnonzero(recording.allocations.device == device)
    return rows[np.argsort(recording.allocations.time_ns[rows], kind="stable")]


def alive_bytes(size_bytes: Ints, made_at: Ints, freed_at: Ints, num_events: int) -> PerEvent[Int]:
    """[D] bytes alive after each event.

    Args:
        size_bytes: Bytes of each block.
        made_at: Position of the event that made it; -1 for what was there before.
        freed_at: Position of the event that freed it; `num_events` where it lives on.
        num_events: Number of events on the device.
    """
    change = np.zeros(num_events + 2, np.int64)
    np.add.at(change, made_at + 1, size_bytes)
    np.add.at(change, freed_at + 1, -size_bytes)
    return np.asarray(np.cumsum(change)[1 : num_events + 1], np.int64)
