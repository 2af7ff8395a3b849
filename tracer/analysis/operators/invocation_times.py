"""Times of one recording's operator invocations, measured in place, to the nanosecond.

Inside a stretch of forward every nanosecond belongs to an invocation or to Python between operators. Backward is the
time of the autograd engine's nodes; each belongs to one invocation or to none.

Shapes: R invocations, P stretches of forward, G nodes that ran.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.operators.invocations import OpInstances, rows_starting_at
from tracer.analysis.profiles.attribution import Attribution
from tracer.arrays import Bool, Int, Ints, PerEngineNode, PerForwardPass, PerInvocation, PerOp, Rows
from tracer.capture.recording import OpKind, Recording

# What an operator may write and still count as bookkeeping: a counter or a flag.
COUNTER_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class InstanceTimes:
    """Times of one cycle's invocations, and of everything beside them."""

    instances: OpInstances  # The invocations. [R]
    forward_ns: PerInvocation[Int]  # [R] Own time on the host, without rows within
    backward_ns: PerInvocation[Int]  # [R] Time of the autograd nodes of this invocation, without nested nodes of others
    recompute_ns: PerInvocation[Int]  # [R] The part of `backward_ns` in which forward operators ran again
    has_backward: PerInvocation[Bool]  # [R] Whether a node of it ran
    bookkeeping: PerInvocation[Bool]  # [R] Neither forward nor backward makes or writes memory, beyond a counter
    # [R] Time of the kernels that it launched, on the device; None where it was not measured.
    device_forward_ns: PerInvocation[Int] | None
    device_backward_ns: PerInvocation[Int] | None  # [R] As above
    between_ns: PerForwardPass[Int]  # [P] Python between operators, per stretch
    engine_step: PerEngineNode[Int]  # [G] Step of each node that ran
    engine_row: PerEngineNode[Int]  # [G] Invocation to which it belongs, or -1
    engine_ns: PerEngineNode[Int]  # [G] Its own time
    engine_start_ns: PerEngineNode[Int]  # [G]


def instance_times(
    recording: Recording,
    attribution: Attribution,
    instances: OpInstances,
    *,
    device_ns: PerOp[Int] | None = None,
) -> InstanceTimes:
    """Times of one cycle's invocations."""
    ops, num = recording.ops, len(instances.op)
    span = ops.end_ns - ops.start_ns
    engine, nested_in = _engine(recording)
    owner = instances.row_of_op[engine]
    claimed = owner >= 0
    engine_ns = _own(span[engine], nested_in)
    return InstanceTimes(
        instances=instances,
        forward_ns=_own(span[instances.op], instances.within),
        backward_ns=sum_at(owner[claimed], engine_ns[claimed], num),
        recompute_ns=_recomputed(recording, attribution, engine, owner, num),
        has_backward=sum_at(owner[claimed], np.ones(claimed.sum(), np.int64), num) > 0,
        bookkeeping=_is_bookkeeping(recording, instances),
        device_forward_ns=None if device_ns is None else _own(device_ns[instances.op], instances.within),
        device_backward_ns=(
            None if device_ns is None else sum_at(owner[claimed], _own(device_ns[engine], nested_in)[claimed], num)
        ),
        between_ns=_between(recording, instances),
        engine_step=attribution.op_step[engine] if attribution.step_names else np.zeros(len(engine), np.int64),
        engine_row=owner,
        engine_ns=engine_ns,
        engine_start_ns=ops.start_ns[engine],
    )


def sum_at(rows: Rows, values: Ints, length: int) -> Ints:
    """[length] the sum of the values of each row."""
    total = np.zeros(length, np.int64)
    np.add.at(total, rows, values)
    return total


def _own(span_ns: Ints, within: Ints) -> Ints:
    """Spans less those directly within them."""
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


def _recomputed(
    recording: Recording, attribution: Attribution, engine: Rows, owner: PerEngineNode[Int], num: int
) -> PerInvocation[Int]:
    """[R] time in which forward operators ran again, inside the nodes of each row."""
    ops = recording.ops
    # Grad mode is on while forward runs again, so its operators are numbered; those of a node are not.
    again = (ops.kind == OpKind.OPERATOR) & (attribution.op_node >= 0) & (ops.sequence_number >= 0)
    again &= (ops.parent >= 0) & (ops.kind[ops.parent] == OpKind.BACKWARD_NODE)
    rows = np.flatnonzero(again)
    engine_of = np.full(len(ops.kind), -1, np.int64)
    engine_of[engine] = owner
    node = ops.parent[ops.parent[rows]]
    target = np.where(node >= 0, engine_of[node], -1)
    claimed = target >= 0
    return sum_at(target[claimed], (ops.end_ns - ops.start_ns)[rows][claimed], num)


def _is_bookkeeping(recording: Recording, instances: OpInstances) -> PerInvocation[Bool]:
    """[R] invocations that make no memory and write no more than a counter, in forward and in their nodes."""
    made_bytes, written_bytes = _made_bytes(recording), _written_bytes(recording)
    known, num = instances.row_of_op >= 0, len(instances.op)
    made_bytes, written_bytes = (
        sum_at(instances.row_of_op[known], times[known], num) for times in (made_bytes, written_bytes)
    )
    # Without recorded shapes it is not known what an in-place operator wrote; its name says that it did.
    blind = not recording.flow.edge_mutated.any()
    in_place = recording.is_text(lambda text: text.endswith("_"))[recording.ops.name[instances.op]]
    is_bookkeeping: PerInvocation[Bool] = (made_bytes == 0) & (written_bytes <= COUNTER_BYTES) & ~(in_place & blind)
    return is_bookkeeping


def _made_bytes(recording: Recording) -> PerOp[Int]:
    """[O] bytes that each operator allocated."""
    allocations = recording.allocations
    is_allocation = (allocations.size_bytes > 0) & (allocations.op >= 0)
    return sum_at(allocations.op[is_allocation], allocations.size_bytes[is_allocation], len(recording.ops.name))


def _written_bytes(recording: Recording) -> PerOp[Int]:
    """[O] bytes of the storages that each operator may have written to."""
    ops, flow = recording.ops, recording.flow
    mutated = flow.edge_mutated
    op = rows_starting_at(ops.start_ns, flow.node_time_ns[flow.edge_node[mutated]])
    size = recording.keys.size_bytes[flow.edge_key[mutated]]
    return sum_at(op[op >= 0], size[op >= 0], len(ops.name))


def _between(recording: Recording, instances: OpInstances) -> PerForwardPass[Int]:
    """[P] the gaps before, between and behind the operators of each stretch, one by one."""
    ops, passes = recording.ops, instances.passes
    top = np.flatnonzero(instances.within < 0)
    which = instances.forward_pass[top]
    start, end = ops.start_ns[instances.op[top]], ops.end_ns[instances.op[top]]
    gaps = np.zeros(len(passes.step), np.int64)
    for row in range(len(passes.step)):
        mine = which == row
        edges = np.concatenate([[passes.start_ns[row]], np.stack([start[mine], end[mine]], 1).reshape(-1)])
        gaps[row] = (np.append(edges, passes.end_ns[row]).reshape(-1, 2) @ np.array([-1, 1])).sum()
    return gaps
