"""The streams of a device by the names that people know them by, and what ran on each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.trace.device_work import DeviceWork


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """Time of one stream's work, in nanoseconds; work that overlaps is added up.

    Attributes:
        name: `default`, or the only sort of work on it: `collectives`, `copies`; else empty.
    """

    stream: int
    name: str
    compute_ns: int
    communication_ns: int
    copies_ns: int
    count: int

    @property
    def words(self) -> str:
        """Number and name."""
        return f"stream {self.stream} ({self.name})" if self.name else f"stream {self.stream}"


def stream_times(work: DeviceWork) -> tuple[StreamTimes, ...]:
    """The streams of one device's work, by number."""
    streams, index = np.unique(work.stream, return_inverse=True)
    index = index.reshape(-1)
    is_compute = ~work.is_communication & ~work.is_copy
    sorts = (is_compute, work.is_communication, work.is_copy)
    times = [np.bincount(index, weights=work.duration_ns * rows, minlength=len(streams)) for rows in sorts]
    counts = [np.bincount(index[rows], minlength=len(streams)) for rows in sorts]
    of_streams = []
    for row, stream in enumerate(streams.tolist()):
        compute_ns, communication_ns, copies_ns = (int(column[row]) for column in times)
        of_sort = [int(column[row]) for column in counts]
        name = _name(stream == work.default_stream, of_sort)
        of_streams.append(StreamTimes(stream, name, compute_ns, communication_ns, copies_ns, sum(of_sort)))
    return tuple(of_streams)


def _name(is_default: bool, counts: list[int]) -> str:
    computes, communicates, copies = counts
    if is_default:
        return "default"
    if communicates and not computes:
        return "collectives"
    return "copies" if copies and not computes else ""
