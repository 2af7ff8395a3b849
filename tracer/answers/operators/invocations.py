"""Operators that a step's forward consists of: one row per invocation, in program order, loops not collapsed.

Shapes: R invocations, P forward passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.arrays import Bool, Int, Ints, PerCall, PerForwardPass, PerInvocation, PerOp, Rows
from tracer.blocks.from_recording.attribution import Attribution
from tracer.blocks.table import Phase
from tracer.capture.recording import CallKind, OpKind, Recording

# Operators whose name differs from that of the function that people call.
_CALLED = {
    "cross_entropy_loss": "cross_entropy",
    "nll_loss_nd": "nll_loss",
    "linalg_vector_norm": "vector_norm",
    "_foreach_norm": "foreach_norm",
}


@dataclass(frozen=True, slots=True, eq=False)
class ForwardPasses:
    """Stretches of forward, from its first operator to the last before a backward or the step's end. Columns [P].

    A stretch begins with the outermost module call around its first operator, or with that operator, and ends
    likewise; an operator is its first if a module called it or if it made an autograd node.
    """

    start_ns: PerForwardPass[Int]
    end_ns: PerForwardPass[Int]


@dataclass(frozen=True, slots=True, eq=False)
class OpInstances:
    """Invocations in forward, in program order. Columns [R].

    A custom autograd.Function that calls modules (reentrant checkpointing) has a row, and so have the operators in it.
    """

    op: PerInvocation[Int]  # [R] Row in `Recording.ops`
    step: PerInvocation[Int]  # [R] Index of the step
    within: PerInvocation[Int]  # [R] Row of the function that encloses it, or -1
    passes: ForwardPasses  # The stretches of forward that these make up
    # [O] Row of each operator here, for backward operators and recomputed ones that of the forward operator to which
    # they belong; -1 where there is none.
    row_of_op: PerOp[Int]


def short_op_name(recorded_name: str) -> str:
    """An operator's name as a person calls it: `conv2d`, not `aten::conv2d`."""
    name = recorded_name.removeprefix("aten::")
    return _CALLED.get(name, name)


def op_instances(recording: Recording, attribution: Attribution) -> OpInstances:
    """Find the operators of every step's forward."""
    candidates, within_op = _candidates(recording, attribution)
    key = _stretches(recording, attribution, candidates)
    core = _core(recording, attribution)[candidates]
    calls = _outermost_module_calls(recording)
    chosen: list[Rows] = []
    windows: list[tuple[int, int]] = []
    for rows in _groups(key):
        first_to_last = np.flatnonzero(core[rows])
        if len(first_to_last):
            ops = candidates[rows[first_to_last[0] : first_to_last[-1] + 1]]
            chosen.append(ops)
            windows.append(_window(recording, calls, ops, within_op))
    order = sorted(range(len(windows)), key=lambda which: windows[which][0])
    passes = np.array([windows[which] for which in order], np.int64).reshape(-1, 2)
    op = np.concatenate([chosen[which] for which in order]) if chosen else np.empty(0, np.int64)
    row_of_op = np.full(len(recording.ops.name), -1, np.int64)
    row_of_op[op] = np.arange(len(op))
    parent = within_op[op]
    return OpInstances(
        op=op,
        step=_step(attribution)[op],
        within=np.where(parent >= 0, row_of_op[parent], -1),
        passes=ForwardPasses(*(np.ascontiguousarray(column) for column in passes.T)),
        row_of_op=_with_backward(recording, attribution, row_of_op, within_op),
    )


def rows_starting_at(start_ns: Ints, times_ns: Ints) -> Rows:
    """Rows that start exactly at the given times, -1 for none; finds the operators of data-flow nodes.

    Args:
        start_ns: Start of each row, in any order.
    """
    order = np.argsort(start_ns, kind="stable")
    at = np.searchsorted(start_ns[order], times_ns)
    has_match = at < len(order)
    has_match[has_match] = start_ns[order[at[has_match]]] == times_ns[has_match]
    out = np.full(len(times_ns), -1, np.int64)
    out[has_match] = order[at[has_match]]
    return out


def _step(attribution: Attribution) -> PerOp[Int]:
    """[O] the step; a recording without marked steps is one step."""
    return attribution.op_step if attribution.step_names else np.zeros(len(attribution.op_step), np.int64)


def _candidates(recording: Recording, attribution: Attribution) -> tuple[Rows, PerOp[Int]]:
    """Operators outside backward and optimizer that Python called, and [O] the function that encloses each, or -1."""
    ops = recording.ops
    outside = (ops.kind == OpKind.OPERATOR) & (attribution.op_node < 0) & (attribution.op_phase != Phase.OPTIMIZER)
    outside &= _step(attribution) >= 0
    parent = ops.parent
    inner = np.flatnonzero(outside & (parent >= 0))
    differs = attribution.op_module[inner] != attribution.op_module[parent[inner]]
    opens = np.zeros(len(parent), bool)
    opens[parent[inner[differs]]] = True
    within = np.full(len(parent), -1, np.int64)
    visible = outside & (parent < 0)
    # Parents come first, so one pass settles functions within functions.
    for row in inner.tolist():
        above = parent[row]
        if visible[above] and opens[above]:
            visible[row], within[row] = True, above
    return np.flatnonzero(visible), within


def _core(recording: Recording, attribution: Attribution) -> PerOp[Bool]:
    """[O] operators that make a forward: a module called them, or they made an autograd node."""
    ops = recording.ops
    core = (attribution.op_phase == Phase.FORWARD) & (attribution.op_module >= 0)
    numbered = np.flatnonzero((ops.kind == OpKind.OPERATOR) & (ops.sequence_number >= 0))
    for thread in np.unique(ops.thread[numbered]):
        rows = numbered[ops.thread[numbered] == thread]
        number = ops.sequence_number[rows]
        core[rows[:-1]] |= number[1:] > number[:-1]
    engine = (ops.kind == OpKind.ENGINE) & (ops.sequence_number >= 0) & (attribution.op_forward >= 0)
    core[attribution.op_forward[engine]] = True
    is_core: PerOp[Bool] = core & (attribution.op_node < 0)
    return is_core


def _stretches(recording: Recording, attribution: Attribution, candidates: Rows) -> Ints:
    """[candidates, 3]: what separates stretches of forward: step, thread, and how much backward has run before."""
    ops = recording.ops
    engine = np.sort(ops.start_ns[(ops.kind == OpKind.ENGINE)])
    before = np.searchsorted(engine, ops.start_ns[candidates])
    return np.stack([_step(attribution)[candidates], ops.thread[candidates], before], axis=1)


def _groups(key: Ints) -> list[Rows]:
    if not len(key):
        return []
    _, inverse = np.unique(key, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    order = np.argsort(inverse, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1)


def _outermost_module_calls(recording: Recording) -> PerCall[Int]:
    """[C] row of the outermost module call that encloses each call, itself included, or -1."""
    calls = recording.calls
    outermost = [-1] * len(calls.kind)
    for row, (kind, parent) in enumerate(zip(calls.kind.tolist(), calls.parent.tolist(), strict=True)):
        above = outermost[parent] if parent >= 0 else -1
        outermost[row] = above if above >= 0 else row if kind == CallKind.MODULE else -1
    return np.array(outermost, np.int64)


def _window(recording: Recording, outermost: PerCall[Int], candidates: Rows, within: PerOp[Int]) -> tuple[int, int]:
    """Start and end of a stretch: the outermost module call around its first and its last operator, or these."""
    ops, calls = recording.ops, recording.calls
    top = candidates[within[candidates] < 0]
    if not len(top):
        top = candidates
    start, end = int(ops.start_ns[top[0]]), int(ops.end_ns[top].max())
    first, last = (outermost[ops.call[op]] if ops.call[op] >= 0 else -1 for op in (top[0], top[-1]))
    # A loop that a module runs, optimizer and all, is no forward: a call counts only if no backward runs in it.
    if first >= 0 and not _has_backward(recording, int(first)):
        start = min(start, int(calls.start_ns[first]))
    if last >= 0 and not _has_backward(recording, int(last)):
        end = max(end, int(calls.end_ns[last]))
    return start, end


def _has_backward(recording: Recording, call: int) -> bool:
    ops = recording.ops
    start, end = recording.calls.start_ns[call], recording.calls.end_ns[call]
    return bool(((ops.kind == OpKind.ENGINE) & (ops.start_ns >= start) & (ops.start_ns < end)).any())


def _with_backward(
    recording: Recording, attribution: Attribution, row_of_op: PerOp[Int], within: PerOp[Int]
) -> PerOp[Int]:
    """[O] the row here of every operator; a backward or recomputed one has that of its forward operator."""
    ops = recording.ops
    out = row_of_op.copy()
    twin = _recomputed_twins(recording, attribution, row_of_op, within)
    node, forward, parent = attribution.op_node.tolist(), attribution.op_forward.tolist(), ops.parent.tolist()
    settled = out.tolist()
    for row in range(len(settled)):
        if settled[row] >= 0:
            continue
        if row in twin:
            settled[row] = twin[row]
        elif node[row] >= 0 and 0 <= forward[row] < row:
            settled[row] = settled[forward[row]]
        elif parent[row] >= 0:
            settled[row] = settled[parent[row]]
    return np.array(settled, np.int64)


def _recomputed_twins(
    recording: Recording, attribution: Attribution, row_of_op: PerOp[Int], within: PerOp[Int]
) -> dict[int, int]:
    """Recomputed operators of a checkpointed function, each with the row of the operator that it repeats.

    The n-th of a name in a module repeats the n-th of that name in that module.
    """
    ops = recording.ops
    originals: dict[tuple[int, int, int], list[int]] = {}
    for op in np.flatnonzero((within >= 0) & (row_of_op >= 0)).tolist():
        key = (int(within[op]), int(ops.name[op]), int(attribution.op_module[op]))
        originals.setdefault(key, []).append(int(row_of_op[op]))
    if not originals:
        return {}
    functions = {key[0] for key in originals}
    seen: dict[tuple[int, tuple[int, int, int]], int] = {}
    twins: dict[int, int] = {}
    again = (ops.kind == OpKind.OPERATOR) & (attribution.op_node >= 0) & (attribution.op_forward >= 0)
    for row in np.flatnonzero(again).tolist():
        function = int(attribution.op_forward[row])
        if function not in functions or ops.kind[ops.parent[row]] != OpKind.BACKWARD_NODE:
            continue
        key = (function, int(ops.name[row]), int(attribution.op_module[row]))
        number = seen.get((int(ops.parent[row]), key), 0)
        seen[int(ops.parent[row]), key] = number + 1
        if number < len(originals.get(key, ())):
            twins[row] = originals[key][number]
    return twins


def sum_at(rows: Rows, values: Ints, length: int) -> Ints:
    """[length] the sum of the values of each row."""
    total = np.zeros(length, np.int64)
    np.add.at(total, rows, values)
    return total
