"""The order in which one device's allocator worked, which is the only clock of every analysis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracer.capture.recording import Recording

Ints = npt.NDArray[np.int64]


def allocator_order(recording: Recording, device: int) -> Ints:
    """[D] rows of one device's allocations and frees, in the order in which its allocator served them.

    One thread's rows come in order. Those of several threads are merged by their nanoseconds; within one nanosecond
    the order of the event tree stays.
    """
    rows = np.flatnonzero(recording.allocations.device == device)
    return rows[np.argsort(recording.allocations.time_ns[rows], kind="stable")]
