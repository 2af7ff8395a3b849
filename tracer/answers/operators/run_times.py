"""Forward and backward time of every operator invocation, measured in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.answers.operators.invocations import OpInstances, op_instances, rows_starting_at, short_op_name, sum_at
from tracer.arrays import Bool, Int, Ints, PerEngineNode, PerInvocation, PerOp, Rows
from tracer.blocks.from_recording.attribution import Attribution, frames_of_op
from tracer.blocks.from_recording.source_lines import line_of_frame
from tracer.capture.recording import OpKind, Recording
from tracer.capture.sources.source_line import SourceLine

# Most bytes that a bookkeeping operator writes: a counter or a flag.
COUNTER_BYTES = 16


@dataclass(frozen=True, slots=True)
class RunTimeRow:
    """Times of an operator invocation, averaged over the steps that have it."""

    name: str  # Name of the operator as users write it
    forward_ns: float
    backward_ns: float | None  # None if it had no backward in any step
    module: str | None  # Path, or None outside modules
    frames: tuple[SourceLine, ...]  # Lines of user code that called it, innermost first
    num_steps: int


def run_times(
    cycles: Sequence[tuple[Recording, Attribution]], *, instances: Sequence[OpInstances] | None = None
) -> tuple[RunTimeRow, ...]:
    """Time every invocation of forward, averaged over the steps of all cycles, in program order.

    The n-th call of an operator from one line of one module in a step is the n-th of it in every other step. Times are
    the device's where every cycle recorded kernels, else the host's. Bookkeeping has no rows.
    """
    device_ns = [kernel_times(recording) for recording, _ in cycles]
    by_device = all(times is not None for times in device_ns)
    # The key behind each key; behind None the first one.
    next_key: dict[Hashable, Hashable] = {None: None}
    facts: dict[Hashable, tuple[str, str | None, tuple[SourceLine, ...]]] = {}
    samples: dict[Hashable, list[tuple[int, int, bool]]] = defaultdict(list)
    invoked = instances or [op_instances(*cycle) for cycle in cycles]
    for (recording, attribution), ours, on_device in zip(cycles, invoked, device_ns, strict=True):
        times = instance_times(recording, ours, on_device if by_device else None)
        forward_ns, backward_ns = times.forward_ns.tolist(), times.backward_ns.tolist()
        for rows in _rows_of_each_step(ours.step):
            counts: dict[Hashable, int] = defaultdict(int)
            last: Hashable = None
            for row in rows.tolist():
                op = int(ours.op[row])
                name = short_op_name(recording.strings[recording.ops.name[op]])
                module = attribution.modules[attribution.op_module[op]] if attribution.op_module[op] >= 0 else None
                group = (name, module, line_of_frame(recording, int(attribution.op_frame[op])))
                key = (group, counts[group])
                counts[group] += 1
                if times.bookkeeping[row]:
                    continue
                if key not in facts:
                    facts[key] = (name, module, frames_of_op(recording, attribution, op))
                    # An invocation that only a later step has goes behind the one before it in that step.
                    next_key[key], next_key[last] = next_key[last], key
                last = key
                samples[key].append((forward_ns[row], backward_ns[row], bool(times.has_backward[row])))
    found = []
    key_of_row = next_key[None]
    while key_of_row is not None:
        name, module, frames = facts[key_of_row]
        forward, backward, has_backward = zip(*samples[key_of_row], strict=True)
        num_steps = len(forward)
        mean_backward = sum(backward) / num_steps if any(has_backward) else None
        found.append(RunTimeRow(name, sum(forward) / num_steps, mean_backward, module, frames, num_steps))
        key_of_row = next_key[key_of_row]
    return tuple(found)


def _rows_of_each_step(step: Ints) -> list[Rows]:
    order = np.argsort(step, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(step[order])) + 1) if len(step) else []


@dataclass(frozen=True, slots=True, eq=False)
class InstanceTimes:
    """Times of one cycle's invocations, by the host's or by the device's clock. Columns [R].

    Backward is the time of the autograd engine's nodes; each belongs to one invocation or to none.
    """

    forward_ns: PerInvocation[Int]  # Own time, without rows within
    backward_ns: PerInvocation[Int]  # Time of the autograd nodes of this invocation, without nested nodes of others
    has_backward: PerInvocation[Bool]  # Whether a node of it ran
    bookkeeping: PerInvocation[Bool]  # Neither forward nor backward makes or writes memory, beyond a counter


def instance_times(recording: Recording, instances: OpInstances, device_ns: PerOp[Int] | None = None) -> InstanceTimes:
    """Times of one cycle's invocations.

    Args:
        device_ns: See `kernel_times`; times are the host's without it.
    """
    ops, num = recording.ops, len(instances.op)
    span_ns = ops.end_ns - ops.start_ns if device_ns is None else device_ns
    engine, nested_in = _engine(recording)
    owner = instances.row_of_op[engine]
    claimed = owner >= 0
    return InstanceTimes(
        forward_ns=_own(span_ns[instances.op], instances.within),
        backward_ns=sum_at(owner[claimed], _own(span_ns[engine], nested_in)[claimed], num),
        has_backward=np.bincount(owner[claimed], minlength=num) > 0,
        bookkeeping=_is_bookkeeping(recording, instances),
    )


def _own(span_ns: Ints, within: Ints) -> Ints:
    inner = np.flatnonzero(within >= 0)
    return span_ns - sum_at(within[inner], span_ns[inner], len(span_ns))


def _engine(recording: Recording) -> tuple[Rows, PerEngineNode[Int]]:
    """Operators that are the engine at work on a node, and for each the one in which it is nested, or -1."""
    ops = recording.ops
    rows = np.flatnonzero(ops.kind == OpKind.ENGINE)
    index = np.full(len(ops.kind), -1, np.int64)
    index[rows] = np.arange(len(rows))
    above = ops.parent[rows]
    nested = np.full(len(rows), -1, np.int64)
    while (climbing := np.flatnonzero((above >= 0) & (nested < 0))).size:
        nested[climbing] = index[above[climbing]]
        above[climbing] = ops.parent[above[climbing]]
    return rows, nested


def _is_bookkeeping(recording: Recording, instances: OpInstances) -> PerInvocation[Bool]:
    """[R] invocations that make no memory and write no more than a counter, in forward and in their nodes."""
    known, num = instances.row_of_op >= 0, len(instances.op)
    made_bytes, written_bytes = (
        sum_at(instances.row_of_op[known], sizes[known], num)
        for sizes in (_made_bytes(recording), _written_bytes(recording))
    )
    # Without recorded shapes it is not known what an in-place operator wrote; its name says that it did.
    blind = not recording.flow.edge_mutated.any()
    in_place = recording.is_text(lambda text: text.endswith("_"))[recording.ops.name[instances.op]]
    is_bookkeeping: PerInvocation[Bool] = (made_bytes == 0) & (written_bytes <= COUNTER_BYTES) & ~(in_place & blind)
    return is_bookkeeping


def _made_bytes(recording: Recording) -> PerOp[Int]:
    allocations = recording.allocations
    is_allocation = (allocations.size_bytes > 0) & (allocations.op >= 0)
    return sum_at(allocations.op[is_allocation], allocations.size_bytes[is_allocation], len(recording.ops.name))


def _written_bytes(recording: Recording) -> PerOp[Int]:
    ops, flow = recording.ops, recording.flow
    mutated = flow.edge_mutated
    op = rows_starting_at(ops.start_ns, flow.node_time_ns[flow.edge_node[mutated]])
    size = recording.keys.size_bytes[flow.edge_key[mutated]]
    return sum_at(op[op >= 0], size[op >= 0], len(ops.name))


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
