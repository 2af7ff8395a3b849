"""Spans of backward passes, the module calls that they went back to, and stretches without gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.profiles.attribution import Attribution, Phase, backward_calls
from tracer.analysis.profiles.time_spans import TimeSpans, enclosing, merged
from tracer.arrays import Bool, Bools, Ints, PerOp
from tracer.capture.recording import CallKind, OpKind, Recording
from tracer.capture.torch_names import is_asking_a_loader


@dataclass(frozen=True, slots=True, eq=False)
class OutermostCalls:
    """Calls of modules by no module, in order, outside of backward. Columns with one row each."""

    start_ns: Ints
    end_ns: Ints
    records_grad: Bools  # Some operator in it ran with gradients on
    went_back: Bools  # Some backward pass went back to it


def backward_passes(recording: Recording, attribution: Attribution) -> TimeSpans:
    """Spans of backward passes, from the call that asked for one to its end, nested ones merged."""
    calls, rows = recording.calls, backward_calls(recording)
    if len(rows):
        return merged(calls.start_ns[rows], calls.end_ns[rows])
    ops = recording.ops
    order = np.argsort(ops.start_ns, kind="stable")
    is_backward = attribution.op_phase[order] == Phase.BACKWARD
    begins = is_backward & ~np.concatenate([[False], is_backward[:-1]])
    stretch = np.cumsum(begins)[is_backward] - 1
    end_ns: Ints = np.zeros(int(begins.sum()), np.int64)
    np.maximum.at(end_ns, stretch, ops.end_ns[order][is_backward])
    return ops.start_ns[order][begins], end_ns


def outermost_calls(recording: Recording, attribution: Attribution) -> OutermostCalls:
    """Find the calls of whole models, and what came of each."""
    calls, ops = recording.calls, recording.ops
    inside = calls.op >= 0
    node = np.where(inside, attribution.op_node[np.where(inside, calls.op, 0)] if len(ops.name) else -1, -1)
    rows = np.flatnonzero((calls.kind == CallKind.MODULE) & (node < 0))
    start_ns, end_ns = merged(calls.start_ns[rows], calls.end_ns[rows])

    def has(chosen: PerOp[Bool]) -> Bools:
        at = enclosing(start_ns, end_ns, ops.start_ns[chosen])
        return np.bincount(at[at >= 0], minlength=len(start_ns)) > 0

    is_maker: PerOp[Bool] = np.zeros(len(ops.name), bool)
    is_maker[attribution.op_forward[attribution.op_forward >= 0]] = True
    return OutermostCalls(start_ns, end_ns, has(records_grad(recording)), has(is_maker & (attribution.op_node < 0)))


def records_grad(recording: Recording) -> PerOp[Bool]:
    """[O] operators that ran with gradients on, which the profiler numbers, and what a custom function calls."""
    ops = recording.ops
    is_recorded = (ops.kind == OpKind.OPERATOR) & (ops.sequence_number >= 0)
    above = np.where(ops.parent >= 0, ops.parent, 0)
    while (more := (ops.parent >= 0) & is_recorded[above] & ~is_recorded & (ops.kind == OpKind.OPERATOR)).any():
        is_recorded = is_recorded | more
    return np.asarray(is_recorded, np.bool_)


def loader_calls(recording: Recording) -> TimeSpans:
    """Spans of the calls that asked a DataLoader for its next batch."""
    calls, rows = recording.calls, recording.calls_of(is_asking_a_loader)
    return merged(calls.start_ns[rows], calls.end_ns[rows])
