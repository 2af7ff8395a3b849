"""The profiler's event tree, read once into the columns of a `Recording`.

Every attribute of an event costs 0.1 to 1 us to read, so each needed field is read exactly once, here, with the garbage
collector paused.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from operator import mul
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from tracer.arrays import Interned
from tracer.capture.profiler.event_columns import (
    ALLOCATED,
    ALLOCATION_ROW,
    CALL_ROW,
    FREED,
    OP_ROW,
    READ,
    SPAN_ROW,
    UNKNOWN,
    WRITTEN,
    EventTables,
    to_columns,
)
from tracer.capture.recording import (
    CallKind,
    Kernels,
    OpKind,
    Recording,
)
from tracer.capture.torch_names import ACCUMULATE_GRAD, ENGINE_PREFIX
from tracer.capture.torch_private import torch_profiler
from tracer.capture.torch_private.torch_dispatch import MIXED_LIST, NONE, TENSOR, TENSOR_LIST, match_schema
from tracer.capture.torch_private.torch_profiler import (
    BACKWARD_SCOPE,
    HOST_DEVICE_TYPE,
    STRIDED,
    USER_SCOPE,
    AllocationFields,
    OpFields,
    PyCallFields,
    PyCCallFields,
    TensorFields,
    check_kernel_events,
    device_text,
    storage_address,
)
from tracer.collector import paused_gc


def read_kernels(results: Any, threads: Mapping[int, int], operators: Container[str]) -> Kernels | None:
    """Read what ran on the device.

    A kernel carries the number of the innermost operator that was running when it was launched. Kernels without one,
    launched outside any operator, are left out: no row is theirs.

    Returns:
        None if nothing ran on a device, which is so on the CPU.

    Raises:
        RecordingError: torch's private types have changed.

    Source:
        `_parse_kineto_results` in `torch/autograd/profiler.py`.
    """
    check_kernel_events()
    events = results.events()
    launched = [
        (event.linked_correlation_id(), event.duration_ns())
        for event in events
        if event.device_type() != HOST_DEVICE_TYPE
        and event.linked_correlation_id() > 0
        # A region that the program named lies on the device's timeline too, over all the kernels launched inside it.
        and not event.is_user_annotation()
    ]
    if not launched:
        return None
    wanted = {number for number, _ in launched}
    # Calls of the driver are events of the host too. Most are linked to an operator; of the others, made outside any,
    # only the name says that they are none: their numbers count anew from 1 and may be those of operators (pytorch
    # pull 196282).
    operator = {
        event.correlation_id(): (event.start_ns(), threads.get(event.start_thread_id(), -1))
        for event in events
        if event.correlation_id() in wanted
        and event.linked_correlation_id() == 0
        and event.device_type() == HOST_DEVICE_TYPE
        and event.name() in operators
    }
    rows = [(*operator[number], duration_ns) for number, duration_ns in launched if number in operator]
    launched_ns, thread, duration = np.array(rows, np.int64).reshape(-1, 3).T
    return Kernels(*(np.ascontiguousarray(column) for column in (launched_ns, thread, duration)))


def read_recording(profiler: Any) -> Recording:
    """Read a finished recording into columns.

    Args:
        profiler: A `torch.profiler.profile` inside or after `on_trace_ready`, or its `profiler.kineto_results`, which
            may be kept and read later. Made with `profile_memory=True`; without `record_shapes` and `with_stack` the
            columns that need them are empty. Never read while another cycle is recording: the profiler would record it.

    Raises:
        RecordingError: Nothing was recorded, or torch's private types have changed.
    """
    torch_profiler.check_event_types()
    results = torch_profiler.kineto_results(profiler)
    with paused_gc():
        reader = _TreeReader()
        reader.read(results.experimental_event_tree())
        recording = to_columns(reader)
        if all(name == "cpu" for name in recording.devices):
            return recording
        return replace(recording, kernels=read_kernels(results, dict(reader.threads), reader.operator_names()))


_ACCESS = {True: WRITTEN, None: UNKNOWN, False: READ}


# Plain numbers: an enumeration's member takes longer to store.
_PYTHON, _C_FUNCTION = int(CallKind.PYTHON), int(CallKind.C_FUNCTION)
_OPERATOR, _ENGINE, _BACKWARD_NODE = int(OpKind.OPERATOR), int(OpKind.ENGINE), int(OpKind.BACKWARD_NODE)
_BACKWARD, _USER = BACKWARD_SCOPE.value, USER_SCOPE.value

Called = tuple[int, int, int, dict[int, int] | None]
"""A call: kind, row of the function or -1, row of the module or -1, and frames of the function by line
where only the line tells them apart."""
_A_C_FUNCTION: Called = (_C_FUNCTION, -1, -1, None)
Form = tuple[bool, Sequence[int] | None, tuple[int, ...]]
"""Facts of an operator with arguments of these types: whether a schema matches, how each of its tensors is touched, and
which arguments the tensors are. None for how: that takes a closer look."""


_OUR_KERNELS = str(Path("tracer", "null_gpu", "values"))
_FREED_CODE = "<freed code>"


def _is_kernel_of_ours(kind: type, event: Any) -> bool:
    """True if a call right inside an operator is of a kernel that this program has put in front of torch's."""
    return kind is PyCallFields and _OUR_KERNELS in _call_name(event)


def _call_name(event: Any) -> str:
    """Return the name of a Python call, or a made-up one if torch 2.11 has freed a module's code after its import."""
    try:
        return str(event.name)
    except UnicodeDecodeError:
        return _FREED_CODE


class _DeviceTexts(dict[Any, str]):
    """Names of devices: two objects of torch's may mean one."""

    def __missing__(self, device: Any) -> str:
        text = self[device] = device_text(device)
        return text


class _TreeReader(EventTables):
    def __init__(self) -> None:
        super().__init__()
        self.device_texts = _DeviceTexts()
        self.threads = Interned()
        # Work of other threads that hangs below a call of the thread that is being read.
        self.detached: list[Any] = []
        # Per call, the frame of the last call made from inside it.
        self.last_frame: dict[int, int] = {}
        self.num_ops = self.num_calls = 0
        # Per function's frame, those of its lines; and both by the name of a Python function, which is made of file,
        # line and function, and quicker to read.
        self.lines: dict[int, dict[int, int]] = {}
        self.functions: dict[str, Called] = {}
        self.optimizers: set[int] = set()
        self.described: set[int] = set()
        # Allocation ids with an allocation or free so far: their size is known, their tensors need no look.
        self.sized: set[int] = set()
        # Bytes of the latest allocation under each number.
        self.live: set[int] = set()
        # An allocation id that was handed out again without a recorded free continues under a number of its own.
        self.renamed: dict[int, int] = {}
        # By name and types of the arguments, and by what these turn out to be where the types do not say it.
        self.forms: dict[tuple[Any, ...], Form] = {}
        self.matches: dict[tuple[Any, ...], tuple[bool, tuple[int, ...]]] = {}

    # -------------------------------------------------------------------------------------------------- the walk
    def read(self, roots: Any) -> None:
        for root in roots:
            # Numbered anew: a thread that the profiler cannot tell has 2**64 - 1 for a number.
            self._read_thread(root)
        # torch hangs what a GPU's thread of the engine does below the first call that asked for backward, that of later
        # steps too, and so before the forward of those steps (`build_tree` in collection.cpp).
        while self.detached:
            detached, self.detached = self.detached, []
            for event in sorted(detached, key=lambda event: int(event.start_time_ns)):
                self._read_thread(event)

    def operator_names(self) -> set[str]:
        """Names of all operators, those inside operators too."""
        return {signature[0] for signature in self.forms}

    def _read_thread(self, root: Any) -> None:
        """Depth first, in order, with an explicit stack of child iterators: a tree may be deeper than Python's limit.

        This loop runs once per event and is the cost of the whole analysis; that is why it is one function. What most
        events need stands here, what few need in functions of its own.

        The context of an event is: the enclosing call, the frames of its function by line, and the enclosing operator;
        whether the next operator is called from Python or the engine (and so gets a row of its own), the edges of the
        enclosing data-flow node, and whether an autograd node encloses it. Inside a kernel of this program's own the
        third is None: its Python is part of the operator.
        """
        self.last_frame.pop(-1, None)  # outside any call, another thread's last frame says nothing
        tid = root.start_tid
        thread = self.threads[tid]
        stack: list[tuple[Any, int, dict[int, int] | None, int, bool | None, dict[int, int] | None, bool]] = []
        push, pop = stack.append, stack.pop
        allocations, calls, forms, functions = self.allocations, self.calls, self.forms, self.functions
        live, sized, renamed, last_frame = self.live, self.sized, self.renamed, self.last_frame
        described = self.described
        siblings = iter((root,))
        num_events, num_calls = 1, self.num_calls
        call, lines, op, node, backward = -1, None, -1, None, False
        outermost: bool | None = True
        inner_outermost: bool | None
        while True:
            for event in siblings:
                fields = event.extra_fields
                kind = type(fields)
                if kind is OpFields:
                    name, inputs = fields.name, fields.inputs
                    signature = (name, *map(type, inputs))
                    form = forms.get(signature)
                    if form is None:
                        form = forms[signature] = self._form(signature)
                    matched, accesses, tensors_at = form
                    touched = [inputs[index].allocation_id for index in tensors_at]
                    if not sized.issuperset(touched):
                        for index, allocation_id in zip(tensors_at, touched, strict=True):
                            if allocation_id not in sized and not self._see_tensor(inputs[index], allocation_id):
                                accesses = None
                    if accesses is None:
                        matched, accesses, touched = self._lists_or_unknown(name, inputs)
                    elif renamed:
                        touched = [renamed.get(allocation_id, allocation_id) for allocation_id in touched]
                    if not described.issuperset(touched):
                        for index, allocation_id in zip(tensors_at, touched, strict=True):
                            self._describe(inputs[index], allocation_id)
                    inner_op, inner_outermost, inner_node, inner_backward = op, False, node, backward
                    is_backward_node = False
                    if outermost or name[:6] != "aten::":
                        scope = fields.scope.value
                        is_backward_node = scope == _BACKWARD
                        if scope == _USER:
                            self._add_span(event, name, thread, root)
                            inner_outermost = True
                        elif outermost or is_backward_node:
                            is_engine = not is_backward_node and name.startswith(ENGINE_PREFIX)
                            if is_engine and event.start_tid != tid:
                                self.detached.append(event)
                                num_events -= 1
                                continue
                            inner_outermost = is_engine or is_backward_node
                            op_kind = _BACKWARD_NODE if is_backward_node else _ENGINE if is_engine else _OPERATOR
                            inner_op = self._add_operator(event, fields, name, inputs, op_kind, op, call, thread)
                            inner_backward = backward or is_backward_node
                    if node is None and (matched or is_backward_node):
                        inner_node = self._add_node(event.start_time_ns, inner_backward)
                    if inner_node is not None:
                        for allocation_id, access in zip(touched, accesses, strict=True):
                            inner_node[allocation_id] = inner_node.get(allocation_id, 0) | access
                    children = event.children
                    if children:
                        if is_backward_node and name == ACCUMULATE_GRAD:
                            self._accumulated_gradient(children)
                        num_events += len(children)
                        push((siblings, call, lines, op, outermost, node, backward))
                        siblings = iter(children)
                        op, outermost, node, backward = inner_op, inner_outermost, inner_node, inner_backward
                        break
                elif kind is AllocationFields:
                    size, allocation_id = fields.alloc_size, fields.allocation_id
                    time_ns, address = event.start_time_ns, fields.ptr
                    is_numbered = allocation_id is not None
                    if not is_numbered:
                        allocation_id = self.places[self.device_texts[fields.device], address]
                    if allocation_id not in sized:
                        sized.add(allocation_id)
                        self.storages[allocation_id] = (
                            fields.id,
                            self.devices[self.device_texts[fields.device]],
                            address,
                        )
                    if is_numbered and size > 0:
                        if allocation_id in live:
                            self._free_unrecorded(allocation_id, time_ns)
                        live.add(allocation_id)
                    if renamed:
                        allocation_id = renamed.get(allocation_id, allocation_id)
                    allocations += ALLOCATION_ROW(
                        time_ns, address, size, allocation_id,
                        fields.total_allocated, fields.total_reserved, op, call, False,
                    )  # fmt: skip
                    edges = self._add_node(time_ns, backward) if node is None else node
                    if size:
                        edges[allocation_id] = edges.get(allocation_id, 0) | (ALLOCATED if size > 0 else FREED)
                else:
                    inner_call, inner_lines, inner_outermost = call, lines, outermost
                    if outermost is None or (not outermost and _is_kernel_of_ours(kind, event)):
                        inner_outermost = None
                    elif kind is PyCCallFields or kind is PyCallFields:
                        state = fields.caller
                        # Inside a Python function only the line is new; texts cost a microsecond each.
                        frame = lines.get(state.line_number) if lines is not None else None
                        if frame is None:
                            frame = self._frame(state, lines)
                        last_frame[call] = frame
                        called = _A_C_FUNCTION
                        if kind is PyCallFields:
                            call_name = _call_name(event)
                            called = functions.get(call_name) or self._called(call_name, fields)
                        call_kind, function, module, inner_lines = called
                        calls += CALL_ROW(
                            call_kind, call, op, frame, function, module, event.start_time_ns, event.end_time_ns, thread
                        )  # fmt: skip
                        inner_call, inner_outermost = num_calls, True
                        num_calls += 1
                    children = event.children
                    if children:
                        num_events += len(children)
                        push((siblings, call, lines, op, outermost, node, backward))
                        siblings = iter(children)
                        call, lines, outermost = inner_call, inner_lines, inner_outermost
                        break
            else:
                if not stack:
                    break
                siblings, call, lines, op, outermost, node, backward = pop()
        self.num_events += num_events
        self.num_calls = num_calls

    def _add_span(self, event: Any, name: str, thread: int, root: Any) -> None:
        """Add a region; one still open at the recording's end lasts until then: torch ends it with its opening call."""
        end_ns, opened_by = event.end_time_ns, event.parent
        if opened_by is not None and opened_by.end_time_ns == end_ns and type(opened_by.extra_fields) is PyCCallFields:
            end_ns = root.end_time_ns
        self.spans += SPAN_ROW(self.strings[name], event.start_time_ns, end_ns, thread)

    def _add_operator(
        self, event: Any, fields: Any, name: str, inputs: list[Any], kind: int, parent: int, call: int, thread: int
    ) -> int:
        self.ops += OP_ROW(
            self.strings[name], kind, parent, call, event.start_time_ns, event.end_time_ns,
            fields.sequence_number, thread, self.last_frame.get(call, -1), self._shapes(inputs),
        )  # fmt: skip
        self.num_ops += 1
        return self.num_ops - 1

    def _add_node(self, time_ns: int, backward: bool) -> dict[int, int]:
        edges: dict[int, int] = {}
        self.node_time.append(time_ns)
        self.node_backward.append(backward)
        self.node_edges.append(edges)
        return edges

    def _form(self, signature: tuple[Any, ...]) -> Form:
        """Return the form that an operator's argument types give, if the profiler can tell every tensor's storage."""
        name, *types = signature
        if list in types:
            return False, None, ()
        kinds = [TENSOR if type_ is TensorFields else NONE if type_ is NoneType else type_ for type_ in types]
        matched, accesses = self._match((name, *kinds))
        return matched, accesses, tuple(index for index, kind in enumerate(kinds) if kind is TENSOR)

    def _lists_or_unknown(self, name: str, inputs: list[Any]) -> tuple[bool, list[int], list[int]]:
        """Match an operator with any arguments; return the match, and the access and number of each touched storage."""
        signature: list[Any] = [name]
        touched: list[list[int]] = []
        for value in inputs:
            value_type = type(value)
            if value_type is TensorFields:
                number = self._tensor(value)
                signature.append(TENSOR if number != -1 else NONE)
                if number != -1:
                    touched.append([number])
            elif value_type is list:
                numbers = [self._tensor(tensor) for tensor in value]
                signature.append(MIXED_LIST if -1 in numbers else TENSOR_LIST)
                touched.append([number for number in numbers if number != -1])
            else:
                signature.append(NONE if value is None else value_type)
        matched, accesses = self._match(tuple(signature))
        pairs = [(number, access) for which, access in zip(touched, accesses, strict=True) for number in which]
        return matched, [access for _, access in pairs], [number for number, _ in pairs]

    def _match(self, signature: tuple[Any, ...]) -> tuple[bool, tuple[int, ...]]:
        match = self.matches.get(signature)
        if match is None:
            name, *kinds = signature
            matched, mutable = match_schema(name, tuple(kinds))
            tensors = (TENSOR, TENSOR_LIST, MIXED_LIST)
            accesses = tuple(_ACCESS[m] for m, kind in zip(mutable, kinds, strict=True) if kind in tensors)
            match = self.matches[signature] = matched, accesses
        return match

    def _shapes(self, inputs: list[Any]) -> int:
        shown: list[tuple[int, ...]] = []
        for value in inputs:
            if type(value) is TensorFields:
                shown.append(tuple(value.sizes))
            elif type(value) is list:
                shown.extend(tuple(tensor.sizes) for tensor in value)
        return self.shapes[tuple(shown)]

    # ------------------------------------------------------------------------------------------------- tensors
    def _tensor(self, tensor: Any) -> int:
        """The number under which a tensor's storage is kept, or -1 if the profiler could not tell."""
        allocation_id = tensor.allocation_id
        if allocation_id not in self.sized and not self._see_tensor(tensor, allocation_id):
            return -1
        number = int(self.renamed.get(allocation_id, allocation_id))
        self._describe(tensor, number)
        return number

    def _describe(self, tensor: Any, allocation_id: int) -> None:
        """Note shape and dtype of the first tensor of a storage."""
        if allocation_id not in self.described:
            self.described.add(allocation_id)
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.descriptions[allocation_id] = self.shapes[(tuple(tensor.sizes),)], self.strings[dtype]

    def _see_tensor(self, tensor: Any, allocation_id: int | None) -> bool:
        """Note a storage, if it can be told apart, and the bytes that this tensor spans in it: the largest is its size.

        Source: `TensorKey._make` and `SizeMap._update_values`.
        """
        if allocation_id is None:
            return False
        if allocation_id not in self.storages:
            address = storage_address(tensor)
            if address is None or tensor.id is None:
                return False
            self.storages[allocation_id] = (tensor.id, self.devices[self.device_texts[tensor.device]], address)
        if tensor.layout is not STRIDED:
            return True
        sizes = tensor.sizes
        extent = max(map(mul, sizes, tensor.strides)) if sizes else 1
        span_bytes = extent * tensor.dtype.itemsize
        if span_bytes > self.span_bytes.get(allocation_id, -1):
            self.span_bytes[allocation_id] = span_bytes
        return True

    def _free_unrecorded(self, allocation_id: int, time_ns: int) -> None:
        """The address was handed out again: whoever freed it was not recorded, and torch's own analysis gives up here.

        The new storage gets a number of its own. The row of the free is made when all is read, in order of time.
        """
        old = self.renamed.get(allocation_id, allocation_id)
        before_ns = time_ns - 1  # the timeline puts frees behind allocations of the same time
        self._add_node(before_ns, False)[old] = FREED
        # Negative and below -1: never one of torch's own numbers, and never "none".
        new = -2 - len(self.original)
        self.renamed[allocation_id], self.original[new] = new, allocation_id
        self.storages[new] = self.storages[allocation_id]

    # --------------------------------------------------------------------------------- modules, optimizers, gradients
    def _accumulated_gradient(self, children: Sequence[Any]) -> None:
        """AccumulateGrad's first operator takes the gradient as its first input.

        Calls of the driver, which come before all other children whenever they ran, are passed over.

        Source: `extract_gradients` via `MemoryProfile._set_gradients_and_temporaries`.
        """
        recorded = (OpFields, AllocationFields, PyCallFields, PyCCallFields)
        read = (child.extra_fields for child in children)
        fields: Any = next((candidate for candidate in read if type(candidate) in recorded), None)
        if type(fields) is OpFields and fields.name in ("aten::detach", "aten::add_"):
            inputs = fields.inputs
            if inputs and type(inputs[0]) is TensorFields:
                self.gradients.append(self._tensor(inputs[0]))

    def _called(self, name: str, fields: Any) -> Called:
        """Return the kind, function and module of a Python call, and the frames of the function by line.

        A function is looked at once, under its name. A module or optimizer is looked at whenever it is called.
        """
        function = self._frame(fields.callsite)
        if fields.module is not None:
            return int(CallKind.MODULE), function, self._module(fields.module, name), None
        if fields.optimizer is not None:
            self._optimizer(fields.optimizer)
            return int(CallKind.OPTIMIZER), function, -1, None
        called = self.functions[name] = _PYTHON, function, -1, self.lines.setdefault(function, {})
        return called

    def _frame(self, state: Any, lines: dict[int, int] | None = None) -> int:
        """The row of a place in the code, noted among the lines of its function."""
        line = state.line_number
        try:
            frame = self.frames[state.file_name, line, state.function_name]
        except UnicodeDecodeError:
            frame = self.frames[_FREED_CODE, line, _FREED_CODE]
        if lines is not None:
            lines[line] = frame
        return frame

    def _module(self, info: Any, event_name: str) -> int:
        """The module's row. The profiler describes a module once, at its first call, so later calls need no look."""
        self_ptr = int(info.self_ptr)
        row = self.modules.get(self_ptr)
        if row is None:
            row = self.modules[self_ptr] = len(self.module_names)
            self.module_names.append(self.strings[event_name.removeprefix("nn.Module: ")])
            for _, parameter, gradient in info.parameters:
                self._described(parameter, gradient)
        return row

    def _optimizer(self, info: Any) -> None:
        self_ptr = int(info.self_ptr)
        if self_ptr in self.optimizers:
            return
        self.optimizers.add(self_ptr)
        for parameter, gradient, state in info.parameters:
            self._described(parameter, gradient)
            self.optimizer_states.extend(self._tensor(tensor) for _, tensor in state if tensor is not None)

    def _described(self, parameter: Any, gradient: Any) -> None:
        if parameter is not None:
            self.parameters.append(self._tensor(parameter))
        if gradient is not None:
            self.gradients.append(self._tensor(gradient))
