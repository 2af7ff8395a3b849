"""Work of a device by operator, module and line, forward and backward apart, and the waits for the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.profiles.attribution import Attribution, Phase
from tracer.analysis.profiles.source_lines import Place, place_of
from tracer.analysis.times.step_times import HostWaits
from tracer.arrays import Ints, at
from tracer.capture.recording import Recording
from tracer.trace.device_work import DeviceWork


@dataclass(frozen=True, slots=True)
class WorkRow:
    """Equal launches: nanoseconds on the device by phase, copies and collectives too; overlapping ones add up."""

    launcher: Place
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
    launcher: Place
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
    launchers, launcher_of = _launchers(recording, attribution, op)
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
    sums = [
        np.bincount(launcher_of, weights=column, minlength=len(launchers)).astype(np.int64).tolist()
        for column in (duration * forward, duration * backward, duration * ~(forward | backward), waited)
    ]
    counts = np.bincount(launcher_of, minlength=len(launchers)).tolist()
    rows = [WorkRow(*row) for row in zip(launchers, *sums, counts, strict=True)]
    return (
        tuple(sorted(rows, key=lambda row: -(row.total_ns + row.host_wait_ns))),
        _kernel_rows(work, launchers, launcher_of),
    )


def _launchers(recording: Recording, attribution: Attribution, op: Ints) -> tuple[list[Place], Ints]:
    """Distinct launchers, and [W] which of them each is."""
    distinct, inverse = np.unique(op, return_inverse=True)
    number: dict[Place, int] = {}
    columns = (at(column, distinct, -1).tolist() for column in (attribution.op_module, attribution.op_frame))
    places = (place_of(recording, attribution, *rows) for rows in zip(distinct.tolist(), *columns, strict=True))
    rows = [number.setdefault(place, len(number)) for place in places]
    return list(number), np.array(rows, np.int64)[inverse.reshape(-1)]


def _kernel_rows(work: DeviceWork, launchers: list[Place], launcher_of: Ints) -> tuple[KernelRow, ...]:
    code = launcher_of * len(work.names) + work.name
    distinct, inverse = np.unique(code, return_inverse=True)
    inverse = inverse.reshape(-1)
    total, longest = np.zeros((2, len(distinct)), np.int64)
    np.add.at(total, inverse, work.duration_ns)
    np.maximum.at(longest, inverse, work.duration_ns)
    rows = [
        KernelRow(work.names[key % len(work.names)], launchers[key // len(work.names)], *sums)
        for key, *sums in zip(
            distinct.tolist(), total.tolist(), longest.tolist(), np.bincount(inverse).tolist(), strict=True
        )
    ]
    return tuple(sorted(rows, key=lambda row: -row.total_ns))
