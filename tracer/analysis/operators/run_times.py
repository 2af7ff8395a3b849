"""Forward and backward time of every operator invocation, measured in place, and where the rest of the time went.

Forward of a step is the sum of its stretches (`invocations.ForwardPasses`); inside them every nanosecond belongs to a
row, to a bookkeeping operator, or to Python between operators. Backward is the time of the autograd engine's nodes;
each belongs to a row, to a bookkeeping operator, or to neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis.operators.invocations import (
    InstanceTimes,
    OpInstances,
    instance_times,
    op_instances,
    short_op_name,
)
from tracer.analysis.profiles.attribution import Attribution
from tracer.analysis.profiles.source_lines import frames_of_op, line_of_frame
from tracer.arrays import Int, Ints, PerOp, Rows
from tracer.capture.recording import Recording
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import OPTIMIZER_PREFIXES


@dataclass(frozen=True, slots=True)
class RunTimeRow:
    """Times of an operator invocation, averaged over the steps that have it."""

    name: str  # Name of the operator as users write it
    forward_ns: float
    backward_ns: float | None  # Mean time of backward; None if it had no backward in any step
    host_forward_ns: float  # Mean time of forward on the host, also where `forward_ns` is by the device's clock
    host_backward_ns: float | None  # Mean time of backward on the host
    recompute_ns: float  # Mean part of the backward on the host in which forward ran again
    module: str | None  # Path, or None outside modules
    frames: tuple[SourceLine, ...]  # Lines of user code that called it, innermost first
    # How many times the same line of the same module had called an operator of this name before, in this step; from 0.
    invocation: int
    invocations: int
    input_shapes: tuple[tuple[int, ...], ...]  # One shape per tensor argument
    num_steps: int


@dataclass(frozen=True, slots=True)
class BookkeepingRow:
    """Views, queries and counters of one name, which have no rows of their own: totals over all steps."""

    name: str
    count: int
    forward_ns: int
    backward_ns: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """Host time of a profiled step. The parts of forward sum to it, and so do those of backward."""

    cycle: int  # Index of the recording
    name: str  # `ProfilerStep#2` and so on
    step_ns: int  # From the step's begin to its end; 0 where steps were not marked
    forward_ns: int  # Stretches of forward, end minus start
    forward_rows_ns: int
    forward_bookkeeping_ns: int
    forward_python_ns: int  # Forward time between operators
    backward_ns: int  # Time in nodes of the autograd engine
    backward_rows_ns: int
    backward_bookkeeping_ns: int
    backward_unclaimed_ns: int  # Time of operators that ran outside forward or before the recording
    optimizer_ns: int  # Time in an optimizer's `step` and `zero_grad`, without forward and backward that run in it
    rest_ns: int  # What is left of the step: data, metrics, and Python around all of the above


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Time of all kernels over all steps, by what launched them; the parts sum to it."""

    total_ns: int
    forward_rows_ns: int
    backward_rows_ns: int
    bookkeeping_ns: int  # Launched by bookkeeping operators and their nodes
    elsewhere_ns: int  # Launched by the optimizer, by nodes without a row, and outside of forward and backward


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Run times of all cycles."""

    rows: tuple[RunTimeRow, ...]  # Invocations in program order
    bookkeeping: tuple[BookkeepingRow, ...]  # Operators that are no rows, by name, slowest first
    steps: tuple[StepTime, ...]
    clock: str  # "device" if forward_ns and backward_ns of rows are times of kernels on the device, else "host"
    device: DeviceTime | None = None  # Where the device's time went; None where the clock is the host's


def run_times(
    cycles: Sequence[tuple[Recording, Attribution]],
    *,
    instances: Sequence[OpInstances] | None = None,
    device_ns: Sequence[PerOp[Int] | None] | None = None,
) -> RunTimes:
    """Time every invocation of forward, averaged over the steps of all cycles.

    The n-th call of an operator from one line of one module in a step is the n-th of it in every other step.

    Args:
        device_ns: Per cycle, [O] the time that the kernels launched in each operator took on the device, those of
            operators in it included; None where it was not measured. By default from the recordings' kernels.
    """
    device = device_ns or [kernel_times(recording) for recording, _ in cycles]
    invoked = instances or [op_instances(*cycle) for cycle in cycles]
    timed = [
        instance_times(*cycle, ours, device_ns=times)
        for cycle, ours, times in zip(cycles, invoked, device, strict=True)
    ]
    by_device = bool(timed) and all(times.device_forward_ns is not None for times in timed)
    merged = _Merged(by_device=by_device)
    for (recording, attribution), times in zip(cycles, timed, strict=True):
        for rows in _rows_of_each(np.unique(times.instances.step), times.instances.step):
            merged.add(recording, attribution, times, rows.tolist())
    return RunTimes(
        rows=merged.rows(),
        bookkeeping=_bookkeeping((recording, times) for (recording, _), times in zip(cycles, timed, strict=True)),
        steps=tuple(
            step
            for index, ((recording, attribution), times) in enumerate(zip(cycles, timed, strict=True))
            for step in _steps(index, recording, attribution, times)
        ),
        clock="device" if by_device else "host",
        device=_device_time(cycles, timed) if by_device else None,
    )


def _device_time(cycles: Sequence[tuple[Recording, Attribution]], timed: Sequence[InstanceTimes]) -> DeviceTime:
    total = forward = backward = bookkeeping = 0
    for (recording, _), times in zip(cycles, timed, strict=True):
        if recording.kernels is not None:
            total += int(recording.kernels.duration_ns.sum())
        for side, column in enumerate((times.device_forward_ns, times.device_backward_ns)):
            assert column is not None
            of_rows = int(column[~times.bookkeeping].sum())
            forward, backward = (forward + of_rows, backward) if side == 0 else (forward, backward + of_rows)
            bookkeeping += int(column[times.bookkeeping].sum())
    return DeviceTime(total, forward, backward, bookkeeping, total - forward - backward - bookkeeping)


class _Merged:
    """Invocations of several steps, put beside each other."""

    def __init__(self, *, by_device: bool) -> None:
        self.by_device = by_device
        # The key behind each key; behind None the first one.
        self.next: dict[Hashable, Hashable] = {None: None}
        self.samples: dict[Hashable, list[tuple[float, float, bool, float, float, float]]] = defaultdict(list)
        self.facts: dict[
            Hashable, tuple[str, str | None, tuple[SourceLine, ...], int, tuple[tuple[int, ...], ...]]
        ] = {}
        self.in_step: dict[Hashable, int] = {}

    def add(self, recording: Recording, attribution: Attribution, times: InstanceTimes, rows: list[int]) -> None:
        """Add one step."""
        counts: dict[Hashable, int] = defaultdict(int)
        last: Hashable = None
        for row in rows:
            op = int(times.instances.op[row])
            name = short_op_name(recording.strings[recording.ops.name[op]])
            module = attribution.modules[attribution.op_module[op]] if attribution.op_module[op] >= 0 else None
            group: Hashable = (name, module, line_of_frame(recording, int(attribution.op_frame[op])))
            number = counts[group]
            counts[group] += 1
            if times.bookkeeping[row]:
                continue
            key = (group, number)
            if key not in self.facts:
                shapes = recording.shapes[recording.ops.input_shapes[op]]
                self.facts[key] = (name, module, frames_of_op(recording, attribution, op), number, shapes)
                # What only a later step has goes behind what came before it there.
                self.next[key], self.next[last] = self.next[last], key
            last = key
            self.samples[key].append(self._sample(times, row))
        for group, count in counts.items():
            self.in_step[group] = max(count, self.in_step.get(group, 0))

    def _sample(self, times: InstanceTimes, row: int) -> tuple[float, float, bool, float, float, float]:
        host = float(times.forward_ns[row]), float(times.backward_ns[row])
        chosen = host
        if self.by_device and times.device_forward_ns is not None and times.device_backward_ns is not None:
            chosen = float(times.device_forward_ns[row]), float(times.device_backward_ns[row])
        return (*chosen, bool(times.has_backward[row]), *host, float(times.recompute_ns[row]))

    def rows(self) -> tuple[RunTimeRow, ...]:
        """Rows with mean times, in program order."""
        return tuple(map(self._row, self._in_order()))

    def _in_order(self) -> Iterator[Hashable]:
        key = self.next[None]
        while key is not None:
            yield key
            key = self.next[key]

    def _row(self, key: Hashable) -> RunTimeRow:
        name, module, frames, number, shapes = self.facts[key]
        samples = self.samples[key]
        forward, backward, has, host_forward, host_backward, recompute = zip(*samples, strict=True)
        group = key[0] if isinstance(key, tuple) else key
        return RunTimeRow(
            name=name,
            forward_ns=_mean(forward),
            backward_ns=_mean(backward) if any(has) else None,
            host_forward_ns=_mean(host_forward),
            host_backward_ns=_mean(host_backward) if any(has) else None,
            recompute_ns=_mean(recompute),
            module=module,
            frames=frames,
            invocation=number,
            invocations=self.in_step[group],
            input_shapes=shapes,
            num_steps=len(samples),
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _bookkeeping(cycles: Iterable[tuple[Recording, InstanceTimes]]) -> tuple[BookkeepingRow, ...]:
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for recording, times in cycles:
        for row in np.flatnonzero(times.bookkeeping).tolist():
            total = totals[short_op_name(recording.strings[recording.ops.name[times.instances.op[row]]])]
            total[0] += 1
            total[1] += int(times.forward_ns[row])
            total[2] += int(times.backward_ns[row])
    rows = [BookkeepingRow(name, *total) for name, total in totals.items()]
    return tuple(sorted(rows, key=lambda row: -row.forward_ns - row.backward_ns))


def _rows_of_each(steps: Ints, step: Ints) -> list[Rows]:
    """The rows of each of these steps, which are in order; `step` says of which step each row is."""
    order = np.argsort(step, kind="stable")
    begins, ends = (np.searchsorted(step[order], steps, side=side).tolist() for side in ("left", "right"))
    return [order[begin:end] for begin, end in zip(begins, ends, strict=True)]


def _steps(cycle: int, recording: Recording, attribution: Attribution, times: InstanceTimes) -> Iterator[StepTime]:
    instances, passes = times.instances, times.instances.passes
    lengths = _StepLengths(recording, times)
    steps = np.unique(np.concatenate([instances.step, times.engine_step]))
    of_each = (_rows_of_each(steps, column) for column in (instances.step, passes.step, times.engine_step))
    for step, rows, stretches, nodes in zip(steps.tolist(), *of_each, strict=True):
        is_booked = times.bookkeeping[rows]
        claimed = nodes[times.engine_row[nodes] >= 0]
        of_booked = times.bookkeeping[times.engine_row[claimed]]
        name = attribution.step_names[step] if 0 <= step < len(attribution.step_names) else "all"
        step_ns, optimizer_ns = lengths.of(name)
        forward_ns = int((passes.end_ns - passes.start_ns)[stretches].sum())
        backward_ns = int(times.engine_ns[nodes].sum())
        yield StepTime(
            cycle=cycle,
            name=name,
            step_ns=step_ns,
            forward_ns=forward_ns,
            forward_rows_ns=int(times.forward_ns[rows[~is_booked]].sum()),
            forward_bookkeeping_ns=int(times.forward_ns[rows[is_booked]].sum()),
            forward_python_ns=int(times.between_ns[stretches].sum()),
            backward_ns=backward_ns,
            backward_rows_ns=int(times.engine_ns[claimed[~of_booked]].sum()),
            backward_bookkeeping_ns=int(times.engine_ns[claimed[of_booked]].sum()),
            backward_unclaimed_ns=int(times.engine_ns[nodes[times.engine_row[nodes] < 0]].sum()),
            optimizer_ns=optimizer_ns,
            rest_ns=max(0, step_ns - forward_ns - backward_ns - optimizer_ns),
        )


class _StepLengths:
    """The marked steps of a recording, and the optimizers that run in them."""

    def __init__(self, recording: Recording, times: InstanceTimes) -> None:
        spans, passes = recording.spans, times.instances.passes
        names = [recording.strings[name] for name in spans.name.tolist()]
        self._start_ns, self._end_ns = spans.start_ns.tolist(), spans.end_ns.tolist()
        self._row_of = {name: row for row, name in reversed(list(enumerate(names)))}
        rows = np.array([row for row, name in enumerate(names) if name.startswith(OPTIMIZER_PREFIXES)], np.int64)
        self._optimizers = rows[np.argsort(spans.start_ns[rows], kind="stable")]
        self._starts_ns = spans.start_ns[self._optimizers]
        begins_ns, ends_ns = spans.start_ns[rows], spans.end_ns[rows]
        forward_ns = _sums_between(begins_ns, ends_ns, passes.start_ns, passes.end_ns - passes.start_ns)
        backward_ns = _sums_between(begins_ns, ends_ns, times.engine_start_ns, times.engine_ns)
        self._own_ns = dict(zip(rows.tolist(), (ends_ns - begins_ns - forward_ns - backward_ns).tolist(), strict=True))

    def of(self, step_name: str) -> tuple[int, int]:
        """A step's length, and the time in optimizers in it; 0 and 0 where steps were not marked."""
        step = self._row_of.get(step_name)
        if step is None:
            return 0, 0
        start, end = self._start_ns[step], self._end_ns[step]
        optimizers = self._optimizers[slice(*np.searchsorted(self._starts_ns, [start, end]).tolist())]
        optimizer_ns, reached = 0, start
        for row in np.sort(optimizers).tolist():
            # One may run inside another: LBFGS calls a closure that calls zero_grad.
            if reached <= self._start_ns[row]:
                reached = self._end_ns[row]
                optimizer_ns += self._own_ns[row]
        return end - start, optimizer_ns


def _sums_between(begins: Ints, ends: Ints, at: Ints, values: Ints) -> Ints:
    """[begins] the sum of the values whose place is at or behind a begin, and before its end."""
    order = np.argsort(at, kind="stable")
    until = np.append(0, np.cumsum(values[order]))
    first, last = (until[np.searchsorted(at[order], bounds)] for bounds in (begins, np.maximum(begins, ends)))
    return np.asarray(last - first, np.int64)


def kernel_times(recording: Recording) -> PerOp[Int] | None:
    """Sum up the kernels that each operator launched.

    Kernels on several streams may run at the same time; their durations add up all the same.

    Returns:
        [O] ns, those of operators in it included; None where nothing was recorded of a device.
    """
    kernels, ops = recording.kernels, recording.ops
    if kernels is None:
        return None
    own = np.zeros(len(ops.name), np.int64)
    op = ops.running_at(kernels.thread, kernels.launched_ns)
    np.add.at(own, op[op >= 0], kernels.duration_ns[op >= 0])
    total = own.copy()
    row = np.flatnonzero(own)
    above = ops.parent[row]
    while len(row):
        row, above = row[above >= 0], above[above >= 0]
        np.add.at(total, above, own[row])
        above = ops.parent[above]
    return total
