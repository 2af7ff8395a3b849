"""Memory counters of a device's allocator and of the process, cheap enough to be read at every step."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

import numpy as np
import torch

from tracer.capture.device import devices
from tracer.capture.device.devices import is_accelerator
from tracer.capture.device.host_memory import resident_bytes
from tracer.capture.recording import Allocations, Recording
from tracer.capture.torch_private import torch_history

_SELDOM: Final = 16


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of an allocator; see `torch.cuda.memory_stats`."""

    allocated_bytes: int  # Bytes in use
    reserved_bytes: int  # Held from the driver
    peak_bytes: int  # The most that was in use since the program began or set it back
    num_retries: int  # Requests for which the cache was emptied
    num_allocations: int  # Requests served, all told
    num_failures: int  # Requests for which there was no memory


def read_counters(device: torch.device) -> Counters | None:
    """Return the counters of an accelerator's allocator now; None if it has none, as on the CPU."""
    if not is_accelerator(device):
        return None
    stats: Any = torch_history.allocator_statistics(device)
    try:
        return Counters(
            allocated_bytes=stats["allocated_bytes"]["all"]["current"],
            reserved_bytes=stats["reserved_bytes"]["all"]["current"],
            peak_bytes=stats["allocated_bytes"]["all"]["peak"],
            num_retries=stats["num_alloc_retries"],
            num_allocations=stats["allocation"]["all"]["allocated"],
            num_failures=stats.get("num_ooms", 0),
        )
    except KeyError:
        return None


class StepReader:
    """Reads the counters of one device when a step ends.

    Where the device's own memory is counted apart, the system is asked for resident memory at every sixteenth step
    alone: in a running loop its answer takes longer than all the rest.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        counters = read_counters(device)
        # Whether the device's allocator counts; elsewhere what is in use is the process's resident memory
        self.has_allocator = counters is not None
        # Requests for which there was no memory, when the last step ended
        self.num_failures = counters.num_failures if counters is not None else 0
        self._resident: int | None = None
        self._num_ends = 0

    def end_of_step(self, step: int, time_ns: int) -> dict[str, int]:
        """The row of the step that ends now, for `StepTable.add`."""
        row = {"step": step, "time_ns": time_ns}
        counters = read_counters(self._device)
        if counters is None or self._num_ends % _SELDOM == 0:
            self._resident = resident_bytes()
        self._num_ends += 1
        if (resident := self._resident) is not None:
            row["resident_bytes"] = resident
            if counters is None:
                row["end_bytes"] = resident
        if counters is not None:
            self.num_failures = counters.num_failures
            row |= {
                "end_bytes": counters.allocated_bytes,
                "reserved_bytes": counters.reserved_bytes,
                "peak_bytes": counters.peak_bytes,
                "num_retries": counters.num_retries,
                "num_allocations": counters.num_allocations,
            }
        return row


@dataclass(frozen=True, slots=True)
class CounterReading:
    """The counters of one device's allocator at one moment."""

    device: str
    allocated_bytes: int
    reserved_bytes: int

    @classmethod
    def now(cls, device: torch.device) -> Self | None:
        """Return the counters now; None on the CPU, if they are unknown, and for a device without allocated memory."""
        allocated = devices.allocated_bytes(device)
        return cls(str(device), allocated, devices.reserved_bytes(device) or 0) if allocated else None


def with_reading(recording: Recording, reading: CounterReading) -> Recording:
    """A recording that begins with an event of size 0 at which the counter was as it still was at the end.

    It is all that is seen of a device on which steps allocate nothing, such as a replayed CUDA graph.

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
