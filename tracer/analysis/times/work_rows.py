"""Work of a device by operator, module and line, forward and backward apart, and the waits for the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tracer.analysis.profiles.attribution import Attribution, Phase
from tracer.analysis.profiles.source_lines import PlaceInCode, place_of
from tracer.analysis.times.step_times import HostWaits
from tracer.arrays import Grouped, Ints, at, grouped
from tracer.capture.recording import Recording
from tracer.trace.device_work import DeviceWork


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
