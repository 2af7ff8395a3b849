"""A cycle's recording as columns: everything that the analyses know of it.

`event_tree` fills them from the profiler's event tree, which costs about 5 KB an event; the columns cost about 0.2 KB.

Shapes: A allocations and frees, K tensor storages, N data-flow nodes, E edges, O operators, C calls, S spans,
F frames, M modules, L pieces of work that operators launched on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.ma  # np.unique would load it later, when a script may have replaced names of numpy

from tracer.arrays import (
    Bool,
    Bools,
    ColumnTable,
    Int,
    Ints,
    PerAllocation,
    PerCall,
    PerEdge,
    PerFrame,
    PerKernel,
    PerKey,
    PerModule,
    PerNode,
    PerOp,
    PerSpan,
    Rows,
)
from tracer.capture.torch_names import STEP_PREFIX


class OpKind(IntEnum):
    """Kind of a row of `Ops`."""

    OPERATOR = 0
    """An operator, or a custom autograd.Function's forward."""
    ENGINE = 1
    """`autograd::engine::evaluate_function: X`, the autograd engine at work on node X."""
    BACKWARD_NODE = 2
    """The node X itself."""


class CallKind(IntEnum):
    """Kind of a row of `Calls`."""

    PYTHON = 0
    C_FUNCTION = 1
    MODULE = 2
    """A call of an nn.Module."""
    OPTIMIZER = 3
    """A call that named an optimizer; it comes before the step's own operators and does not enclose them."""


@dataclass(frozen=True, slots=True, eq=False)
class Allocations(ColumnTable):
    """Allocations and frees in the order of the event tree, which on one thread is the allocator's. Columns [A]."""

    time_ns: PerAllocation[Int]
    address: PerAllocation[Int]
    size_bytes: PerAllocation[Int]
    """Negative for a free."""
    allocation_id: PerAllocation[Int]
    """A new number for every allocation of an address; the free carries the same."""
    key: PerAllocation[Int]
    """Row in `Keys`, or -1 for memory that no operator ever saw as a tensor."""
    device: PerAllocation[Int]
    """Index in `Recording.devices`."""
    total_allocated_bytes: PerAllocation[Int]
    """The allocator's own counter after this event; on the CPU it starts at 0 with the first recording.

    -1 for an assumed free, which no allocator reported.
    """
    total_reserved_bytes: PerAllocation[Int]
    """Reserved memory, counted in the same way; 0 on the CPU."""
    op: PerAllocation[Int]
    """Row in `Ops` of the innermost enclosing operator called from Python or from the engine, or -1."""
    call: PerAllocation[Int]
    """Row in `Calls` of the innermost enclosing call, or -1."""
    assumed: PerAllocation[Bool]
    """True for a free without a record, put in because the address was handed out again."""


@dataclass(frozen=True, slots=True, eq=False)
class Keys(ColumnTable):
    """Tensor storages as torch's profiler tells them apart, in torch's sort order. Columns [K]."""

    id: PerKey[Int]
    """Groups the allocations that one tensor showed in turn (`x.data = y`, resize)."""
    allocation_id: PerKey[Int]
    device: PerKey[Int]
    address: PerKey[Int]
    size_bytes: PerKey[Int]
    """Bytes that the allocator handed out; for storages without a recorded allocation, the bytes their tensors span."""
    shape: PerKey[Int]
    """Index in `Recording.shapes`, a set of one: of the first tensor that an operator was given; -1 where none was."""
    dtype: PerKey[Int]
    """Index in `Recording.strings`, of the same tensor, such as `float32`; -1 where none was."""


@dataclass(frozen=True, slots=True, eq=False)
class DataFlow:
    """Storages that each operator read, wrote, made and freed. Nodes [N] in time order, edges [X] by node and key."""

    node_time_ns: PerNode[Int]
    node_backward: PerNode[Bool]
    """The node runs inside an autograd node."""
    edge_node: PerEdge[Int]
    edge_key: PerEdge[Int]
    edge_allocated: PerEdge[Bool]
    edge_freed: PerEdge[Bool]
    edge_mutated: PerEdge[Bool]
    """The node may have written to the storage."""

    @property
    def has_uses(self) -> bool:
        """True if operators' tensors were recorded, and not allocations alone; `record_shapes=True` does that."""
        return bool((~self.edge_allocated & ~self.edge_freed).any())


@dataclass(frozen=True, slots=True, eq=False)
class Ops(ColumnTable):
    """Operators that Python or the autograd engine called; operators inside operators are not listed. Columns [O]."""

    name: PerOp[Int]
    """Index in `Recording.strings`."""
    kind: PerOp[Int]
    parent: PerOp[Int]
    """Row of the enclosing operator or autograd node, or -1."""
    call: PerOp[Int]
    start_ns: PerOp[Int]
    end_ns: PerOp[Int]
    sequence_number: PerOp[Int]
    """Number of the autograd node that it makes or is; -1 where there is none."""
    thread: PerOp[Int]
    inline_frame: PerOp[Int]
    """Row in `Frames`: where an operator that makes no call, such as `a + b` or `x[i]`, stands in the calling function.

    Its line where the source tells it, else the line of the call before it; -1 where there was none. Of no meaning for
    an operator that Python called through a function, which has that call's frame.
    """
    input_shapes: PerOp[Int]
    """Index in `Recording.shapes`."""
    last_frame: PerOp[Int]
    """Row in `Frames`: the last call that the enclosing call had made by then, or -1; no source was read for it."""

    def running_at(self, thread: Ints, moment_ns: Ints) -> Ints:
        """Return the row of the innermost operator that was running on a thread at each moment, or -1."""
        operators = np.full(len(moment_ns), -1, Int)
        for number in np.unique(thread[thread >= 0]).tolist():
            rows, mine = np.flatnonzero(self.thread == number), np.flatnonzero(thread == number)
            if not len(rows):
                continue
            # Of operators that begin in the same nanosecond the inner one, which is listed later, is the last.
            rows = rows[np.argsort(self.start_ns[rows], kind="stable")]
            before = np.searchsorted(self.start_ns[rows], moment_ns[mine], side="right") - 1
            op = np.where(before >= 0, rows[before], -1)
            while (over := (op >= 0) & (self.end_ns[op] < moment_ns[mine])).any():
                op[over] = self.parent[op[over]]
            operators[mine] = op
        return operators


@dataclass(frozen=True, slots=True, eq=False)
class Calls(ColumnTable):
    """Python's calls. Columns [C]."""

    kind: PerCall[Int]
    parent: PerCall[Int]
    """Row of the enclosing call, or -1."""
    op: PerCall[Int]
    """Row in `Ops` of the operator that encloses it (a custom autograd.Function, an autograd node), or -1."""
    frame: PerCall[Int]
    """Row in `Frames`: where it was called from, with the line."""
    function: PerCall[Int]
    """Row in `Frames`: the function called, with the line of its `def`; -1 for C functions."""
    module: PerCall[Int]
    """Row in `Modules`, or -1."""
    start_ns: PerCall[Int]
    end_ns: PerCall[Int]
    thread: PerCall[Int]


@dataclass(frozen=True, slots=True, eq=False)
class Spans(ColumnTable):
    """`record_function` regions, `ProfilerStep#n` and `Optimizer.step#...` among them. Columns [S], in tree order."""

    name: PerSpan[Int]
    start_ns: PerSpan[Int]
    end_ns: PerSpan[Int]
    thread: PerSpan[Int]


@dataclass(frozen=True, slots=True, eq=False)
class Frames(ColumnTable):
    """Distinct places in Python code. Columns [F]; file and function index `Recording.strings`."""

    file: PerFrame[Int]
    line: PerFrame[Int]
    function: PerFrame[Int]
    user: PerFrame[Bool]
    """Neither torch's code nor Python's, an installed package's or this program's.

    The file is an absolute path here and for installed packages; torch's and Python's keep the name they go by.
    """
    own: PerFrame[Bool]
    """This program's, or of a module that sets `__tracebackhide__`."""


@dataclass(frozen=True, slots=True, eq=False)
class Modules(ColumnTable):
    """Modules that were called. Columns [M]."""

    self_ptr: PerModule[Int]
    """`id()` of the module, which joins it to a live one."""
    name: PerModule[Int]
    """torch's name of it, class and number, such as `Linear_3`."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernels(ColumnTable):
    """Kernels, copies and fills of the device, columns [L], each with the operator that launched it, as reported."""

    launched_ns: PerKernel[Int]
    """Start of the innermost operator that launched it, on the host."""
    thread: PerKernel[Int]
    """The operator's thread, numbered as in `Ops`; -1 for one without operators."""
    duration_ns: PerKernel[Int]
    """On the device."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One cycle of a profiled run, as columns."""

    strings: tuple[str, ...]
    devices: tuple[str, ...]
    """Names as `str(torch.device)` writes them."""
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    """Distinct sets of input shapes, one shape per tensor argument."""
    allocations: Allocations
    keys: Keys
    flow: DataFlow
    ops: Ops
    calls: Calls
    spans: Spans
    frames: Frames
    modules: Modules
    gradient_keys: Rows
    """Storages that AccumulateGrad, a called module or an optimizer showed as a gradient."""
    parameter_keys: Rows
    """Storages that a called module or an optimizer listed as a parameter."""
    optimizer_state_keys: Rows
    num_events: int
    kernels: Kernels | None = None
    """Kernels, copies and fills that ran on a device; None if none did."""

    @property
    def num_assumed_frees(self) -> int:
        """Frees without a record, put in where an address was handed out again."""
        return int(self.allocations.assumed.sum())

    def is_text(self, holds: Callable[[str], bool]) -> Bools:
        """[strings + 1] whether each string meets a condition; the last is False, for the index -1."""
        return np.array([*map(holds, self.strings), False], np.bool_)

    def is_frame(self, holds: Callable[[str, str], bool]) -> Bools:
        """[F + 1] whether file and function of each frame meet a condition; the last is False, for the index -1."""
        places = zip(self.frames.file.tolist(), self.frames.function.tolist(), strict=True)
        return np.array([*(holds(self.strings[file], self.strings[name]) for file, name in places), False], np.bool_)

    def ops_named(self, holds: Callable[[str], bool]) -> Rows:
        """Rows of the operators whose name meets a condition."""
        return np.flatnonzero(self.is_text(holds)[self.ops.name])

    def calls_of(self, holds: Callable[[str, str], bool]) -> Rows:
        """Rows of the calls of Python functions whose file and name meet a condition."""
        return np.flatnonzero(self.is_frame(holds)[self.calls.function])

    def spans_named(self, prefixes: str | tuple[str, ...]) -> Rows:
        """Rows of the spans whose name begins with one of the prefixes, in order of their start."""
        rows = np.flatnonzero([self.strings[name].startswith(prefixes) for name in self.spans.name.tolist()])
        return rows[np.argsort(self.spans.start_ns[rows], kind="stable")]

    @property
    def step_starts_ns(self) -> Ints:
        """[steps] start of each step, in order."""
        return self.spans.start_ns[self.spans_named(STEP_PREFIX)]
