"""What a device did in each step, and what it waited for: parts that sum to the step.

A step goes from its beginning to that of the next one, the last one to the end of what it launched: a device works on
a step behind the host. Where the device is idle, the work that comes next tells why: until the host had launched it the
device waited for the host, and from then on for another stream, another rank or the launch itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tracer.analysis.profiles.attribution import Attribution, Phase
from tracer.analysis.profiles.source_lines import PlaceInCode, place_of
from tracer.analysis.profiles.time_spans import TimeSpans, covered, gaps
from tracer.arrays import Grouped, Ints, at, grouped
from tracer.capture.recording import Recording
from tracer.trace.device_work import DeviceWork


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of one step on one device, in nanoseconds."""

    name: str  # `ProfilerStep#2` and so on; `all` where no steps are marked
    wall_ns: int  # From its beginning to the next one's; the five below sum to it
    compute_ns: int
    communication_ns: int  # Time in which a collective's kernel runs, and no other
    copies_ns: int  # Time in which a copy or a fill runs, and no kernel
    host_wait_ns: int  # Idle time in which the host had not launched the next work yet
    launched_wait_ns: int  # Idle time although the next work was launched
    overlapped_ns: int  # Time of collectives' kernels that run while others compute; a part of `compute_ns`
    loading_ns: int = 0  # Time in which the program waits for a DataLoader's next batch, whatever the device does
    loading_wait_ns: int = 0  # Likewise, while the device waits for the host; a part of `host_wait_ns`

    def __add__(self, other: StepTimes) -> StepTimes:
        sums = {name: getattr(self, name) + getattr(other, name) for name in _NUMBERS}
        return StepTimes(name=self.name if self.name == other.name else "all", **sums)


_NO_SPANS: TimeSpans = (np.empty(0, np.int64), np.empty(0, np.int64))
_NUMBERS = tuple(name for name in StepTimes.__dataclass_fields__ if name != "name")


@dataclass(frozen=True, slots=True, eq=False)
class HostWaits:
    """Stretches in which a device waited for the host [waits]."""

    start_ns: Ints  # When nothing ran any more
    end_ns: Ints  # When the host had launched what came next
    work: Ints  # Row of that work, or -1 behind the last


def step_times(
    work: DeviceWork,
    steps: Sequence[tuple[str, int, int]],
    window: tuple[int, int],
    *,
    loading: TimeSpans = _NO_SPANS,
) -> tuple[tuple[StepTimes, ...], HostWaits]:
    """Divide the time of each step.

    Args:
        steps: Name, start and end of each, in order; none where they are not marked.
    """
    names = [name for name, *_ in steps] or ["all"]
    last = max(int(work.end_ns.max(initial=0)), steps[-1][2]) if steps else window[1]
    edges = np.array([*([start for _, start, _ in steps] or [window[0]]), last], np.int64)
    computes, communicates = ~work.is_copy & ~work.is_communication, work.is_communication

    def within(rows: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Ints:
        return covered(work.start_ns[rows], work.end_ns[rows], edges)

    compute, communication, kernels = within(computes), within(communicates), within(~work.is_copy)
    busy = covered(work.start_ns, work.end_ns, edges)
    waits = host_waits(work, int(edges[0]), last)
    waiting = covered(waits.start_ns, waits.end_ns, edges)
    wall = np.diff(edges)
    loads = covered(*loading, edges)
    either = covered(np.append(waits.start_ns, loading[0]), np.append(waits.end_ns, loading[1]), edges)
    columns = (
        wall, compute, kernels - compute, busy - kernels, waiting, wall - busy - waiting,
        communication - (kernels - compute), loads, waiting + loads - either,
    )  # fmt: skip
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return tuple(StepTimes(*row) for row in rows), waits


def host_waits(work: DeviceWork, first_ns: int, last_ns: int) -> HostWaits:
    """Stretches in which a device had nothing to do because the host had launched nothing.

    Work without a known launch, as in a trace of the device alone, is taken to have been launched in time.
    """
    start, end = gaps(work.start_ns, work.end_ns, first_ns, last_ns)
    following = np.searchsorted(work.start_ns, end, side="left")
    is_last = following == len(work)
    launched = np.append(work.launched_ns, last_ns)[following]
    stop = np.where(launched < 0, start, np.clip(launched, start, end))
    waited = stop > start
    rows = np.where(is_last, -1, following)
    return HostWaits(start[waited], stop[waited], rows[waited])


@dataclass(frozen=True, slots=True)
class WorkRow:
    """Equal launches: nanoseconds on the device by phase, copies and collectives too; overlapping ones add up."""

    launcher: PlaceInCode
    forward_ns: int  # Time of work launched in forward
    backward_ns: int  # Time of work launched in backward
    other_ns: int  # Time of work launched in the optimizer, or outside of all of these
    host_wait_ns: int  # For which the device waited until this was launched
    count: int

    @property
    def total_ns(self) -> int:
        """On the device."""
        return self.forward_ns + self.backward_ns + self.other_ns


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Kernels of one name from one place."""

    name: str  # As its library calls it
    launcher: PlaceInCode
    total_ns: int
    longest_ns: int
    count: int


def launching_operators(recording: Recording, work: DeviceWork) -> Ints:
    """[W] row in `Recording.ops` of the operator that Python or autograd called and that launched each, or -1."""
    return recording.ops.running_at(work.thread, work.operator_ns)


def work_rows(
    recording: Recording, attribution: Attribution, work: DeviceWork, waits: HostWaits
) -> tuple[tuple[WorkRow, ...], tuple[KernelRow, ...]]:
    """Add up a device's work by who launched it, and by kernel.

    Returns:
        Both with the longest first. The times of either sum to that of all work.
    """
    op = launching_operators(recording, work)
    launchers = grouped(
        (op, at(attribution.op_module, op, -1), at(attribution.op_frame, op, -1)),
        partial(place_of, recording, attribution),
    )
    duration, phase = (
        work.duration_ns,
        np.where(op >= 0, attribution.op_phase[op], Phase.OTHER)
        if len(recording.ops.name)
        else np.full(len(work), int(Phase.OTHER)),
    )
    waited = np.zeros(len(work), np.int64)
    known = waits.work >= 0
    np.add.at(waited, waits.work[known], (waits.end_ns - waits.start_ns)[known])
    forward, backward = phase == Phase.FORWARD, phase == Phase.BACKWARD
    columns = (duration * forward, duration * backward, duration * ~(forward | backward), waited)
    sums = map(launchers.sums, columns)
    rows = [WorkRow(*row) for row in zip(launchers.keys, *sums, launchers.counts(), strict=True)]
    return (
        tuple(sorted(rows, key=lambda row: -(row.total_ns + row.host_wait_ns))),
        _kernel_rows(work, launchers),
    )


def _kernel_rows(work: DeviceWork, launchers: Grouped[PlaceInCode]) -> tuple[KernelRow, ...]:
    kernels = grouped(
        (launchers.of_row, work.name), lambda launcher, name: (work.names[name], launchers.keys[launcher])
    )
    longest = np.zeros(len(kernels.keys), np.int64)
    np.maximum.at(longest, kernels.of_row, work.duration_ns)
    columns = (kernels.sums(work.duration_ns), longest.tolist(), kernels.counts())
    rows = [KernelRow(*key, *sums) for key, *sums in zip(kernels.keys, *columns, strict=True)]
    return tuple(sorted(rows, key=lambda row: -row.total_ns))
