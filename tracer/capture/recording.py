"""One cycle's recording as columns: everything that later rooms know of it.

`event_tree` fills them from the profiler's event tree, which costs about 5 KB an event; the columns cost about 0.2 KB.

Shapes: A allocations and frees, K tensor storages, N data-flow nodes, E edges, O operators, C calls, S spans,
F frames, M modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.capture.device_kernels import Kernels

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class OpKind(IntEnum):
    """What a row of `Ops` stands for."""

    OPERATOR = 0
    """An operator, or a custom autograd.Function's forward."""
    ENGINE = 1
    """`autograd::engine::evaluate_function: X`, the autograd engine at work on node X."""
    BACKWARD_NODE = 2
    """The node X itself."""


class CallKind(IntEnum):
    """What a row of `Calls` stands for."""

    PYTHON = 0
    C_FUNCTION = 1
    MODULE = 2
    """A call of an nn.Module."""
    OPTIMIZER = 3
    """A call that named an optimizer; it comes before the step's own operators and does not enclose them."""


def _same_length(table: Any) -> None:
    lengths = {name: len(getattr(table, name)) for name in table.__dataclass_fields__}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of {type(table).__name__} differ in length: {lengths}")


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """Allocations and frees in the order of the event tree, which on one thread is the allocator's. Columns [A]."""

    time_ns: Ints
    address: Ints
    size_bytes: Ints
    """Negative for a free."""
    allocation_id: Ints
    """A new number for every allocation of an address; the free carries the same."""
    key: Ints
    """Row in `Keys`, or -1 for memory that no operator ever saw as a tensor."""
    device: Ints
    """Index in `Recording.devices`."""
    total_allocated_bytes: Ints
    """The allocator's own counter after this event; on the CPU it starts at 0 with the first recording.

    -1 for an assumed free, which no allocator reported.
    """
    total_reserved_bytes: Ints
    """As above for reserved memory; 0 on the CPU."""
    op: Ints
    """Row in `Ops` of the innermost enclosing operator called from Python or from the engine, or -1."""
    call: Ints
    """Row in `Calls` of the innermost enclosing call, or -1."""
    assumed: Bools
    """True for a free that nobody recorded, put in because the address was handed out again."""

    def __post_init__(self) -> None:
        _same_length(self)


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """Tensor storages as torch's profiler tells them apart, in torch's sort order. Columns [K]."""

    id: Ints
    """Groups the allocations that one tensor showed in turn (`x.data = y`, resize)."""
    allocation_id: Ints
    device: Ints
    address: Ints
    size_bytes: Ints
    """What the allocator handed out; for storages without a recorded allocation, what their tensors span."""

    def __post_init__(self) -> None:
        _same_length(self)


@dataclass(frozen=True, slots=True, eq=False)
class DataFlow:
    """Which operator read, wrote, made and freed which storage. Nodes [N] in time order, edges [E] by node and key."""

    node_time_ns: Ints
    node_backward: Bools
    """The node runs inside an autograd node."""
    edge_node: Ints
    edge_key: Ints
    edge_allocated: Bools
    edge_freed: Bools
    edge_mutated: Bools
    """The node may have written to the storage."""


@dataclass(frozen=True, slots=True, eq=False)
class Ops:
    """Operators that Python or the autograd engine called; operators inside operators are not listed. Columns [O]."""

    name: Ints
    """Index in `Recording.strings`."""
    kind: Ints
    parent: Ints
    """Row of the enclosing operator or autograd node, or -1."""
    call: Ints
    start_ns: Ints
    end_ns: Ints
    sequence_number: Ints
    """Of the autograd node that it makes or is; -1 where there is none."""
    thread: Ints
    inline_frame: Ints
    """Row in `Frames`: where an operator that makes no call, such as `a + b` or `x[i]`, stands in the calling function.

    Its line where the source tells it, else the line of the call before it; -1 where there was none. Of no meaning for
    an operator that Python called through a function, which has that call's frame.
    """
    input_shapes: Ints
    """Index in `Recording.shapes`."""
    last_frame: Ints
    """Row in `Frames`: the last call that the enclosing call had made by then, or -1; no source was read for it."""

    def __post_init__(self) -> None:
        _same_length(self)


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Python's calls. Columns [C]."""

    kind: Ints
    parent: Ints
    """Row of the enclosing call, or -1."""
    op: Ints
    """Row in `Ops` of the operator that encloses it (a custom autograd.Function, an autograd node), or -1."""
    frame: Ints
    """Row in `Frames`: where it was called from, with the line."""
    function: Ints
    """Row in `Frames`: the function called, with the line of its `def`; -1 for C functions."""
    module: Ints
    """Row in `Modules`, or -1."""
    start_ns: Ints
    end_ns: Ints
    thread: Ints

    def __post_init__(self) -> None:
        _same_length(self)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """`record_function` regions, `ProfilerStep#n` and `Optimizer.step#...` among them. Columns [S], in tree order."""

    name: Ints
    start_ns: Ints
    end_ns: Ints
    thread: Ints

    def __post_init__(self) -> None:
        _same_length(self)


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """Distinct places in Python code. Columns [F]; file and function index `Recording.strings`."""

    file: Ints
    line: Ints
    function: Ints
    user: Bools
    """Neither torch's code nor Python's, an installed package's or this program's.

    The file is an absolute path here and for installed packages; torch's and Python's keep the name they go by.
    """
    own: Bools
    """This program's, or of a module that sets `__tracebackhide__`."""

    def __post_init__(self) -> None:
        _same_length(self)


@dataclass(frozen=True, slots=True, eq=False)
class Modules:
    """Modules that were called. Columns [M]."""

    self_ptr: Ints
    """`id()` of the module, which joins it to a live one."""
    name: Ints
    """torch's name of it, class and number, such as `Linear_3`."""

    def __post_init__(self) -> None:
        _same_length(self)


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
    gradient_keys: Ints
    """Storages that AccumulateGrad, a called module or an optimizer showed as a gradient."""
    parameter_keys: Ints
    """Storages that a called module or an optimizer listed as a parameter."""
    optimizer_state_keys: Ints
    num_events: int
    kernels: Kernels | None = None
    """What ran on a device; None where nothing did."""

    @property
    def num_assumed_frees(self) -> int:
        """Frees that nobody recorded and that were put in where an address was handed out again."""
        return int(self.allocations.assumed.sum())
