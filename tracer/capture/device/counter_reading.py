"""What an allocator's counter says when a cycle ends: all that is seen of a device on which steps allocate nothing.

A replayed CUDA graph is such a step: what it works with lies where it lay when the graph was captured, and the
profiler has not one event of the allocator.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch

from tracer.capture.device import devices
from tracer.capture.recording import Allocations, Recording


@dataclass(frozen=True, slots=True)
class CounterReading:
    """The counters of one device's allocator at one moment."""

    device: str
    allocated_bytes: int
    reserved_bytes: int

    @classmethod
    def now(cls, device: torch.device) -> Self | None:
        """What they are; None on the CPU, where nobody says, and for a device that holds nothing."""
        allocated = devices.allocated_bytes(device)
        return cls(str(device), allocated, devices.reserved_bytes(device) or 0) if allocated else None


def with_reading(recording: Recording, reading: CounterReading) -> Recording:
    """A recording that begins with an event of size 0 at which the counter was as it still was at the end.

    Args:
        recording: One cycle; returned as it is if it has events of the device.
    """
    names = recording.devices if reading.device in recording.devices else (*recording.devices, reading.device)
    index = names.index(reading.device)
    if (recording.allocations.device == index).any():
        return recording
    columns = recording.allocations
    row = {
        "time_ns": _begin_ns(recording),
        "allocation_id": int(columns.allocation_id.max(initial=0)) + 1,
        "key": -1,
        "device": index,
        "total_allocated_bytes": reading.allocated_bytes,
        "total_reserved_bytes": reading.reserved_bytes,
        "op": -1,
        "call": -1,
    }
    added = {
        column.name: np.append(getattr(columns, column.name), np.array(row.get(column.name, 0))).astype(
            getattr(columns, column.name).dtype
        )
        for column in fields(Allocations)
    }
    return replace(recording, devices=names, allocations=Allocations(**added))


def _begin_ns(recording: Recording) -> int:
    starts = np.concatenate([recording.spans.start_ns, recording.ops.start_ns, recording.allocations.time_ns])
    return int(starts.min(initial=np.iinfo(np.int64).max)) if len(starts) else 0
