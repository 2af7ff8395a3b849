"""The profiler's own trace of one cycle, as text that is read when it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class ProfilerTrace:
    """The profiler's trace of one cycle, read on demand."""

    process_id: int  # Number that this process has in the trace
    # Gives the trace's JSON text from the beginning, in pieces of about a MiB. Raises RecordingError if the profiler
    # did not give it, OutputError if it could not be kept.
    chunks: Callable[[], Iterator[bytes]]
