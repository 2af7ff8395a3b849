"""One line in a program of one's own: where memory runs out, torch's snapshot and the facts that it cannot have."""

from __future__ import annotations

import sys
import time
import types
from pathlib import Path
from typing import Any, Final

import torch

from tracer.capture.device.allocator_history import AllocatorHistory
from tracer.capture.objects.failure_look import look_at_failure
from tracer.capture.torch_private.torch_cuda import when_cuda_has_begun
from tracer.capture.torch_private.torch_history import RAISED
from tracer.collector import objects_with_type, paused_gc
from tracer.exporters.facts_file import FailureFactsFile, facts_path, write_facts
from tracer.exporters.files import check_folder
from tracer.exporters.memory_snapshot import write_memory_snapshot
from tracer.exporters.screen.terminal import say
from tracer.sessions.jobs.ranks import this_rank
from tracer.sessions.session import fault_text

MAX_ENTRIES: Final = 1_000_000
_NUM_FIRST: Final = 3
_PAUSE_S: Final = 60.0
"""Seconds between dumps behind the first ones: a program that tries sizes in turn fails often."""


def dump_on_oom(path: str | Path = "oom.pickle", *, max_entries: int = MAX_ENTRIES) -> None:
    """Write a snapshot whenever a CUDA out-of-memory error reaches Python; `torch-timeline snapshot` explains it.

    Call it once, before the program uses the GPU. The allocator's history is recorded from then on. Beside
    `oom.pickle`, which torch's own viewer opens, `oom.facts.json` has what no snapshot knows: who holds the memory,
    reference cycles, owners, the operands of the failing line. A later failure replaces both. Of several ranks each
    writes its own: `oom_rank0.pickle`.

        import tracer

        tracer.dump_on_oom("oom.pickle")

    Args:
        path: File of the snapshot.
        max_entries: Most entries of the history that are kept.

    Raises:
        OutputError: The folder cannot be written to.
    """
    path = Path(path).absolute()
    if (rank := this_rank()) is not None:
        path = path.with_name(f"{path.stem}_rank{rank.index}{path.suffix}")
    check_folder(path.parent)
    history = AllocatorHistory(torch.device("cuda"), max_entries=max_entries)
    when_cuda_has_begun(history.start)
    RAISED.callbacks.append(_OomDump(path, history).write)
    RAISED.start(with_collections=False)


class _OomDump:
    def __init__(self, path: Path, history: AllocatorHistory) -> None:
        self._path, self._history = path, history
        self._num_written, self._last_s = 0, 0.0

    def write(self) -> None:
        """Write the files of the error that is on its way; a fault of ours is no fault of the program's."""
        if self._num_written >= _NUM_FIRST and time.monotonic() - self._last_s < _PAUSE_S:
            return
        try:
            with paused_gc():
                self._write()
        except Exception as fault:
            say(f"Note: No snapshot of the out of memory was written: {fault_text(fault)}")
        self._num_written, self._last_s = self._num_written + 1, time.monotonic()

    def _write(self) -> None:
        self._history.dump()
        snapshot = self._history.snapshot
        failed = _last_failure(snapshot) if snapshot is not None else None
        if snapshot is None or failed is None:
            return
        time_us, device, asked_bytes = failed
        error = _error_here()
        try:
            objects = look_at_failure(torch.device("cuda", device), error, is_evaluating=False)
        finally:
            error.__traceback__ = None
        write_memory_snapshot(snapshot, self._path)
        write_facts(FailureFactsFile(device, time_us, asked_bytes, objects), facts_path(self._path))
        say(f"Out of memory: wrote {self._path}. Explain it with: torch-timeline snapshot {self._path}")


def _last_failure(snapshot: dict[str, Any]) -> tuple[int, int, int] | None:
    """Return time, device and size of the request that failed last; None where the history has no failure."""
    failed = [
        (entry.get("time_us", 0), device, entry["size"])
        for device, trace in enumerate(snapshot.get("device_traces", ()))
        for entry in [next((entry for entry in reversed(trace) if entry["action"] == "oom"), None)]
        if entry is not None
    ]
    return max(failed, default=None)


def _loose_traceback() -> types.TracebackType | None:
    """Return the traceback of the error on its way that no exception has yet; None where there is more than one.

    Until Python 3.12 an error of C has its exception made when it reaches a handler, or the end of the program: the
    functions that it has left by then are in its traceback alone.
    """
    found = [*objects_with_type((types.TracebackType,))]
    errors = objects_with_type((BaseException,))
    known = {id(trace.tb_next) for trace in found} | {id(error.__traceback__) for error in errors}
    loose = [trace for trace in found if id(trace) not in known]
    return loose[0] if len(loose) == 1 else None


def _error_here() -> RuntimeError:
    """Return an error with the traceback that the error on its way will have when it leaves the program."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tracer."):
        frame = frame.f_back
    trace = _loose_traceback() if sys.version_info < (3, 12) else None
    if trace is not None and trace.tb_frame is frame:
        frame = frame.f_back
    while frame is not None:
        trace = types.TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    error = RuntimeError()
    error.__traceback__ = trace
    return error
