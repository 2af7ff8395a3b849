"""Attribution of every operator, and of every allocation through its operator: module, line, phase and step.

Outside backward these are read off the enclosing calls. Inside backward there is no Python frame, so an autograd node
is followed back to the forward operator that made it, by autograd sequence number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tracer.arrays import Bool, Bools, Int, Ints, PerAllocation, PerCall, PerFrame, PerOp, Rows
from tracer.blocks.from_recording.collectives import carried_modules, made_for_collectives
from tracer.blocks.from_recording.origins import CompiledOrigins
from tracer.blocks.from_recording.source_lines import CodeOwner, line_of_frame, owner_of_frames
from tracer.blocks.from_recording.time_spans import enclosing, merged
from tracer.blocks.table import Phase
from tracer.capture.recording import CallKind, OpKind, Recording
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import (
    COMPILERS_MODULES,
    OPTIMIZER_PREFIXES,
    STEP_PREFIX,
    STEP_WRAPPER,
    ZERO_GRAD_PREFIX,
    is_a_decorators,
    is_an_optimizers,
    is_asking_for_backward,
)


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """Owners of operators, columns [O], and of allocations, columns [A]. -1 stands for none."""

    # Distinct module paths: dotted names where the model was given, else class names from the outermost in.
    modules: tuple[str, ...]
    op_module: PerOp[Int]  # [O] Index in `modules`
    # [O] Row in `Recording.frames`: the innermost line of the user or a library, as `owner_of_frames` says.
    op_frame: PerOp[Int]
    op_phase: PerOp[Int]  # [O] `Phase`
    op_step: PerOp[Int]  # [O] Index of the step in the recording, from 0
    op_forward: PerOp[Int]  # [O] For backward operators the forward operator they belong to
    op_node: PerOp[Int]  # [O] Row of the innermost enclosing autograd node
    op_recomputed: PerOp[Bool]  # [O] Whether it runs a module's forward again inside backward, as checkpointing does
    allocation_module: PerAllocation[Int]  # [A] As above, for each row of `Recording.allocations`
    allocation_frame: PerAllocation[Int]  # [A]
    allocation_caller: PerAllocation[Int]  # [A]
    allocation_phase: PerAllocation[Int]  # [A]
    allocation_step: PerAllocation[Int]  # [A]
    allocation_is_collectives: PerAllocation[Bool]  # [A] Whether it is a buffer that FSDP or DDP made for a collective
    frame_owner: PerFrame[Int]  # [F] `CodeOwner` each row of `Recording.frames` is
    step_names: tuple[str, ...] = field(default=())  # Names of the steps, `ProfilerStep#2` and so on
    origins: CompiledOrigins | None = None  # What compiled regions allocated; None where nothing compiled ran


def attribute(recording: Recording, *, module_names: Mapping[int, str] | None = None) -> Attribution:
    """Find the owner of every operator and allocation; what cannot be told is -1 or OTHER."""
    return _Attributor(recording, module_names or {}).run()


class _Attributor:
    def __init__(self, recording: Recording, module_names: Mapping[int, str]) -> None:
        self.recording = recording
        self.module_names = module_names
        self.module_paths: dict[str, int] = {}
        self.first_path: dict[int, str] = {}
        self.whose = owner_of_frames(recording)
        self.lines = _LineFinder(len(self.whose))

    def run(self) -> Attribution:
        recording = self.recording
        ops, allocations = recording.ops, recording.allocations
        call_module, call_line = self._calls()
        node, forward = self._forward_ops()
        op_module, op_line = self._own(call_module, call_line)
        called = self._called_in_backward(node)
        recomputed = called & (ops.sequence_number >= 0)
        self._give_to_forward((node >= 0) & (forward >= 0) & ~recomputed, called, node, forward, op_module, op_line)
        self._modules_of_first_run(recomputed, node, op_module, op_line)
        op_step, step_names = self._steps(ops.start_ns)
        steps_inside = called & self._in_optimizer_inside_backward(ops.start_ns)
        op_module[steps_inside] = -1
        windows = self._windows(node, forward, op_module, steps_inside)
        op_phase = self._phases(windows, node, ops.start_ns, op_module)
        op_phase[steps_inside] = Phase.OPTIMIZER

        has_op, has_call = allocations.op >= 0, allocations.call >= 0
        allocation_module, allocation_line = np.full((2, len(allocations.op)), -1, np.int64)
        allocation_module[has_call] = call_module[allocations.call[has_call]]
        allocation_line[has_call] = call_line[allocations.call[has_call]]
        allocation_node = np.full(len(allocations.op), -1, np.int64)
        for column, source in (
            (allocation_module, op_module),
            (allocation_line, op_line),
            (allocation_node, node),
        ):
            column[has_op] = source[allocations.op[has_op]]
        allocation_phase = self._phases(windows, allocation_node, allocations.time_ns, allocation_module)
        allocation_phase[has_op] = np.where(
            steps_inside[allocations.op[has_op]], Phase.OPTIMIZER, allocation_phase[has_op]
        )
        is_collectives = made_for_collectives(recording)
        for row, name in carried_modules(recording, is_collectives, self.module_names).items():
            allocation_module[row] = self.module_paths.setdefault(name or self._root(), len(self.module_paths))
        return Attribution(
            modules=tuple(self.module_paths),
            op_module=op_module,
            op_frame=self.lines.frame(op_line),
            op_phase=op_phase,
            op_step=op_step,
            op_forward=forward,
            op_node=node,
            op_recomputed=recomputed,
            allocation_module=allocation_module,
            allocation_frame=self.lines.frame(allocation_line),
            allocation_caller=self.lines.caller(allocation_line),
            allocation_phase=allocation_phase,
            allocation_step=self._steps(allocations.time_ns)[0],
            allocation_is_collectives=is_collectives,
            frame_owner=self.whose,
            step_names=step_names,
        )

    # ----------------------------------------------------------------------------------------------- Python's calls
    def _calls(self) -> tuple[PerCall[Int], PerCall[Int]]:
        """[C] module and line of every call: the innermost of a library or the user, and the user's innermost."""
        recording, calls = self.recording, self.recording.calls
        whose = [*self.whose.tolist(), CodeOwner.TORCH]  # of row -1, no frame
        names = [recording.strings[name] for name in recording.modules.name.tolist()]
        pointers = recording.modules.self_ptr.tolist()
        module, frame, caller = ([-1] * len(calls.kind) for _ in range(3))
        rows = zip(calls.kind.tolist(), calls.parent.tolist(), calls.frame.tolist(), calls.module.tolist(), strict=True)
        paths: list[str] = []
        asked_by = self._calls_of_engine()
        for row, (kind, parent, called_from, which) in enumerate(rows):  # parents first
            module[row] = module[parent] if parent >= 0 else -1
            above = parent if parent >= 0 else asked_by.get(row, -1)
            frame[row], caller[row] = (frame[above], caller[above]) if above >= 0 else (-1, -1)
            if whose[called_from] == CodeOwner.USER:
                frame[row] = caller[row] = called_from
            elif whose[called_from] == CodeOwner.LIBRARY:
                frame[row] = called_from
            elif whose[called_from] == CodeOwner.TRACER:
                frame[row] = caller[row]
            if kind == CallKind.MODULE:
                path = self._module_path(paths, module[row], pointers[which], names[which])
                module[row] = self.module_paths.setdefault(path, len(self.module_paths))
                if module[row] == len(paths):
                    paths.append(path)
        return np.array(module, np.int64), self.lines.of(np.array(frame, np.int64), np.array(caller, np.int64))

    def _calls_of_engine(self) -> dict[int, int]:
        """The call that asked for backward, for each outermost call on a thread of the engine's, as of a GPU.

        There a checkpoint's forward has nothing above it; on the CPU it runs below the call of `backward`.
        """
        calls, asking = self.recording.calls, backward_calls(self.recording)
        outermost = np.flatnonzero(calls.parent < 0)
        call_of_op: dict[int, int] = {}
        for ask in asking.tolist():
            inside = (calls.start_ns[outermost] >= calls.start_ns[ask]) & (calls.end_ns[outermost] <= calls.end_ns[ask])
            other = outermost[inside & (calls.thread[outermost] != calls.thread[ask]) & (outermost > ask)]
            call_of_op |= dict.fromkeys(other.tolist(), ask)
        return call_of_op

    def _module_path(self, paths: list[str], parent: int, pointer: int, name: str) -> str:
        known = self.module_names.get(pointer)
        if known is not None:
            # The model itself has no name but its class's; torch numbers the modules of a class.
            return known or _class_of(name)
        # What torch.compile puts around and into a model are modules too, and no part of it.
        if parent >= 0 and name.startswith(COMPILERS_MODULES):
            return paths[parent]
        # Recomputation calls a module without those around it, which its first call has shown.
        if parent < 0 and pointer in self.first_path:
            return self.first_path[pointer]
        return self.first_path.setdefault(pointer, f"{paths[parent]}.{name}" if parent >= 0 else name)

    def _root(self) -> str:
        """Name in rows of the model itself, which has no dotted name: its class."""
        modules, strings = self.recording.modules, self.recording.strings
        named = zip(modules.self_ptr.tolist(), modules.name.tolist(), strict=True)
        return next((_class_of(strings[name]) for pointer, name in named if self.module_names.get(pointer) == ""), "")

    def _own(self, call_module: PerCall[Int], call_line: PerCall[Int]) -> tuple[PerOp[Int], PerOp[Int]]:
        """[O] module and line of every operator, from the call that it was made in."""
        ops, calls = self.recording.ops, self.recording.calls
        module, line = np.full((2, len(ops.name)), -1, np.int64)
        called = ops.call >= 0
        module[called] = call_module[ops.call[called]]
        line[called] = call_line[ops.call[called]]
        # `a + b` makes no call: the operator runs in the called function itself, behind the line that was seen last,
        # or, where none was, in the function that begins with its `def` line.
        function = np.full(len(ops.name), -1, np.int64)
        function[called] = calls.function[ops.call[called]]
        whose = np.append(self.whose, CodeOwner.TORCH)  # of row -1, no frame
        direct = whose[function] > CodeOwner.TORCH
        frame = np.where(ops.inline_frame >= 0, ops.inline_frame, function)[direct]
        users = whose[function[direct]] == CodeOwner.USER
        line[direct] = self.lines.of(frame, np.where(users, frame, self.lines.user(line[direct])))
        return module, line

    # ------------------------------------------------------------------------------------------- backward to forward
    def _forward_ops(self) -> tuple[PerOp[Int], PerOp[Int]]:
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

    def _called_in_backward(self, node: PerOp[Int]) -> PerOp[Bool]:
        """[O] operators that Python calls inside an autograd node: in a hook, in a custom function's backward.

        Those that run with gradients on are done again, as checkpointing does.
        """
        ops = self.recording.ops
        inside = (node >= 0) & (ops.kind == OpKind.OPERATOR)
        return np.asarray(inside & (ops.call != np.where(node >= 0, ops.call[node], -1)), np.bool_)

    def _give_to_forward(
        self,
        of_engine: PerOp[Bool],
        called: PerOp[Bool],
        node: PerOp[Int],
        forward: PerOp[Int],
        op_module: PerOp[Int],
        op_line: PerOp[Int],
    ) -> None:
        """Work of the engine belongs to the forward operator whose node it runs.

        A recomputation has lines of its own, and modules where it calls some; what it does outside of them is known
        from when it was done first. What Python calls inside backward has the line that it was called from, where that
        is not the line that asked for backward. The second backward goes back to the first, and through it to forward.
        """
        has_line = called & (op_line >= 0) & (op_line != np.where(node >= 0, op_line[node], -1))
        has_module = called & (op_module >= 0) & (op_module != np.where(node >= 0, op_module[node], -1))
        root = np.where(of_engine, forward, -1)
        while (inner := (root >= 0) & of_engine[root] & ~has_line[root] & (forward[root] < root)).any():
            root[inner] = forward[root[inner]]
        rows = np.flatnonzero(of_engine & ~has_module)
        op_module[rows] = op_module[root[rows]]
        rows = np.flatnonzero(of_engine & ~has_line)
        op_line[rows] = op_line[root[rows]]

    def _modules_of_first_run(
        self, recomputed: PerOp[Bool], node: PerOp[Int], op_module: PerOp[Int], op_line: PerOp[Int]
    ) -> None:
        """Give recomputed operators outside any module call the module of the same operator at the same line."""
        lost = recomputed & (op_module < 0)
        if not lost.any():
            return
        name, frame = self.recording.ops.name, self.lines.frame(op_line)
        module_at: dict[tuple[int, int], int] = {}
        for op in np.flatnonzero((node < 0) | lost).tolist():
            operator = (int(name[op]), int(frame[op]))
            if lost[op]:
                op_module[op] = module_at.get(operator, -1)
            else:
                module_at[operator] = int(op_module[op])

    # ------------------------------------------------------------------------------------------------ steps and phases
    def _steps(self, times_ns: Ints) -> tuple[Ints, tuple[str, ...]]:
        start, end, names = self._spans((STEP_PREFIX,))
        return enclosing(start, end, times_ns), names

    def _spans(self, prefixes: tuple[str, ...]) -> tuple[Ints, Ints, tuple[str, ...]]:
        spans, rows = self.recording.spans, self.recording.spans_named(prefixes)
        names = tuple(self.recording.strings[name] for name in spans.name[rows].tolist())
        return spans.start_ns[rows], spans.end_ns[rows], names

    def _windows(
        self, node: PerOp[Int], forward: PerOp[Int], op_module: PerOp[Int], steps_inside: PerOp[Bool]
    ) -> dict[Phase, tuple[Ints, Ints]]:
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
        kind[steps_inside] = Phase.OPTIMIZER
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
            Phase.BACKWARD: merged(
                np.concatenate([stretch_start[backward_work], called_start]),
                np.concatenate([stretch_end[backward_work], called_end]),
            ),
        }

    def _backward_calls(self) -> tuple[Ints, Ints]:
        """Start and end of the calls that ask for a backward pass, which make the first gradient themselves."""
        calls, rows = self.recording.calls, backward_calls(self.recording)
        return calls.start_ns[rows], calls.end_ns[rows]

    def _in_optimizer(self, times_ns: Ints) -> Bools:
        """Return True for each time at which an optimizer works; a closure that evaluates the loss is not its work."""

        def within(spans: tuple[Ints, Ints]) -> Bools:
            return np.asarray(enclosing(*merged(*spans), times_ns) >= 0, np.bool_)

        calls, rows = self.recording.calls, closure_calls(self.recording)
        closures = (calls.start_ns[rows], calls.end_ns[rows])
        zero_grads, all_spans = self._spans((ZERO_GRAD_PREFIX,))[:2], self._spans(OPTIMIZER_PREFIXES)[:2]
        return within(zero_grads) | (within(all_spans) & ~within(closures))

    def _in_optimizer_inside_backward(self, times_ns: Ints) -> Bools:
        """Return True for each time at which an optimizer works that backward called, as by a hook on a gradient."""
        start, end = self._spans(OPTIMIZER_PREFIXES)[:2]
        inside = enclosing(*merged(*self._backward_calls()), start) >= 0
        return np.asarray(enclosing(*merged(start[inside], end[inside]), times_ns) >= 0, np.bool_)

    def _phases(self, windows: dict[Phase, tuple[Ints, Ints]], node: Ints, times_ns: Ints, module: Ints) -> Ints:
        """Phase of each row. Inside an optimizer that evaluates the model (LBFGS), forward and backward stay such."""
        phase = np.full(len(times_ns), int(Phase.OTHER), np.int64)
        phase[self._in_optimizer(times_ns)] = Phase.OPTIMIZER
        for which in (Phase.FORWARD, Phase.BACKWARD):
            phase[enclosing(*windows[which], times_ns) >= 0] = which
        phase[module >= 0] = Phase.FORWARD
        phase[node >= 0] = Phase.BACKWARD
        return phase


def _class_of(name: str) -> str:
    return name.rpartition("_")[0] or name


class _LineFinder:
    """A line and the user's line that led to it as one number; -1 is none."""

    def __init__(self, num_frames: int) -> None:
        self._base = num_frames + 1

    def of(self, frame: Ints, user: Ints) -> Ints:
        """One number for each pair of a line and the user's line that led to it."""
        return np.where(frame >= 0, frame * self._base + user + 1, -1)

    def frame(self, line: Ints) -> Ints:
        """Rows of the lines themselves."""
        return np.where(line >= 0, line // self._base, -1)

    def user(self, line: Ints) -> Ints:
        """Rows of the user's lines."""
        return np.where(line >= 0, line % self._base - 1, -1)

    def caller(self, line: Ints) -> Ints:
        """Rows of the user's lines where they are others than the lines themselves."""
        user = self.user(line)
        return np.where(user == self.frame(line), -1, user)


class _Makers:
    """Forward operators per thread, in order, by the sequence number that they entered with."""

    def __init__(self) -> None:
        self.threads: dict[int, tuple[list[int], list[int]]] = {}

    def add(self, thread: int, number: int, row: int) -> None:
        numbers, rows = self.threads.setdefault(thread, ([], []))
        numbers.append(number)
        rows.append(row)

    def find(self, thread: int, number: int, *, own_first: bool) -> int:
        """The forward operator that made an autograd node, or -1.

        Args:
            own_first: Whether operators of `thread` come first; else those of others.
        """
        for candidate in sorted(self.threads, key=lambda other: (other == thread) != own_first):
            numbers, rows = self.threads[candidate]
            # Ascending: recomputation goes on above all former numbers of its thread.
            at = bisect_right(numbers, number) - 1
            if at >= 0:
                return rows[at]
        return -1


def frames_of_op(recording: Recording, attribution: Attribution, op: int) -> tuple[SourceLine, ...]:
    """The lines of the user and of libraries through which an operator was called, innermost first.

    Callers of the user's outermost line, such as a launcher, are left out.
    """
    rows = [int(attribution.op_frame[op])] if attribution.op_frame[op] >= 0 else []
    is_ours_passed = False
    whose_of = attribution.frame_owner.item  # quicker than an index, of which there are many
    for frame in _call_frames(recording, int(recording.ops.call[op])):
        whose = whose_of(frame)
        is_ours_passed |= bool(whose == CodeOwner.TRACER)
        is_named = whose == CodeOwner.USER or (whose == CodeOwner.LIBRARY and not is_ours_passed)
        if is_named and (not rows or frame != rows[-1]):
            rows.append(frame)
    users = [at for at, row in enumerate(rows) if attribution.frame_owner[row] == CodeOwner.USER]
    rows = rows[: users[-1] + 1] if users else rows
    return tuple(line for row in rows if (line := line_of_frame(recording, row)) is not None)


def _call_frames(recording: Recording, call: int) -> Iterator[int]:
    frame_of, parent_of = recording.calls.frame.item, recording.calls.parent.item
    while call >= 0:
        if (frame := frame_of(call)) >= 0:
            yield frame
        call = parent_of(call)


def backward_calls(recording: Recording) -> Rows:
    """Rows of the calls of `torch.autograd.backward` and `grad`, through which every backward pass is asked for."""
    return recording.calls_of(is_asking_for_backward)


def closure_calls(recording: Recording) -> Rows:
    """Rows of the calls that an optimizer made to have the loss evaluated: those that lead to a backward pass.

    With a closure, as LBFGS wants one and Lightning always gives one, the whole training step runs in `Optimizer.step`.
    A closure is what torch's optimizer calls; of one outside torch it is what its `step` calls.
    """
    rows = {_closure(recording, row) for row in backward_calls(recording).tolist()}
    return np.array(sorted(rows - {-1}), np.int64)


def _closure(recording: Recording, row: int) -> int:
    """The outermost call below the innermost code of optimizers above a call; -1 if there is none above it."""
    calls = recording.calls
    path: list[int] = []
    while row >= 0 and not is_an_optimizers(_function(recording, row)[0]):
        path.append(row)
        row = int(calls.parent[row])
    if row < 0:
        return -1
    is_hook = _function(recording, row)[1] == STEP_WRAPPER
    for call in reversed(path):
        file, name = _function(recording, call)
        if is_a_decorators(file):
            continue
        if is_hook and name == "step":
            is_hook = False
            continue
        return call
    return -1


def _function(recording: Recording, call: int) -> tuple[str, str]:
    function = int(recording.calls.function[call])
    if function < 0:
        return "", ""
    frames, strings = recording.frames, recording.strings
    return strings[int(frames.file[function])], strings[int(frames.function[function])]
