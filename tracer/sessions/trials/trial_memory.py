"""Memory of a trial's process: that of the card or without end, and the allocator's history where it is explained."""

from __future__ import annotations

import resource
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from tracer.capture.device.allocator_history import AllocatorHistory
from tracer.capture.torch_private.torch_cuda import when_cuda_has_begun
from tracer.capture.torch_private.torch_history import on_out_of_memory
from tracer.exporters.memory_snapshot import write_memory_snapshot
from tracer.null_gpu.process import WITHOUT_END_BYTES, limited_to
from tracer.null_gpu.writes import own_files
from tracer.sessions.training_watch import MAX_ENTRIES
from tracer.sessions.trials.trial_channel import TrialRequest


class TrialMemory:
    """Sets the limit and records the history that a trial asks for, from `begin` until `close`."""

    def __init__(self, num_devices: int) -> None:
        self._num_devices = num_devices
        self._end = ExitStack()
        self._history: AllocatorHistory | None = None

    def begin(self, request: TrialRequest) -> None:
        """Do as a request says from now on, before anything is allocated."""
        if not request.is_limited:
            self._end.enter_context(limited_to(WITHOUT_END_BYTES, self._num_devices))
        if request.limit_s:
            _limit(resource.RLIMIT_CPU, int(time.process_time()) + request.limit_s)
            _limit(resource.RLIMIT_CORE, 0)  # or the signal that ends it leaves one
        if request.is_explained:
            when_cuda_has_begun(self._record)

    def _record(self) -> None:
        device = torch.device("cuda", 0)  # torch records all of them
        self._history = AllocatorHistory(device, max_entries=MAX_ENTRIES, stacks_of_frees=False, is_timed=False)
        self._history.start()
        on_out_of_memory(device, self.keep)

    def keep(self) -> None:
        """Keep the history so far; nothing that goes wrong may reach the allocator, which may be within a request."""
        try:
            if self._history is not None:
                self._history.dump()
        except Exception:
            sys.excepthook(*sys.exc_info())

    def write(self, path: Path) -> None:
        """Write what was kept last, if anything was."""
        if self._history is not None and self._history.snapshot is not None:
            with own_files():
                write_memory_snapshot(self._history.snapshot, path)

    def close(self) -> None:
        """Memory ends again where the card's does, and nothing is recorded."""
        if self._history is not None:
            self._history.stop()
        self._end.close()


def _limit(what: int, most: int) -> None:
    resource.setrlimit(what, (most, resource.getrlimit(what)[1]))
