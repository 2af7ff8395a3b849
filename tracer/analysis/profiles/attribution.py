"""Who made it: module, source line, phase and step of every operator, and of every allocation through its operator.

Outside backward these are read off the enclosing calls. Inside backward there is no Python frame, so an autograd node
is followed back to the forward operator that made it, by autograd sequence number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import PurePosixPath, PureWindowsPath

import numpy as np
import numpy.typing as npt

from tracer.analysis.profiles.closures import backward_calls, closure_calls
from tracer.capture.recording import CallKind, OpKind, Recording

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STEP_PREFIX = "ProfilerStep#"
ZERO_GRAD_PREFIX = "Optimizer.zero_grad#"
OPTIMIZER_PREFIXES = ("Optimizer.step#", ZERO_GRAD_PREFIX)


class Phase(IntEnum):
    """What a training step was doing."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    OTHER = 3
    """Data, metrics and whatever else lies between."""


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """Owners of operators, columns [O], and of allocations, columns [A]. -1 stands for none.

    Attributes:
        modules: Distinct module paths: dotted names where the model was given, else class names from the outermost in.
        op_module: [O] Index in `modules`.
        op_frame: [O] Row in `Recording.frames`: the innermost line of user code.
        op_phase: [O] `Phase`.
        op_step: [O] Index of the step in the recording, from 0.
        op_forward: [O] For backward operators the forward operator they belong to.
        op_node: [O] Row of the innermost enclosing autograd node.
        op_recomputed: [O] Whether it runs a module's forward again inside backward, as checkpointing does.
        allocation_module: [A] As above, for each row of `Recording.allocations`.
        allocation_frame: [A]
        allocation_phase: [A]
        allocation_step: [A]
        step_names: Names of the steps, `ProfilerStep#2` and so on.
    """

    modules: tuple[str, ...]
    op_module: Ints
    op_frame: Ints
    op_phase: Ints
    op_step: Ints
    op_forward: Ints
    op_node: Ints
    op_recomputed: Bools
    allocation_module: Ints
    allocation_frame: Ints
    allocation_phase: Ints
    allocation_step: Ints
    step_names: tuple[str, ...] = field(default=())


def attribute(recording: Recording, *, module_names: Mapping[int, str] | None = None) -> Attribution:
    """Find the owner of every operator and allocation.

    Args:
        recording: One cycle.
        module_names: Dotted names of live modules by `id()`, as the recording numbers modules.

    Returns:
        Owners; what cannot be told is -1 or OTHER.
    """
    return _Attributor(recording, module_names or {}).run()


def _is_whole(file: str) -> bool:
    """Whether a path is absolute on the machine that made the recording, which may be another."""
    return PurePosixPath(file).is_absolute() or PureWindowsPath(file).is_absolute()


class _Attributor:
    def __init__(self, recording: Recording, module_names: Mapping[int, str]) -> None:
        self.recording = recording
        self.module_names = module_names
        self.module_paths: dict[str, int] = {}
        self.first_path: dict[int, str] = {}
        self.frame_rank = self._frame_ranks()

    def _frame_ranks(self) -> Ints:
        """[F] the user's code 2, an installed package's 1, torch's and Python's 0, this program's -1.

        A package is named where no user code called. What called this program explains nothing, so that its frames end
        a search.
        """
        strings, frames = self.recording.strings, self.recording.frames
        whole = {file: int(_is_whole(strings[file])) for file in np.unique(frames.file).tolist()}
        other = np.array([whole[file] for file in frames.file.tolist()], np.int64)
        return np.select([frames.user.astype(np.bool_), frames.own.astype(np.bool_)], [2, -1], other)

    def run(self) -> Attribution:
        recording = self.recording
        ops, allocations = recording.ops, recording.allocations
        call_module, call_frame = self._calls()
        node, forward = self._forward_ops()
        op_module, op_frame = self._own(call_module, call_frame)
        recomputed = self._recomputed(node)
        # Work of the engine belongs to the forward operator whose node it runs. A recomputation has lines of its own,
        # and modules where it calls some; what it does outside of them is known from when it was done first.
        of_engine = (node >= 0) & (forward >= 0) & ~recomputed
        op_module[of_engine] = op_module[forward[of_engine]]
        op_frame[of_engine] = op_frame[forward[of_engine]]
        self._modules_of_first_run(recomputed, node, op_module, op_frame)
        op_step, step_names = self._steps(ops.start_ns)
        windows = self._windows(node, forward, op_module)
        op_phase = self._phases(windows, node, ops.start_ns, op_module)

        has_op, has_call = allocations.op >= 0, allocations.call >= 0
        allocation_module, allocation_frame = np.full((2, len(allocations.op)), -1, np.int64)
        allocation_module[has_call] = call_module[allocations.call[has_call]]
        allocation_frame[has_call] = call_frame[allocations.call[has_call]]
        allocation_node = np.full(len(allocations.op), -1, np.int64)
        for column, source in (
            (allocation_module, op_module),
            (allocation_frame, op_frame),
            (allocation_node, node),
        ):
            column[has_op] = source[allocations.op[has_op]]
        return Attribution(
            modules=tuple(self.module_paths),
            op_module=op_module,
            op_frame=op_frame,
            op_phase=op_phase,
            op_step=op_step,
            op_forward=forward,
            op_node=node,
            op_recomputed=recomputed,
            allocation_module=allocation_module,
            allocation_frame=allocation_frame,
            allocation_phase=self._phases(windows, allocation_node, allocations.time_ns, allocation_module),
            allocation_step=self._steps(allocations.time_ns)[0],
            step_names=step_names,
        )

    # ----------------------------------------------------------------------------------------------- Python's calls
    def _calls(self) -> tuple[Ints, Ints]:
        """[C] module and innermost user frame of every call, parents first."""
        recording, calls = self.recording, self.recording.calls
        rank = self.frame_rank.tolist()
        names = [recording.strings[name] for name in recording.modules.name.tolist()]
        pointers = recording.modules.self_ptr.tolist()
        module, frame = [-1] * len(calls.kind), [-1] * len(calls.kind)
        rows = zip(calls.kind.tolist(), calls.parent.tolist(), calls.frame.tolist(), calls.module.tolist(), strict=True)
        paths: list[str] = []
        for row, (kind, parent, place, which) in enumerate(rows):
            module[row] = module[parent] if parent >= 0 else -1
            outer = frame[parent] if parent >= 0 else -1
            if rank[place] < 0:
                frame[row] = outer if outer >= 0 and rank[outer] == 2 else -1
            else:
                frame[row] = place if rank[place] and (outer < 0 or rank[place] >= rank[outer]) else outer
            if kind == CallKind.MODULE:
                path = self._module_path(paths, module[row], pointers[which], names[which])
                module[row] = self.module_paths.setdefault(path, len(self.module_paths))
                if module[row] == len(paths):
                    paths.append(path)
        return np.array(module, np.int64), np.array(frame, np.int64)

    def _module_path(self, paths: list[str], parent: int, pointer: int, name: str) -> str:
        known = self.module_names.get(pointer)
        if known is not None:
            return known or name
        # Recomputation calls a module without those around it, which its first call has shown.
        if parent < 0 and pointer in self.first_path:
            return self.first_path[pointer]
        return self.first_path.setdefault(pointer, f"{paths[parent]}.{name}" if parent >= 0 else name)

    def _own(self, call_module: Ints, call_frame: Ints) -> tuple[Ints, Ints]:
        """[O] module and user frame of every operator, from the call that it was made in."""
        ops, calls = self.recording.ops, self.recording.calls
        module, frame = np.full((2, len(ops.name)), -1, np.int64)
        called = ops.call >= 0
        module[called] = call_module[ops.call[called]]
        frame[called] = call_frame[ops.call[called]]
        # `a + b` makes no call: the operator runs in the called function itself, behind the line that was seen last,
        # or, where none was, in the function that begins with its `def` line.
        function = np.full(len(ops.name), -1, np.int64)
        function[called] = calls.function[ops.call[called]]
        rank = np.append(self.frame_rank, 0)  # so that row -1, no frame, is below all
        direct = (function >= 0) & (rank[function] > 0) & (rank[function] >= rank[frame])
        seen = ops.inline_frame >= 0
        frame[direct & seen] = ops.inline_frame[direct & seen]
        frame[direct & ~seen] = function[direct & ~seen]
        return module, frame

    # ------------------------------------------------------------------------------------------- backward to forward
    def _forward_ops(self) -> tuple[Ints, Ints]:
        """[O] innermost enclosing autograd node, and the forward operator that made that node.

        An operator's sequence number is read on entry: it is the number that the next node on its thread will get. So
        of the operators outside backward, the last one on the thread that entered with this number or a smaller one
        made the node. Numbers count per thread; a node made while another runs (reentrant checkpointing) is looked for
        on its own thread first.
        """
        ops = self.recording.ops
        kind, parent, number = ops.kind.tolist(), ops.parent.tolist(), ops.sequence_number.tolist()
        thread, call = ops.thread.tolist(), ops.call.tolist()
        node, forward = [-1] * len(kind), [-1] * len(kind)
        makers = _Makers()
        last_maker = -1
        for row in range(len(kind)):
            above = parent[row]
            outer_node = node[above] if above >= 0 else -1
            if kind[row] == OpKind.OPERATOR:
                node[row] = outer_node
                forward[row] = forward[above] if above >= 0 and outer_node >= 0 else -1
                if number[row] >= 0:
                    makers.add(thread[row], number[row], row)
                continue
            node[row] = row
            if number[row] >= 0:
                # The CPU runs backward on the thread that asked for it, below its call; a GPU on a thread of its own,
                # whose own nodes come from recomputation only.
                nested = outer_node >= 0 and kind[row] == OpKind.ENGINE
                forward[row] = makers.find(thread[row], number[row], own_first=nested or call[row] >= 0)
                last_maker = forward[row] if forward[row] >= 0 else last_maker
            else:
                # AccumulateGrad has no number. The engine runs it at once, before any numbered node, so its gradient
                # comes from the node before it.
                forward[row] = forward[above] if above >= 0 and forward[above] >= 0 else last_maker
        return np.array(node, np.int64), np.array(forward, np.int64)

    def _recomputed(self, node: Ints) -> Bools:
        """[O] operators that Python runs inside an autograd node with gradients on, as checkpointing does.

        The backward of a custom autograd.Function is Python as well, but runs with gradients off.
        """
        ops = self.recording.ops
        inside = (node >= 0) & (ops.kind == OpKind.OPERATOR) & (ops.sequence_number >= 0)
        return np.asarray(inside & (ops.call != np.where(node >= 0, ops.call[node], -1)), np.bool_)

    def _modules_of_first_run(self, recomputed: Bools, node: Ints, op_module: Ints, op_frame: Ints) -> None:
        """Give recomputed operators outside any module call the module of the same operator at the same line."""
        lost = recomputed & (op_module < 0)
        if not lost.any():
            return
        name = self.recording.ops.name
        module_at: dict[tuple[int, int], int] = {}
        for op in np.flatnonzero((node < 0) | lost).tolist():
            place = (int(name[op]), int(op_frame[op]))
            if lost[op]:
                op_module[op] = module_at.get(place, -1)
            else:
                module_at[place] = int(op_module[op])

    # ------------------------------------------------------------------------------------------------ steps and phases
    def _steps(self, times_ns: Ints) -> tuple[Ints, tuple[str, ...]]:
        """Index of the step that encloses each time, -1 outside."""
        start, end, names = self._spans((STEP_PREFIX,))
        return _enclosing(start, end, times_ns), names

    def _spans(self, prefixes: tuple[str, ...]) -> tuple[Ints, Ints, tuple[str, ...]]:
        recording, spans = self.recording, self.recording.spans
        which = [
            row for row, name in enumerate(spans.name.tolist()) if recording.strings[name].startswith(prefixes)
        ]  # fmt: skip
        rows = np.array(which, np.int64)
        rows = rows[np.argsort(spans.start_ns[rows], kind="stable")]
        names = tuple(recording.strings[name] for name in spans.name[rows].tolist())
        return spans.start_ns[rows], spans.end_ns[rows], names

    def _windows(self, node: Ints, forward: Ints, op_module: Ints) -> dict[Phase, tuple[Ints, Ints]]:
        """Start and end of each stretch of forward and backward work, in order.

        Forward work is what a module calls or what some autograd node goes back to; a stretch lasts until backward or
        the optimizer begins, and takes in what lies between, such as a loss's handling of its target.
        """
        ops = self.recording.ops
        kind = np.full(len(ops.name), -1, np.int64)
        kind[self._in_optimizer(ops.start_ns)] = Phase.OPTIMIZER
        kind[op_module >= 0] = Phase.FORWARD
        kind[forward[forward >= 0]] = Phase.FORWARD
        kind[node >= 0] = Phase.BACKWARD
        rows = np.flatnonzero(kind >= 0)
        rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
        step = self._steps(ops.start_ns[rows])[0]
        begins = np.ones(len(rows), bool)
        begins[1:] = (kind[rows][1:] != kind[rows][:-1]) | (step[1:] != step[:-1])
        first = np.flatnonzero(begins)
        stretch_start = ops.start_ns[rows][first]
        stretch_end = np.maximum.reduceat(ops.end_ns[rows], first) if len(first) else stretch_start
        forward_work, backward_work = (kind[rows][first] == phase for phase in (Phase.FORWARD, Phase.BACKWARD))
        called_start, called_end = self._backward_calls()
        return {
            Phase.FORWARD: (stretch_start[forward_work], stretch_end[forward_work]),
            Phase.BACKWARD: _merged(
                np.concatenate([stretch_start[backward_work], called_start]),
                np.concatenate([stretch_end[backward_work], called_end]),
            ),
        }

    def _backward_calls(self) -> tuple[Ints, Ints]:
        """Start and end of the calls that ask for a backward pass, which make the first gradient themselves."""
        calls, rows = self.recording.calls, backward_calls(self.recording)
        return calls.start_ns[rows], calls.end_ns[rows]

    def _in_optimizer(self, times_ns: Ints) -> Bools:
        """Whether an optimizer works at each time; what it calls back to have the loss evaluated is not its work."""

        def within(spans: tuple[Ints, Ints]) -> Bools:
            return np.asarray(_enclosing(*_merged(*spans), times_ns) >= 0, np.bool_)

        calls, rows = self.recording.calls, closure_calls(self.recording)
        closures = (calls.start_ns[rows], calls.end_ns[rows])
        zero_grads, all_spans = self._spans((ZERO_GRAD_PREFIX,))[:2], self._spans(OPTIMIZER_PREFIXES)[:2]
        return within(zero_grads) | (within(all_spans) & ~within(closures))

    def _phases(self, windows: dict[Phase, tuple[Ints, Ints]], node: Ints, times_ns: Ints, module: Ints) -> Ints:
        """Phase of each row. Inside an optimizer that evaluates the model (LBFGS), forward and backward stay such."""
        phase = np.full(len(times_ns), int(Phase.OTHER), np.int64)
        phase[self._in_optimizer(times_ns)] = Phase.OPTIMIZER
        for which in (Phase.FORWARD, Phase.BACKWARD):
            phase[_enclosing(*windows[which], times_ns) >= 0] = which
        phase[module >= 0] = Phase.FORWARD
        phase[node >= 0] = Phase.BACKWARD
        return phase


class _Makers:
    """Forward operators per thread, in order, by the sequence number that they entered with."""

    def __init__(self) -> None:
        self.threads: dict[int, tuple[list[int], list[int]]] = {}

    def add(self, thread: int, number: int, row: int) -> None:
        numbers, rows = self.threads.setdefault(thread, ([], []))
        numbers.append(number)
        rows.append(row)

    def find(self, thread: int, number: int, *, own_first: bool) -> int:
        """The operator that made the node of this number, or -1."""
        for candidate in sorted(self.threads, key=lambda other: (other == thread) != own_first):
            numbers, rows = self.threads[candidate]
            # Ascending: recomputation goes on above all former numbers of its thread.
            at = bisect_right(numbers, number) - 1
            if at >= 0:
                return rows[at]
        return -1


def _merged(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Stretches in order, those that overlap made one."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order]) if len(end) else end
    apart = np.ones(len(start), bool)
    apart[1:] = start[1:] > end[:-1]
    first = np.flatnonzero(apart)
    last = np.append(first[1:], len(start)) - 1
    return start[first], end[last] if len(first) else end


def _enclosing(start: Ints, end: Ints, times_ns: Ints) -> Ints:
    """Index of the span that encloses each time, -1 where none does; spans are in order and do not overlap."""
    if not len(start):
        return np.full(len(times_ns), -1, np.int64)
    at = np.searchsorted(start, times_ns, side="right") - 1
    return np.where((at >= 0) & (times_ns < end[at]), at, -1).astype(np.int64)
