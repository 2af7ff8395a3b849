"""The profiler's event tree, read once into the columns of a `Recording`.

Every attribute of an event costs 0.1 to 1 us to read, so each needed field is read exactly once, here, with the garbage
collector paused.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracer.capture import torch_private
from tracer.capture.device_kernels import read_kernels
from tracer.capture.inline_operators import place_inline_operators
from tracer.capture.recording import (
    Allocations,
    CallKind,
    Calls,
    DataFlow,
    Frames,
    Ints,
    Keys,
    Modules,
    Ops,
    Recording,
    Spans,
)
from tracer.capture.source_files import is_own_code, is_package_code, is_user_code, whole_path
from tracer.capture.torch_private import (
    BACKWARD_SCOPE,
    MIXED_LIST,
    NONE,
    STRIDED,
    TENSOR,
    TENSOR_LIST,
    USER_SCOPE,
    AllocationFields,
    OpFields,
    PyCallFields,
    PyCCallFields,
    TensorFields,
    element_size,
    match_schema,
)
from tracer.collector import paused_gc


def read_recording(profiler: Any) -> Recording:
    """Read a finished recording into columns.

    Args:
        profiler: A `torch.profiler.profile` inside or after `on_trace_ready`, or its `profiler.kineto_results`, which
            may be kept and read later. Made with `profile_memory=True`; without `record_shapes` and `with_stack` the
            columns that need them are empty. Never read while another cycle is recording: the profiler would record it.

    Returns:
        The recording. It holds no reference to torch's objects.

    Raises:
        RecordingError: Nothing was recorded, or torch's private types have changed.
    """
    torch_private.check_event_types()
    results = torch_private.kineto_results(profiler)
    with paused_gc():
        reader = _Reader()
        reader.read(results.experimental_event_tree())
        recording = reader.recording()
        if all(name == "cpu" for name in recording.devices):
            return recording
        return replace(recording, kernels=read_kernels(results, reader.threads.number, reader.operator_names()))


# A data-flow edge collects what happened to a storage below one node, as bits.
_WRITTEN, _UNKNOWN, _READ, _FREED, _ALLOCATED = 1, 2, 4, 8, 16
_ACCESS = {True: _WRITTEN, None: _UNKNOWN, False: _READ}
_ENGINE_PREFIX = "autograd::engine::evaluate_function: "


# Plain numbers: an enumeration's member takes longer to store.
_PYTHON, _C_FUNCTION = int(CallKind.PYTHON), int(CallKind.C_FUNCTION)
_INLINE_FRAME = list(Ops.__dataclass_fields__).index("inline_frame")
_OP_WIDTH = len(Ops.__dataclass_fields__) - 1  # until sources are read, the last frame is the inline one


class _Interned:
    """Distinct values, numbered in order of appearance."""

    def __init__(self) -> None:
        self.number: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.number.setdefault(value, len(self.number))

    def values(self) -> tuple[Any, ...]:
        return tuple(self.number)


class _Reader:
    """One walk over the event tree, which fills tables that are turned into columns at the end."""

    def __init__(self) -> None:
        self.strings, self.frames, self.devices, self.shapes = _Interned(), _Interned(), _Interned(), _Interned()
        self.threads = _Interned()
        # Work of other threads that hangs below a call of the thread that is being read.
        self.detached: list[Any] = []
        # Per call, the frame of the last call made from inside it.
        self.last_frame: dict[int, int] = {}
        # Tables row by row, flat: 8 bytes a number instead of the 40 or more that lists of tuples take.
        self.allocations, self.ops, self.calls, self.spans = array("q"), array("q"), array("q"), array("q")
        self.num_ops = self.num_calls = 0
        # Per name of a Python function, its frame. The name is made of file, line and function, and quicker to read.
        self.functions: dict[str, int] = {}
        # Per call the function that runs in it, where that is one of Python; and frames by function and line.
        self.running: list[int] = []
        self.places: dict[tuple[int, int], int] = {}
        self.modules: dict[int, int] = {}
        self.module_names: list[int] = []
        self.optimizers: set[int] = set()
        self.node_time: list[int] = []
        self.node_backward: list[bool] = []
        self.node_edges: list[dict[int, int]] = []
        # Per allocation id: (id, device, address) at first sight, and what its tensors span.
        self.storages: dict[int, tuple[int | None, int, int]] = {}
        self.span_bytes: dict[int, int] = {}
        # Allocation ids with an allocation or free so far: their size is known, their tensors need no look.
        self.sized: set[int] = set()
        # Bytes of the latest allocation under each number.
        self.live: dict[int, int] = {}
        # Numbers for what the profiler did not number, per live (device, address).
        self.numbered: dict[tuple[Any, int], int] = {}
        self.own_numbers = itertools.count()
        # An allocation id that was handed out again without a recorded free continues under a number of its own.
        self.renamed: dict[int, int] = {}
        self.original: dict[int, int] = {}
        self.gradients: list[int] = []
        self.parameters: list[int] = []
        self.optimizer_states: list[int] = []
        self.matches: dict[tuple[Any, ...], tuple[bool, tuple[int, ...]]] = {}
        self.num_events = 0

    # -------------------------------------------------------------------------------------------------- the walk
    def read(self, roots: Any) -> None:
        for root in roots:
            # Numbered anew: a thread that the profiler cannot tell has 2**64 - 1 for a number.
            self._read_thread(root)
        # torch hangs what a GPU's thread of the engine does below the first call that asked for backward, that of later
        # steps too, and so before the forward of those steps (`build_tree` in collection.cpp).
        while self.detached:
            found, self.detached = self.detached, []
            for event in sorted(found, key=lambda event: int(event.start_time_ns)):
                self._read_thread(event)

    def operator_names(self) -> set[str]:
        """Names of all operators, those inside operators too."""
        return {signature[0] for signature in self.matches}

    def _read_thread(self, root: Any) -> None:
        """Depth first, in order, with an explicit stack of child iterators: a tree may be deeper than Python's limit.

        This loop runs once per event and is the cost of the whole analysis; that is why it is one function.

        The context of an event is: the enclosing call and operator rows, whether the next operator is called from
        Python or the engine (and so gets a row of its own), the edges of the enclosing data-flow node, and whether an
        autograd node encloses it.
        """
        self.last_frame.pop(-1, None)  # outside any call, another thread's last frame says nothing
        tid = root.start_tid
        thread = self.threads(tid)
        stack: list[tuple[Any, int, int, bool, dict[int, int] | None, bool]] = []
        push, pop = stack.append, stack.pop
        add_allocation, strings, matches = self.allocations.extend, self.strings, self.matches
        live, sized, renamed = self.live, self.sized, self.renamed
        siblings = iter((root,))
        call, op, outermost, node, backward = -1, -1, True, None, False
        num_events = 0
        while True:
            for event in siblings:
                num_events += 1
                fields = event.extra_fields
                kind = type(fields)
                if kind is OpFields:
                    name = fields.name
                    signature: list[Any] = [name]
                    touched: list[Any] = []
                    inputs = fields.inputs
                    for value in inputs:
                        if value is None:
                            signature.append(NONE)
                            continue
                        value_type = type(value)
                        if value_type is TensorFields:
                            allocation_id = value.allocation_id
                            if allocation_id not in sized and not self._see_tensor(value, allocation_id):
                                signature.append(NONE)
                                continue
                            if renamed:
                                allocation_id = renamed.get(allocation_id, allocation_id)
                            signature.append(TENSOR)
                            touched.append(allocation_id)
                        elif value_type is list:
                            ids = [self._tensor(tensor) for tensor in value]
                            signature.append(MIXED_LIST if -1 in ids else TENSOR_LIST)
                            touched.append(ids)
                        else:
                            signature.append(value_type)
                    key = tuple(signature)
                    match = matches.get(key)
                    if match is None:
                        match = matches[key] = self._match(key)
                    is_backward_node = False
                    inner_op, inner_outermost = op, False
                    if outermost or name[:6] != "aten::":
                        scope = fields.scope
                        is_backward_node = scope == BACKWARD_SCOPE
                        if scope == USER_SCOPE:
                            self.spans.extend((strings(name), event.start_time_ns, event.end_time_ns, thread))
                            inner_outermost = True
                        elif outermost or is_backward_node:
                            op_kind = 0
                            if is_backward_node:
                                op_kind, inner_outermost = 2, True
                            elif name.startswith(_ENGINE_PREFIX):
                                if event.start_tid != tid:
                                    self.detached.append(event)
                                    num_events -= 1
                                    continue
                                op_kind, inner_outermost = 1, True
                            inner_op = self.num_ops
                            self.num_ops += 1
                            self.ops.extend((
                                strings(name), op_kind, op, call, event.start_time_ns, event.end_time_ns,
                                fields.sequence_number, thread, self.last_frame.get(call, -1), self._shapes(inputs),
                            ))  # fmt: skip
                    children = event.children
                    inner_backward = backward or is_backward_node
                    inner_node: dict[int, int] | None = node
                    if node is None and (match[0] or is_backward_node):
                        inner_node = {}
                        self.node_time.append(event.start_time_ns)
                        self.node_backward.append(inner_backward)
                        self.node_edges.append(inner_node)
                    if inner_node is not None:
                        for which, access in zip(touched, match[1], strict=True):
                            if type(which) is int:
                                inner_node[which] = inner_node.get(which, 0) | access
                            else:
                                for one in which:
                                    if one != -1:
                                        inner_node[one] = inner_node.get(one, 0) | access
                    if is_backward_node and children and name == "torch::autograd::AccumulateGrad":
                        self._accumulated_gradient(children)
                    if children:
                        push((siblings, call, op, outermost, node, backward))
                        siblings = iter(children)
                        op, outermost, node, backward = inner_op, inner_outermost, inner_node, inner_backward
                        break
                elif kind is AllocationFields:
                    size, allocation_id = fields.alloc_size, fields.allocation_id
                    time_ns, address = event.start_time_ns, fields.ptr
                    if allocation_id is None:
                        allocation_id = self._own_number(fields.device, address, size)
                    if allocation_id not in sized:
                        sized.add(allocation_id)
                        self._see_allocation(fields, allocation_id)
                    if size > 0:
                        if allocation_id in live:
                            self._free_unrecorded(allocation_id, time_ns, address, live[allocation_id])
                        live[allocation_id] = size
                    if renamed:
                        allocation_id = renamed.get(allocation_id, allocation_id)
                    add_allocation((
                        time_ns, address, size, allocation_id,
                        fields.total_allocated, fields.total_reserved, op, call, False,
                    ))  # fmt: skip
                    edges = node
                    if edges is None:
                        edges = {}
                        self.node_time.append(time_ns)
                        self.node_backward.append(backward)
                        self.node_edges.append(edges)
                    if size:
                        edges[allocation_id] = edges.get(allocation_id, 0) | (_ALLOCATED if size > 0 else _FREED)
                else:
                    inner_call, inner_outermost = call, outermost
                    if kind is PyCallFields or kind is PyCCallFields:
                        inner_call, inner_outermost = self._call(event, fields, kind, call, op, thread), True
                    children = event.children
                    if children:
                        push((siblings, call, op, outermost, node, backward))
                        siblings = iter(children)
                        call, outermost = inner_call, inner_outermost
                        break
            else:
                if not stack:
                    break
                siblings, call, op, outermost, node, backward = pop()
        self.num_events += num_events

    def _match(self, signature: tuple[Any, ...]) -> tuple[bool, tuple[int, ...]]:
        """Whether a schema matches, and the access bits of the arguments that are tensors or lists of them."""
        name, kinds = signature[0], signature[1:]
        matched, mutable = match_schema(name, kinds)
        tensors = (TENSOR, TENSOR_LIST, MIXED_LIST)
        return matched, tuple(_ACCESS[m] for m, kind in zip(mutable, kinds, strict=True) if kind in tensors)

    def _shapes(self, inputs: list[Any]) -> int:
        flat = (one for value in inputs for one in (value if type(value) is list else (value,)))
        return self.shapes(tuple(tuple(one.sizes) for one in flat if type(one) is TensorFields))

    # ------------------------------------------------------------------------------------------------- tensors
    def _tensor(self, tensor: Any) -> int:
        """The number under which a tensor's storage is kept, or -1 if the profiler could not tell."""
        allocation_id = tensor.allocation_id
        if allocation_id not in self.sized and not self._see_tensor(tensor, allocation_id):
            return -1
        return int(self.renamed.get(allocation_id, allocation_id))

    def _see_tensor(self, tensor: Any, allocation_id: int | None) -> bool:
        """Note a storage, and the bytes that this tensor spans in it: the largest span stands in for the size.

        Returns:
            Whether the tensor has a storage that the profiler can tell apart; an empty or undefined one has none.

        Source:
            `TensorKey._make` and `SizeMap._update_values`.
        """
        if allocation_id is None:
            return False
        if allocation_id not in self.storages:
            address = tensor.storage_data_ptr
            if address is None or tensor.id is None:
                return False
            self.storages[allocation_id] = (tensor.id, self.devices(tensor.device), address)
        if tensor.layout is not STRIDED:
            return True
        sizes = tensor.sizes
        extent = max(map(int.__mul__, sizes, tensor.strides)) if sizes else 1
        span_bytes = extent * element_size(tensor.dtype)
        if span_bytes > self.span_bytes.get(allocation_id, -1):
            self.span_bytes[allocation_id] = span_bytes
        return True

    def _see_allocation(self, fields: Any, allocation_id: int) -> None:
        self.storages[allocation_id] = (fields.id, self.devices(fields.device), fields.ptr)

    def _own_number(self, device: Any, address: int, size: int) -> int:
        """A number for the allocations of a recording in which no operator took a tensor; the profiler gives none then.

        So it is without `record_shapes`.
        """
        place = (device, address)
        number = self.numbered.get(place)
        if number is None:
            number = self.numbered[place] = next(self.own_numbers)
        if size <= 0:
            del self.numbered[place]
        return number

    def _free_unrecorded(self, allocation_id: int, time_ns: int, address: int, size: int) -> None:
        """The address was handed out again: whoever freed it was not recorded, and torch's own analysis gives up here.

        The old storage is freed right before, the latest it can have been, and the new one gets a number of its own.
        """
        old = self.renamed.get(allocation_id, allocation_id)
        before_ns = time_ns - 1  # the timeline puts frees behind allocations of the same time
        self.allocations.extend((before_ns, address, -size, old, -1, -1, -1, -1, True))
        edges: dict[int, int] = {old: _FREED}
        self.node_time.append(before_ns)
        self.node_backward.append(False)
        self.node_edges.append(edges)
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
        fields: Any = next((each for each in read if type(each) in recorded), None)
        if type(fields) is OpFields and fields.name in ("aten::detach", "aten::add_"):
            inputs = fields.inputs
            if inputs and type(inputs[0]) is TensorFields:
                self.gradients.append(self._tensor(inputs[0]))

    def _call(self, event: Any, fields: Any, kind: Any, parent: int, op: int, thread: int) -> int:
        frame = self._caller(fields.caller, parent)
        self.last_frame[parent] = frame
        function, module, call_kind, runs = -1, -1, _C_FUNCTION, -1
        if kind is PyCallFields:
            call_kind = _PYTHON
            name = event.name
            function = self.functions.get(name, -1)
            if function == -1:
                function = self._frame(fields.callsite)
                if fields.module is not None:
                    call_kind, module = int(CallKind.MODULE), self._module(fields.module, name)
                elif fields.optimizer is not None:
                    call_kind = int(CallKind.OPTIMIZER)
                    self._optimizer(fields.optimizer)
                else:
                    self.functions[name] = function
            runs = function if call_kind == _PYTHON else -1
        self.running.append(runs)
        self.calls.extend(
            (call_kind, parent, op, frame, function, module, event.start_time_ns, event.end_time_ns, thread)
        )
        self.num_calls += 1
        return self.num_calls - 1

    def _caller(self, state: Any, parent: int) -> int:
        """Where a call was made from. Inside a Python function only the line is new; texts cost a microsecond each."""
        function = self.running[parent] if parent >= 0 else -1
        if function == -1:
            return self._frame(state)
        place = (function, state.line_number)
        frame = self.places.get(place)
        if frame is None:
            frame = self.places[place] = self._frame(state)
        return frame

    def _frame(self, state: Any) -> int:
        return self.frames((state.file_name, state.line_number, state.function_name))

    def _module(self, info: Any, event_name: str) -> int:
        """The module's row. The profiler describes a module once, at its first call, so later calls need no look."""
        self_ptr = int(info.self_ptr)
        row = self.modules.get(self_ptr)
        if row is None:
            row = self.modules[self_ptr] = len(self.module_names)
            self.module_names.append(self.strings(event_name.removeprefix("nn.Module: ")))
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

    # ------------------------------------------------------------------------------------------------- to columns
    def recording(self) -> Recording:
        allocations = _columns(self.allocations, 9)
        keys, key_of = self._keys(*allocations[:4])
        frames = self._frame_columns()
        ops = _columns(self.ops, _OP_WIDTH)
        recording = Recording(
            strings=self.strings.values(),
            shapes=self.shapes.values(),
            devices=tuple(str(device) for device in self.devices.values()),
            allocations=self._allocation_columns(allocations, key_of),
            keys=keys,
            flow=self._flow(key_of),
            ops=Ops(*(*ops, ops[_INLINE_FRAME])),
            calls=Calls(*_columns(self.calls, 9)),
            spans=Spans(*_columns(self.spans, 4)),
            frames=frames,
            modules=Modules(np.array(list(self.modules), np.int64), np.array(self.module_names, np.int64)),
            gradient_keys=_key_set(self.gradients, key_of),
            parameter_keys=_key_set(self.parameters, key_of),
            optimizer_state_keys=_key_set(self.optimizer_states, key_of),
            num_events=self.num_events,
        )
        return place_inline_operators(recording)

    def _frame_columns(self) -> Frames:
        user = [is_user_code(file) for file, *_ in self.frames.values()]
        rows = [
            (self.strings(whole_path(file) if mine or is_package_code(file) else file), line, self.strings(function))
            for (file, line, function), mine in zip(self.frames.values(), user, strict=True)
        ]
        file, line, function = _table(rows, 3)
        own = [is_own_code(file) for file, *_ in self.frames.values()]
        return Frames(file, line, function, np.array(user, bool), np.array(own, bool))

    def _keys(self, time_ns: Ints, address: Ints, size_bytes: Ints, number: Ints) -> tuple[Keys, dict[int, int]]:
        """Storages that were seen as tensors, in torch's order of keys, and the row of each allocation id."""
        in_time = np.argsort(time_ns, kind="stable")
        allocated, first = np.unique(number[in_time], return_index=True)
        size_of = dict(self.span_bytes)
        size_of.update(zip(allocated.tolist(), np.abs(size_bytes[in_time][first]).tolist(), strict=True))
        # A tensor's key sorts by (id, allocation id, device); a renamed storage follows the one it was split from.
        tensors = [
            (storage[0], self.original.get(number, number), max(0, -number), number)
            for number, storage in self.storages.items()
            if storage[0] is not None
        ]
        tensors.sort()
        numbers = [row[3] for row in tensors]
        rows = [(row[0], row[1], *self.storages[row[3]][1:], size_of.get(row[3], 0)) for row in tensors]
        return Keys(*_table(rows, 5)), {number: row for row, number in enumerate(numbers)}

    def _allocation_columns(self, columns: tuple[Ints, ...], key_of: dict[int, int]) -> Allocations:
        time, address, size, number, allocated, reserved, op, call, assumed = columns
        distinct, inverse = np.unique(number, return_inverse=True)
        numbers = distinct.tolist()
        return Allocations(
            time_ns=time,
            address=address,
            size_bytes=size,
            allocation_id=number,
            key=np.array([key_of.get(n, -1) for n in numbers], np.int64)[inverse],
            device=np.array([self.storages[n][1] for n in numbers], np.int64)[inverse],
            total_allocated_bytes=allocated,
            total_reserved_bytes=reserved,
            op=op,
            call=call,
            assumed=assumed.astype(bool),
        )

    def _flow(self, key_of: dict[int, int]) -> DataFlow:
        time = np.array(self.node_time, np.int64)
        order = np.argsort(time, kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        num_edges = np.array([len(edges) for edges in self.node_edges], np.int64)
        node = np.repeat(rank, num_edges)
        key = np.array([key_of.get(number, -1) for edges in self.node_edges for number in edges], np.int64)
        bits = np.array([bit for edges in self.node_edges for bit in edges.values()], np.int64)
        tensors = key >= 0
        node, key, bits = node[tensors], key[tensors], bits[tensors]
        sort = np.lexsort((key, node))
        node, key, bits = node[sort], key[sort], bits[sort]
        touched = bits & (_WRITTEN | _UNKNOWN | _READ)
        return DataFlow(
            node_time_ns=time[order],
            node_backward=np.array(self.node_backward, bool)[order],
            edge_node=node,
            edge_key=key,
            edge_allocated=(bits & _ALLOCATED) > 0,
            edge_freed=(bits & _FREED) > 0,
            # An operator without a matching schema counts as a writer only where no known one touched the storage.
            edge_mutated=((touched & _WRITTEN) > 0) | (touched == _UNKNOWN),
        )


def _columns(flat: array[int], width: int) -> tuple[Ints, ...]:
    """A flat table as contiguous columns."""
    rows = np.frombuffer(flat, np.int64) if flat else np.empty(0, np.int64)
    return tuple(np.ascontiguousarray(column) for column in rows.reshape(-1, width).T)


def _table(rows: Sequence[tuple[Any, ...]], width: int) -> tuple[Ints, ...]:
    """Rows of integers as contiguous columns."""
    return _columns(array("q", [value for row in rows for value in row]), width)


def _key_set(numbers: list[int], key_of: dict[int, int]) -> Ints:
    return np.unique(np.array([key_of[number] for number in numbers if number in key_of], np.int64))
