"""All that a trace says of time: steps, who launched what, streams by the names that people know, and the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final, Literal

import numpy as np

from tracer.analysis.profiles.attribution import Attribution
from tracer.analysis.profiles.time_spans import TimeSpans
from tracer.analysis.times.ranks import Collectives, collectives_of
from tracer.analysis.times.step_times import KernelRow, StepTimes, WorkRow, step_times, work_rows
from tracer.arrays import Ints
from tracer.capture.recording import Recording
from tracer.capture.torch_names import LOADER_PREFIX, STEP_PREFIX
from tracer.trace.device_work import DeviceWork


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """Time of one stream's work, in nanoseconds; work that overlaps is added up."""

    stream: int
    name: str  # `default`, or the only sort of work on it: `collectives`, `copies`; else empty
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


WorkSort = Literal["computes", "collectives", "copies"]
SORTS: Final[tuple[WorkSort, ...]] = ("computes", "collectives", "copies")
MOST_SPANS: Final = 6000  # Of one lane: more than a wide screen has pixels
MOST_LANES: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class WorkLane:
    """Work of one stream, as S spans in ascending order."""

    stream: int
    start_ns: Ints  # [S] Start on the recording's clock
    end_ns: Ints  # [S] End on the same clock
    sort: Ints  # [S] Index in `SORTS`
    name: Ints  # [S] Index in `names`, of the longest kernel in the span
    count: Ints  # [S] How many kernels, copies and fills it stands for
    busy_ns: Ints  # [S] Time that these take together
    names: tuple[str, ...]


def work_lanes(work: DeviceWork, *, most_spans: int = MOST_SPANS) -> tuple[WorkLane, ...]:
    """The streams that worked most, by number."""
    streams, index = np.unique(work.stream, return_inverse=True)
    busy = np.bincount(index.reshape(-1), weights=work.duration_ns, minlength=len(streams))
    chosen = np.sort(streams[np.argsort(-busy, kind="stable")[:MOST_LANES]])
    return tuple(_lane(work.take(work.stream == stream), most_spans) for stream in chosen.tolist())


def _lane(work: DeviceWork, most_spans: int) -> WorkLane:
    sort = np.where(work.is_communication, 1, np.where(work.is_copy, 2, 0)).astype(np.int64)
    run = _runs(work, sort, most_spans)
    # By span, and of each span the longest row last.
    order = np.lexsort((work.duration_ns, run))
    first = np.flatnonzero(np.diff(run[order], prepend=-1))
    start, last = np.minimum.reduceat(work.start_ns[order], first), np.append(first[1:], len(run)) - 1
    used, name = np.unique(work.name[order][last], return_inverse=True)
    by_start = np.argsort(start, kind="stable")
    return WorkLane(
        stream=int(work.stream[0]),
        start_ns=start[by_start],
        end_ns=np.maximum.reduceat(work.end_ns[order], first)[by_start],
        sort=sort[order][first][by_start],
        name=name.reshape(-1).astype(np.int64)[by_start],
        count=np.diff(np.append(first, len(run)))[by_start],
        busy_ns=np.add.reduceat(work.duration_ns[order], first)[by_start],
        names=tuple(work.names[number] for number in used.tolist()),
    )


def _runs(work: DeviceWork, sort: Ints, most_spans: int) -> Ints:
    """The number of the span that each row is in: rows of one sort with the least gaps between them are one.

    Where sorts change too often for that, those of one sort in one stretch of time are.
    """
    if len(sort) <= most_spans:
        return np.arange(len(sort), dtype=np.int64)
    ended = np.maximum.accumulate(work.end_ns)
    changes = np.diff(sort) != 0
    left = most_spans - 1 - int(changes.sum())
    if left >= 0:
        gap = np.where(changes, -1, work.start_ns[1:] - ended[:-1])
        widest = np.argpartition(-gap, left)[:left] if left < len(gap) else np.arange(len(gap))
        changes[widest] = True
        return np.concatenate([[0], np.cumsum(changes)]).astype(np.int64)
    stretches = max(1, most_spans // len(SORTS))
    whole = max(1, int(ended[-1] - work.start_ns[0]))
    stretch = (work.start_ns - work.start_ns[0]) * stretches // (whole + 1)
    _, run = np.unique(stretch * len(SORTS) + sort, return_inverse=True)
    return run.reshape(-1).astype(np.int64)


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


_WORTH_SAYING_PCT = 5
_MOST_PCT = 50
_ALL_PCT = 90

Weight = Callable[[WorkRow], int]


def cause(times: TraceTimes) -> str:
    """One or two sentences on the largest part of the time."""
    total = times.total
    parts = {
        "the GPU waits for the host to launch work": total.host_wait_ns,
        "communication runs alone, with nothing computed beside it": total.communication_ns,
        "copies and fills run alone": total.copies_ns,
        "the GPU waits though work is launched: for a stream, another rank or the launch": total.launched_wait_ns,
        "the GPU computes": total.compute_ns,
    }
    name, part_ns = max(parts.items(), key=lambda item: item[1])
    is_wait = part_ns == total.host_wait_ns
    weight: Weight = (lambda row: row.host_wait_ns) if is_wait else (lambda row: row.total_ns)
    share = 100 * part_ns / total.wall_ns if total.wall_ns else 0.0
    loading = 100 * total.loading_wait_ns / part_ns if is_wait and part_ns else 0.0
    loads = f", and in {loading:.0f} % of that the host is loading data" if loading >= _WORTH_SAYING_PCT else ""
    return f"{share:.0f} % of the time {name}{loads}.{_where(times.rows, weight, is_wait)}"


def _where(rows: Sequence[WorkRow], weight: Weight, is_wait: bool) -> str:
    """The module that has most of it, and the operator that has the largest part."""
    total = sum(map(weight, rows))
    largest = max(rows, key=weight, default=None)
    if largest is None or not total:
        return ""
    what = "of the waiting" if is_wait else "of the GPU's work"
    module, share = _module_of_most(rows, weight, total)
    inside = f"{share:.0f} % {what} is in {_phase(rows, module)}{module}; the" if module else "The"
    launcher = largest.launcher
    place = f" ({launcher.file}:{launcher.line})" if launcher.file else ""
    part = f"largest part, {100 * weight(largest) / total:.0f} %, is {'for ' if is_wait else ''}"
    return f" {inside} {part}{launcher.op or 'work without an operator'}{place}."


def _module_of_most(rows: Iterable[WorkRow], weight: Weight, total: int) -> tuple[str, float]:
    """The innermost module that has more than half with all that is inside it, and its percent; empty for none."""
    sums: dict[str, int] = {}
    for row in rows:
        names = (row.launcher.module or "").split(".")
        for depth in range(1, len(names) + 1):
            path = ".".join(names[:depth])
            sums[path] = sums.get(path, 0) + weight(row)
    sums.pop("", None)
    most = [path for path, value in sums.items() if 100 * value > _MOST_PCT * total]
    if not most:
        return "", 0.0
    # Paths that have more than half lie inside each other.
    innermost = max(most, key=lambda path: path.count("."))
    return innermost, 100 * sums[innermost] / total


def _phase(rows: Iterable[WorkRow], module: str) -> str:
    """`forward of ` or `backward of `, where almost all work of a module is in one of them."""
    inside = [row for row in rows if f"{row.launcher.module}.".startswith(f"{module}.")]
    total = sum(row.total_ns for row in inside)
    sums = {
        "forward of ": sum(row.forward_ns for row in inside),
        "backward of ": sum(row.backward_ns for row in inside),
    }
    return next((phase for phase, value in sums.items() if total and 100 * value >= _ALL_PCT * total), "")
