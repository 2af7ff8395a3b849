"""All that a trace says of time: steps, and who launched what."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from tracer.analysis.profiles.attribution import Attribution
from tracer.analysis.profiles.time_spans import TimeSpans
from tracer.analysis.times.ranks import Collectives, collectives_of
from tracer.analysis.times.step_times import StepTimes, step_times
from tracer.analysis.times.streams import StreamTimes, WorkLane, stream_times, work_lanes
from tracer.analysis.times.work_rows import KernelRow, WorkRow, work_rows
from tracer.capture.recording import Recording
from tracer.capture.torch_names import LOADER_PREFIX, STEP_PREFIX
from tracer.trace.device_work import DeviceWork


@dataclass(frozen=True, slots=True)
class TraceTimes:
    """Time of one device, by step, launcher and kernel."""

    device: int  # Index of the device
    steps: tuple[StepTimes, ...]  # Times of each step, in order
    rows: tuple[WorkRow, ...]  # Times by who launched the work, the longest first; they sum to `work_ns`
    kernels: tuple[KernelRow, ...]  # Times by kernel name and who launched it, the longest first; they sum to `work_ns`
    work_ns: int
    streams: tuple[StreamTimes, ...]
    other_devices: tuple[int, ...]
    collectives: Collectives  # Kernels of collectives, to be compared with other ranks'
    lanes: tuple[WorkLane, ...]

    @property
    def total(self) -> StepTimes:
        """All steps together."""
        return reduce(add, self.steps)


def find_times(recording: Recording, attribution: Attribution, work: DeviceWork) -> TraceTimes | None:
    """Ask all questions of time; of several devices, of the one that worked most.

    Returns:
        None where nothing ran on a device.
    """
    if not len(work):
        return None
    devices, index = np.unique(work.device, return_inverse=True)
    chosen = int(devices[np.bincount(index.reshape(-1), weights=work.duration_ns).argmax()])
    mine = work.take(work.device == chosen)
    steps, waits = step_times(mine, _steps(recording), _window(recording, mine), loading=_loading(recording))
    rows, kernels = work_rows(recording, attribution, mine, waits)
    return TraceTimes(
        device=chosen,
        steps=steps,
        rows=rows,
        kernels=kernels,
        work_ns=int(mine.duration_ns.sum()),
        streams=stream_times(mine),
        other_devices=tuple(device for device in devices.tolist() if device != chosen),
        collectives=collectives_of(mine),
        lanes=work_lanes(mine),
    )


def _steps(recording: Recording) -> list[tuple[str, int, int]]:
    spans, rows = recording.spans, recording.spans_named(STEP_PREFIX)
    names = [recording.strings[name] for name in spans.name[rows].tolist()]
    return list(zip(names, spans.start_ns[rows].tolist(), spans.end_ns[rows].tolist(), strict=True))


def _loading(recording: Recording) -> TimeSpans:
    """Spans in which the program asked a DataLoader for its next batch."""
    spans, rows = recording.spans, recording.spans_named(LOADER_PREFIX)
    return spans.start_ns[rows], spans.end_ns[rows]


def _window(recording: Recording, work: DeviceWork) -> tuple[int, int]:
    starts = [column.min() for column in (recording.ops.start_ns, work.start_ns) if len(column)]
    ends = [column.max() for column in (recording.ops.end_ns, work.end_ns) if len(column)]
    return int(min(starts)), int(max(ends))
