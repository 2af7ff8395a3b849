"""Spans of backward passes, the module calls that they went back to, stretches without gradients; phases of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracer.analysis.profiles.attribution import Attribution, Phase, backward_calls
from tracer.analysis.profiles.block_lifetimes import BlockLifetimes
from tracer.analysis.profiles.time_spans import TimeSpans, enclosing, merged
from tracer.arrays import Bool, Bools, Ints, PerOp
from tracer.capture.recording import CallKind, OpKind, Recording
from tracer.capture.torch_names import is_asking_a_loader

if TYPE_CHECKING:
    from tracer.analysis.profiles.classify_blocks import Cycle


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


SHOWN = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class StepPhase:
    """Time and peak of one phase of one step."""

    step: str
    phase: str  # forward, backward or optimizer
    # Start of the first and end of the last operator of each stretch without another phase in between: one, or as many
    # as there are micro-batches, or evaluations by the optimizer.
    stretches_ns: tuple[tuple[int, int], ...]
    peak_bytes: int  # The most bytes in use during it, what is in use when it begins among them

    @property
    def start_ns(self) -> int:
        """Start of its first operator."""
        return self.stretches_ns[0][0]

    @property
    def end_ns(self) -> int:
        """End of its last operator."""
        return self.stretches_ns[-1][1]

    @property
    def duration_ns(self) -> int:
        """Time of all stretches, on the host."""
        return sum(end - start for start, end in self.stretches_ns)


def step_phases(cycle: Cycle) -> tuple[StepPhase, ...]:
    """Lay out the phases of every step: in each, that which ends first comes first."""
    recording, attribution, lifetimes = cycle.recording, cycle.attribution, cycle.lifetimes
    event_step = attribution.allocation_step[lifetimes.events]
    event_phase = attribution.allocation_phase[lifetimes.events]
    stretches = _stretches(recording, attribution)
    phases = []
    for step, name in enumerate(attribution.step_names):
        for phase in SHOWN:
            spans = stretches.get((step, phase))
            if spans is None:
                continue
            level = lifetimes.allocator_bytes[(event_step == step) & (event_phase == phase)]
            peak_bytes = int(np.max(level, initial=_in_use_at(spans[0][0], recording, lifetimes)))
            phases.append((step, StepPhase(name, phase.name.lower(), tuple(spans), peak_bytes)))
    return tuple(phase for _, phase in sorted(phases, key=lambda pair: (pair[0], pair[1].end_ns)))


def _in_use_at(time_ns: int, recording: Recording, lifetimes: BlockLifetimes) -> int:
    times_ns = np.maximum.accumulate(recording.allocations.time_ns[lifetimes.events])
    position = int(np.searchsorted(times_ns, time_ns, side="right")) - 1
    if position >= 0:
        return int(lifetimes.allocator_bytes[position])
    return int(lifetimes.size_bytes[lifetimes.alive_at(-1)].sum())


def _stretches(recording: Recording, attribution: Attribution) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Start and end of each run of operators of one phase, by step and phase; what is in no phase ends none."""
    ops = recording.ops
    rows = np.flatnonzero((attribution.op_step >= 0) & (attribution.op_phase != Phase.OTHER))
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    step, phase = attribution.op_step[rows], attribution.op_phase[rows]
    begins = np.ones(len(rows), bool)
    begins[1:] = (step[1:] != step[:-1]) | (phase[1:] != phase[:-1])
    first = np.flatnonzero(begins)
    if not len(first):
        return {}
    end_ns = np.maximum.reduceat(ops.end_ns[rows], first)
    stretches: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for at, end in zip(first.tolist(), end_ns.tolist(), strict=True):
        stretches.setdefault((int(step[at]), int(phase[at])), []).append((int(ops.start_ns[rows[at]]), end))
    return stretches
