"""The caching allocator's history: on for the profiled steps, dumped, and off again."""

from __future__ import annotations

from typing import Any, Final

import torch

from tracer.capture.device.devices import memory_fraction, peak_allocated_bytes
from tracer.capture.torch_private import torch_history
from tracer.capture.torch_private.torch_cuda import when_cuda_has_begun
from tracer.collector import paused_gc
from tracer.errors import RecordingError

MAX_ENTRIES = 1_000_000
_MOST_KEPT: Final = 50_000
"""Entries of a history with which a later one goes on: a ring of fewer entries cannot take them over."""
_from_start: set[str] = set()
"""Types of devices whose history is on since the program began, and no session's yet, or no session's any more."""


def record_from_start() -> None:
    """Record CUDA's history as soon as CUDA begins; the first `AllocatorHistory` that starts goes on with it.

    It is left to the program where that switches its own on.
    """
    when_cuda_has_begun(_begin)


def recorded_from_start() -> torch.device | None:
    """The device whose history is on since the program began, and no session's yet."""
    return torch.device(*_from_start) if _from_start else None


def _begin() -> None:
    device = torch.device("cuda")
    try:
        if not torch_history.has_allocator_history(device) or torch_history.allocator_history_enabled(device):
            return
    except RecordingError:  # a session that starts says it
        return
    torch_history.start_allocator_history(device, MAX_ENTRIES)
    _from_start.add(device.type)
    torch_history.when_history_is_switched(lambda: _from_start.discard(device.type))


class AllocatorHistory:
    """Records the allocator's history and keeps the latest snapshot; does nothing on a device without one.

    If somebody else was recording already, their recording is left on and as it is; it is only read.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        max_entries: int = MAX_ENTRIES,
        stacks_of_frees: bool = True,
        is_timed: bool = True,
    ) -> None:
        """Set up the history of a device; nothing is recorded before `start`.

        Args:
            is_timed: Whether the times of its entries mean something.
        """
        self.device = device
        self._max_entries, self._stacks_of_frees = max_entries, stacks_of_frees
        self.is_timed = is_timed  # Whether the device's times mean something
        # The latest dump, in the form of `torch.cuda.memory._snapshot()`, or None
        self.snapshot: dict[str, Any] | None = None
        self.cycle: int | None = 0  # Number of the recorded cycle that it is of; None if it is of none
        self._peak_bytes: int | None = None
        self._recording = False
        self._started_here = False
        self.goes_on = False  # Whether the next one to start goes on with its entries, if those are few

    @property
    def is_offered(self) -> bool:
        """True if the device's allocator has a history."""
        return torch_history.has_allocator_history(self.device)

    def start(self) -> None:
        """Begin to record, if the device's allocator can."""
        if self._recording or not self.is_offered:
            return
        if self.device.type in _from_start:
            _from_start.discard(self.device.type)
            self._started_here = self._recording = True
            if (self._max_entries, self._stacks_of_frees) == (MAX_ENTRIES, True):
                return
        self._started_here = self._started_here or not torch_history.allocator_history_enabled(self.device)
        if self._started_here:
            torch_history.start_allocator_history(self.device, self._max_entries, stacks_of_frees=self._stacks_of_frees)
        self._recording = True

    @property
    def is_of_higher_peak(self) -> bool:
        """True if more was allocated since the last dump than ever before, or if the peak is unknown."""
        peak_bytes = peak_allocated_bytes(self.device)  # another one is higher, or somebody has set it back
        return self.snapshot is None or peak_bytes is None or peak_bytes != self._peak_bytes

    def dump(self, cycle: int | None = None) -> None:
        """Keep a snapshot of the history so far, in place of an earlier one.

        Args:
            cycle: Number of the recorded cycle that it is of, which ends with it; None if it is of none.
        """
        if self._recording:
            with paused_gc():  # a collection would free what a failure is to be explained by
                snapshot = torch_history.allocator_snapshot(self.device)
            if (fraction := memory_fraction(self.device)) is not None:  # which torch leaves out
                settings = snapshot.get("allocator_settings", {})
                snapshot["allocator_settings"] = {**settings, "per_process_memory_fraction": fraction}
            self.snapshot = snapshot if self.is_timed else snapshot_without_times(snapshot)
            self.cycle, self._peak_bytes = cycle, peak_allocated_bytes(self.device)

    def stop(self) -> None:
        """End the recording, unless it was somebody else's."""
        if self._recording and self._started_here:
            traces = self.snapshot["device_traces"] if self.goes_on and self.snapshot is not None else ()
            if traces and max(map(len, traces)) <= _MOST_KEPT:
                _from_start.add(self.device.type)
            else:
                torch_history.stop_allocator_history(self.device)
        self._recording = False


def snapshot_without_times(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A snapshot whose entries have an order and no time, as those of older versions of torch.

    Annotations, which are nothing but points in time, are left out.
    """
    traces = [
        [{name: value for name, value in entry.items() if name != "time_us"} for entry in trace]
        for trace in snapshot.get("device_traces", ())
    ]
    rest = {name: value for name, value in snapshot.items() if name != "external_annotations"}
    return {**rest, "device_traces": traces}
