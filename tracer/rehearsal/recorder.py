"""Records what every operator of a rehearsal makes, keeps and lets go of, with its allocation site."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.storage_columns import plain_tensors
from tracer.capture.recording import OpKind
from tracer.capture.torch_names import BACKWARD_FUNCTION, ENGINE_PREFIX, is_accumulate_grad
from tracer.capture.torch_private import torch_dispatch, torch_fake, torch_graph, torch_tensors
from tracer.rehearsal.open_calls import OpenCalls
from tracer.rehearsal.operator_results import (
    ASKS_HOW_MANY,
    DRAWN,
    FILLS_ZEROS,
    MAKES_ZEROS,
    RESULT_BYTES,
    fits_in_place,
    in_place_in,
)
from tracer.rehearsal.storage_log import ALLOCATED, FREED, NONE, READ, WRITTEN, StorageLog

_START, _END = 4, 5


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator that has run, as a rule of a device sees it."""

    name: str  # With its namespace, such as `aten::mm`
    args: tuple[Any, ...]  # Positional arguments
    kwargs: dict[str, Any]  # Keyword arguments
    out: Any  # What it returned
    is_backward: bool  # Whether it ran in a backward pass, which has a thread of its own on a GPU


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that an operator takes and that is no tensor of the program's."""

    size_bytes: int  # Bytes taken
    kept_as: str = ""  # Name, for screens, of memory that stays for good; else it is freed when the operator ends
    # What it may be instead, where a library decides; only the range of a prediction knows of it.
    at_most_bytes: int = 0
    beside: int | None = None  # With how many of the pieces behind it it is held; None for all
    # The result behind which it is taken, to be freed before the next is made; None behind all.
    after: Tensor | None = None


ScratchOf = Callable[[OperatorCall], Iterable[Scratch]]
ResultOf = Callable[[OperatorCall], Any]
Watch = Callable[[OperatorCall], None]


@dataclass(slots=True)
class _Known:
    name: str
    string: int
    written: tuple[int, ...]
    written_names: tuple[str, ...]
    scratch: tuple[ScratchOf, ...]
    result: ResultOf | None
    result_bytes: Callable[[tuple[Any, ...]], int | None] | None
    is_view: bool
    is_query: bool
    is_value_read: bool
    is_add: bool
    in_place: Any
    order: tuple[int, ...]
    may_be_gradient: bool


@dataclass(frozen=True, slots=True)
class AnsweredRead:
    """A place where the program read a number out of a tensor, which a rehearsal does not have."""

    file: str  # File of the user's or a library's innermost line; empty where there is none
    line: int  # Line number in that file
    answer: str  # What it was given
    count: int  # How often


class Recorder:
    """Records operators on fake tensors, while `recording()` is entered.

    Attributes:
        log: What has been recorded.
        mode: The fake tensors' mode.
    """

    def __init__(
        self,
        mode: Any,
        scratch_of: Callable[[Any], tuple[ScratchOf, ...]],
        *,
        order: Mapping[str, tuple[int, ...]] | None = None,
        result_of: Callable[[Any], ResultOf | None] = lambda operator: None,
        kernels: Mapping[Any, Callable[..., Any]] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Set up an empty log; operators are recorded while the recorder is entered.

        Args:
            mode: The mode from `torch_fake.fake_tensors`.
            scratch_of: From an operator to what tells what its calls take beside their results; asked once for each.
            order: In which order operators make their results, by name, where not from the first to the last.
            result_of: From an operator to what tells what its calls really return, where its fake kernel does not know.
            kernels: What stands in for operators that are made of others. Under `torch.inference_mode` these come here
                whole, since autograd, which would take them apart, is passed by.
            watch: Called with every operator when it has run.
        """
        self._kernels, self._dispatched = kernels or {}, torch_dispatch.dispatched_to(self._operator)
        self.log, self.mode = StorageLog(), mode
        self._scratch_of, self._result_of, self._watch = scratch_of, result_of, watch
        self._order = order or {}
        self._known: dict[Any, _Known] = {}
        # By what tells live storages apart: number, weak reference, bytes that the fake tensor says.
        self._storage_of: dict[int, tuple[int, weakref.ref[torch.UntypedStorage], int]] = {}
        self._calls: OpenCalls | None = None
        self._op = NONE
        self._node, self._engine, self._node_id, self._held_node = NONE, NONE, NONE, None
        self._node_bits: dict[int, int] | None = None
        self._bits: dict[int, int] | None = None
        self._has_accumulated = False
        self._num_backwards = 0
        self._next_number = 0
        self._may_accumulate = False
        # Counts of infinities among gradients: there are none, or the optimizer would never step.
        self._zeros: set[int] = set()
        self._new_zeros: int = NONE
        # By storage: what a program reads in it that has drawn it.
        self._drawn: dict[int, float] = {}
        # Of tensors with memory: their fake ones by storage, and what lets go of these when the storage is no more.
        self._stand_ins: dict[int, Tensor] = {}
        self._let_go: list[weakref.finalize[Any, Any]] = []
        self._reads: Counter[tuple[int, str]] = Counter()
        # By storage: what its tensors took before they were copied into it. Until its first use.
        self._copied_together: dict[int, tuple[int, ...]] = {}
        # What libraries keep: number and name.
        self._workspaces: list[tuple[int, str]] = []

    # ------------------------------------------------------------------------------------------------- the life cycle
    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs inside."""
        self._calls = OpenCalls(self.log, sys._getframe(2))
        handles = [
            nn.modules.module.register_module_forward_pre_hook(self._enter_module),
            nn.modules.module.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        self._next_number = torch_graph.next_node_number()
        try:
            with self._backward_told(), self.mode, self._dispatched:
                yield
        finally:
            for handle in handles:
                handle.remove()
            for tensor in self._let_go:
                tensor.detach()

    @contextmanager
    def _backward_told(self) -> Iterator[None]:
        backward, grad = torch.autograd.backward, torch.autograd.grad

        def told(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                self._enter_backward(sys._getframe(0))
                try:
                    return function(*args, **kwargs)
                finally:
                    self._leave_backward()

            return call

        torch.autograd.backward, torch.autograd.grad = told(backward), told(grad)
        try:
            yield
        finally:
            torch.autograd.backward, torch.autograd.grad = backward, grad

    @property
    def value_reads(self) -> tuple[AnsweredRead, ...]:
        """Lines at which the program read numbers, the most frequent first."""
        frames = [*self.log.frames, ("", 0, "", False)]
        return tuple(
            AnsweredRead(str(frames[frame][0]), int(frames[frame][1]), answer, count)
            for (frame, answer), count in self._reads.most_common()
        )

    # --------------------------------------------------------------------------------------------- modules and backward
    def _enter_module(self, module: nn.Module, args: Any) -> None:
        log = self.log
        if self._num_backwards:
            self._find_node()
        if id(module) not in log.modules:
            row = log.modules[id(module)]
            log.module_names.append(log.strings[f"{type(module).__name__}_{row}"])
        if self._calls is not None:
            self._calls.enter(sys._getframe(1), self._node, module=log.modules[id(module)])

    def _leave_module(self, module: nn.Module, args: Any, result: Any) -> None:
        if self._calls is not None and self._calls.depth:
            self._calls.leave()

    def _enter_backward(self, frame: FrameType) -> None:
        if self._num_backwards:
            self._find_node()
        function = self.log.frames[(*BACKWARD_FUNCTION[:1], 0, BACKWARD_FUNCTION[1], False)]
        if self._calls is not None:
            self._calls.enter(frame, self._node, function=function)
        self._num_backwards += 1

    def _leave_backward(self) -> None:
        self._num_backwards -= 1
        self._end_node()
        if self._calls is not None:
            self._calls.leave()

    def begin_step(self) -> int:
        """Nothing of a former step is open any more; the time."""
        if self._calls is not None:
            self._calls.forget_lines()
        return self.log.tick()

    def span(self, name: str, start_ns: int) -> None:
        """Note a named stretch of time that ends now."""
        log = self.log
        log.spans.append((log.strings[name], start_ns, log.tick()))

    # ---------------------------------------------------------------------------------------------------- operators
    def _operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in self._kernels:
            with self._dispatched:
                return self._kernels[func](*args, **kwargs)
        known = self._known.get(func)
        if known is None:
            known = self._known[func] = self._look_at(func)
        if known.is_query:
            self._may_accumulate = self._num_backwards > 0
            # Two of three calls ask for a device: without this a rehearsal takes a third longer.
            device = getattr(args[0], "fake_device", None) if known.name == "prim::device" else None
            return func(*args, **kwargs) if device is None else device
        may_accumulate, self._may_accumulate = self._may_accumulate, False
        log, calls = self.log, self._calls
        if self._num_backwards:
            self._find_node()
        args, kwargs, tensors = self._with_stand_ins(args, kwargs, is_view=known.is_view)
        call = calls.row(sys._getframe(2), self._node) if calls is not None else NONE
        if known.is_view:
            # A piece of a data set is no use of all of it: what comes from outside counts when something reads it.
            tensors = [tensor for tensor in tensors if self._is_known(tensor)]
        outside = [self.number(tensor) for tensor in tensors]
        bits = self._begin_operator(known, tensors, call)
        for storage in outside:
            bits[storage] = bits.get(storage, 0) | READ
        for storage in self._written(known, args, kwargs):
            bits[storage] = bits.get(storage, 0) | WRITTEN
            self._drawn.pop(storage, None)
        if known.may_be_gradient and not self._has_accumulated and self._node_is_accumulate:
            self._has_accumulated = True
            log.gradients.add(outside[0])
        if may_accumulate and known.is_add and self._takes_over(args):
            out = args[0]
            bits[outside[0]] = bits.get(outside[0], 0) | WRITTEN
            self._may_accumulate = True
        else:
            out = self._run_operator(known, func, args, kwargs, bits)
        if known.written:
            self._resized(args, known)
        log.ops[self._op][_END] = log.tick()
        if calls is not None:
            calls.touch()
        self._op, self._bits = NONE, None
        return out

    def _with_stand_ins(
        self, args: Any, kwargs: Any, *, is_view: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Tensor]]:
        tensors = [*strided_tensors(args), *strided_tensors(kwargs.values())]
        real = [tensor for tensor in tensors if not torch_fake.is_fake(tensor)]
        if real:
            if not is_view:
                self._keep_stand_ins(real)
            args, kwargs = self._all_fake(args), self._all_fake(kwargs)
            tensors = [*strided_tensors(args), *strided_tensors(kwargs.values())]
        return args, kwargs, tensors

    def _begin_operator(self, known: _Known, tensors: list[Tensor], call: int) -> dict[int, int]:
        """Add a row of the operators' table, and return the edges of its data-flow node."""
        log, parent = self.log, self._node
        start_ns = log.tick()
        number = NONE
        if torch.is_grad_enabled():
            number = self._next_number
            self._next_number = max(self._next_number, torch_graph.next_node_number())
        shapes = log.shapes[tuple(tuple(tensor.shape) for tensor in tensors)]
        log.ops.append(
            [known.string, int(OpKind.OPERATOR), parent, call, start_ns, start_ns, number, 0, NONE, shapes, NONE]
        )
        self._op = len(log.ops) - 1
        bits = self._node_bits if self._node_bits is not None else log.add_node(start_ns, backward=parent >= 0)
        self._bits = bits
        return bits

    def _run_operator(
        self, known: _Known, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], bits: dict[int, int]
    ) -> Any:
        out = self._result(known, func, args, kwargs)
        ran = OperatorCall(known.name, args, kwargs, out, self._num_backwards > 0)
        if known.result is not None:
            out = known.result(ran)
            ran = replace(ran, out=out)
        if not known.is_view:
            in_order = [out[n] for n in known.order] if known.order else out
            self._made(in_order, bits, known.result_bytes(args) if known.result_bytes is not None else None)
        self._new_zeros = self.number(out) if known.name in MAKES_ZEROS else NONE
        if known.name in DRAWN and (drawn := DRAWN[known.name](args, kwargs)) is not None:
            self._drawn[self.number(out)] = drawn
        if known.name == _COUNTS_INFINITIES:
            self._zeros.add(self.number(args[1]))
        if known.scratch:
            self._take(known.scratch, ran)
        if self._watch is not None:
            self._watch(ran)
        return out

    def _look_at(self, func: Any) -> _Known:
        name = torch_dispatch.schema_name(func)
        written, names = torch_dispatch.written_arguments(func)
        return _Known(
            name=name,
            string=self.log.strings[name],
            written=written,
            written_names=names,
            scratch=self._scratch_of(func),
            result=self._result_of(func),
            result_bytes=RESULT_BYTES.get(name),
            is_view=bool(getattr(func, "is_view", False)),
            is_query=name.startswith("prim::") or name in _QUERIES,
            is_value_read=name == "aten::_local_scalar_dense",
            is_add=func is torch.ops.aten.add.Tensor,
            in_place=FILLS_ZEROS.get(func),
            order=self._order.get(name, ()),
            may_be_gradient=name in ("aten::detach", "aten::add_"),
        )

    def _result(self, known: _Known, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if known.name in ASKS_HOW_MANY:
            as_if_all = ASKS_HOW_MANY[known.name](args)
            if as_if_all is not None:
                self._note_read("all")
                return as_if_all()
        if known.in_place is not None and self._num_backwards and self.number(args[0]) == self._new_zeros:
            return known.in_place(*args, **kwargs)
        in_place = in_place_in(self._node_name, func) if self._node >= 0 else None
        if in_place is not None and self._is_of_node(args) and fits_in_place(args):
            return in_place(*args, **kwargs)
        if not known.is_value_read:
            return func(*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            if self.number(args[0]) in self._zeros:
                return 0.0
            dtype = args[0].dtype
            plain = False if dtype is torch.bool else 1.0 if dtype.is_floating_point else 1
            answer = self._drawn.get(self.number(args[0]), plain)
            self._note_read(answer)
            return answer

    def _is_of_node(self, args: tuple[Any, ...]) -> bool:
        """Whether the first argument was made by the node at work, for its own use."""
        if self._node_bits is None or torch.is_grad_enabled():
            return False
        return bool(self._node_bits.get(self.number(args[0]), 0) & ALLOCATED)

    def _note_read(self, answer: object) -> None:
        call = self.log.ops[self._op][3]
        self._reads[self.log.calls[call][3] if call >= 0 else NONE, str(answer)] += 1

    def _keep_stand_ins(self, real: Iterable[Tensor]) -> None:
        """What a program has made before it is rehearsed is there as long as the program holds it.

        A piece of a data set is not kept: that all of it is on the device is not said.
        """
        for tensor in real:
            storage = tensor.untyped_storage()
            key = torch_tensors.storage_key(storage)
            if key not in self._stand_ins:
                self._stand_ins[key] = torch_fake.fake_copy(self.mode, tensor)
                self._let_go.append(weakref.finalize(storage, self._stand_ins.pop, key, None))

    def _all_fake(self, value: Any) -> Any:
        """The same with every real tensor's stand-in in its place."""
        if isinstance(value, Tensor):
            return value if torch_fake.is_fake(value) else torch_fake.fake_copy(self.mode, value)
        if isinstance(value, dict):
            return {key: self._all_fake(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._all_fake(item) for item in value)
        return value

    def _written(self, known: _Known, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[int]:
        for position, name in zip(known.written, known.written_names, strict=True):
            value = args[position] if position < len(args) else kwargs.get(name)
            yield from (self.number(tensor) for tensor in strided_tensors((value,)))

    # ------------------------------------------------------------------------------------------------ autograd's nodes
    def _find_node(self) -> None:
        node = torch_graph.running_node()
        if node is None:
            self._end_node()
            return
        number = torch_graph.node_number(node)
        is_same = number == self._node_id if number >= 0 else node is self._held_node
        if is_same and self._node >= 0:
            return
        self._end_node()
        log, calls = self.log, self._calls
        name = str(node.name())
        call = calls.row(None, NONE) if calls is not None else NONE
        now = log.tick()
        for kind, text in ((OpKind.ENGINE, f"{ENGINE_PREFIX}{name}"), (OpKind.BACKWARD_NODE, name)):
            parent = len(log.ops) - 1 if kind == OpKind.BACKWARD_NODE else NONE
            log.ops.append([log.strings[text], int(kind), parent, call, now, now, number, 0, NONE, NONE, NONE])
        self._node, self._engine = len(log.ops) - 1, len(log.ops) - 2
        self._node_id, self._node_name = number, name
        self._held_node = node if number < 0 else None
        self._node_is_accumulate, self._has_accumulated = is_accumulate_grad(name), False
        self._node_bits = log.add_node(now, backward=True)

    _node_is_accumulate, _node_name = False, ""

    def _end_node(self) -> None:
        if self._node >= 0:
            end_ns = self.log.tick()
            self.log.ops[self._node][_END] = self.log.ops[self._engine][_END] = end_ns
        self._node = self._engine = self._node_id = NONE
        self._held_node, self._node_bits, self._node_is_accumulate = None, None, False

    def _takes_over(self, args: tuple[Any, ...]) -> bool:
        """Whether the engine adds to the gradient that it holds already, in place.

        It does where nothing else holds it. Under a dispatch mode it never does, so this is done here.

        Source: `accumulate` and `can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp.
        """
        if torch.is_grad_enabled() or len(args) != 2 or not isinstance(args[1], Tensor):
            return False
        old, new = args
        if old.shape != new.shape or old.dtype != new.dtype:
            return False
        storage = old.untyped_storage()
        is_dense = storage.nbytes() == old.numel() * old.element_size() and 0 not in old.stride()
        is_unshared = torch_tensors.num_storage_users(storage) <= _UNSHARED_STORAGE
        return is_dense and is_unshared and torch_tensors.num_tensor_users(old) <= _UNSHARED_TENSOR

    # ------------------------------------------------------------------------------------------------------ storages
    def number(self, tensor: Tensor) -> int:
        """The storage of a tensor; one that was not seen being made comes from outside, and is allocated now."""
        storage = tensor.untyped_storage()
        entry = self._storage_of.get(torch_tensors.storage_key(storage))
        if entry is not None:
            return entry[0]
        parts = self._copied_together.pop(torch_tensors.storage_key(storage), None)
        if parts is not None:
            return self._new_of_all(tensor, storage, parts)
        return self._new(tensor, storage, tensor.numel() * tensor.element_size())

    def copied_together(self, tensors: list[Tensor]) -> None:
        """These came to the device one by one, and were copied into the one storage of them all, which is kept.

        Args:
            tensors: Of one storage, none of which has been seen yet.
        """
        sizes = tuple(tensor.numel() * tensor.element_size() for tensor in tensors)
        self._copied_together[torch_tensors.storage_key(tensors[0].untyped_storage())] = sizes

    def _new_of_all(self, tensor: Tensor, storage: torch.UntypedStorage, sizes: tuple[int, ...]) -> int:
        log = self.log
        first = len(log.storages)
        for number, size_bytes in enumerate(sizes, first):
            log.storages.append((size_bytes, NONE, NONE, False, False))
            log.events.append((number, size_bytes, log.tick(), self._op, NONE))
        whole = self._new(tensor, storage)
        for number, size_bytes in enumerate(sizes, first):
            log.events.append((number, -size_bytes, log.tick(), self._op, NONE))
        return whole

    def _is_known(self, tensor: Tensor) -> bool:
        return torch_tensors.storage_key(tensor.untyped_storage()) in self._storage_of

    def _made(self, out: Any, bits: dict[int, int], first_bytes: int | None) -> None:
        """Note the storages that an operator has made; the first may be larger than its fake tensor says."""
        for tensor in strided_tensors((out,)):
            storage = tensor.untyped_storage()
            if torch_tensors.storage_key(storage) not in self._storage_of:
                number = self._new(tensor, storage, first_bytes)
                first_bytes = None
                bits[number] = bits.get(number, 0) | ALLOCATED

    def _new(self, tensor: Tensor, storage: torch.UntypedStorage, known_bytes: int | None = None) -> int:
        log = self.log
        key, fake_bytes = torch_tensors.storage_key(storage), storage.nbytes()
        size_bytes = fake_bytes if known_bytes is None else known_bytes
        shape = log.shapes[(tuple(tensor.shape),)]
        dtype = log.strings[str(tensor.dtype).removeprefix("torch.")]
        number = len(log.storages)
        log.storages.append((size_bytes, shape, dtype, True, False))
        if size_bytes:
            call = log.ops[self._op][3] if self._op >= 0 else NONE
            log.events.append((number, size_bytes, log.tick(), self._op, call))

        def died(_: object) -> None:
            if self._storage_of.get(key, (NONE,))[0] == number:
                del self._storage_of[key]
                self._free(number)

        self._storage_of[key] = number, weakref.ref(storage, died), fake_bytes
        return number

    def _free(self, number: int) -> None:
        log = self.log
        size_bytes = log.storages[number][0]
        if not size_bytes:
            return
        now = log.tick()
        inside = self._op if self._op >= 0 else self._engine
        log.events.append((number, -size_bytes, now, inside, log.ops[inside][3] if inside >= 0 else NONE))
        bits = self._bits
        if bits is None and self._node_bits is not None and self._node_bits.get(number, 0) & ALLOCATED:
            bits = self._node_bits
        if bits is None:
            bits = log.add_node(now, backward=False)
        bits[number] = bits.get(number, 0) | FREED

    def _resized(self, args: tuple[Any, ...], known: _Known) -> None:
        """An operator may give a storage that it writes to another size."""
        log = self.log
        for position in known.written:
            for tensor in strided_tensors(args[position : position + 1]):
                storage = tensor.untyped_storage()
                number = self.number(tensor)
                key = torch_tensors.storage_key(storage)
                if storage.nbytes() == self._storage_of[key][2]:
                    continue
                old_bytes, *rest = log.storages[number]
                call = log.ops[self._op][3] if self._op >= 0 else NONE
                if old_bytes:
                    log.events.append((number, -old_bytes, log.tick(), self._op, call))
                # A resized storage counts as a new allocation.
                del self._storage_of[key]
                log.storages[number] = (0, *rest)  # type: ignore[assignment]
                self._new(tensor, storage)

    def _take(self, rules: Iterable[ScratchOf], operator: OperatorCall) -> None:
        """What an operator takes beside its results, in the order of the rules."""
        log = self.log
        call = log.ops[self._op][3]
        held: list[tuple[int, int]] = []
        pieces = (scratch for of_rule in rules for scratch in of_rule(operator))
        for num_taken, scratch in enumerate(pieces):
            if scratch.after is not None:
                self._take_between(scratch, scratch.after, is_backward=operator.is_backward)
                continue
            if scratch.at_most_bytes and log.events:
                log.undecided.append((len(log.events) - 1, scratch.at_most_bytes, operator.is_backward))
            if scratch.size_bytes <= 0:
                continue
            held = self._give_back(held, num_taken)
            number = len(log.storages)
            log.storages.append((scratch.size_bytes, NONE, NONE, False, False))
            log.events.append((number, scratch.size_bytes, log.tick(), self._op, call))
            if scratch.kept_as:
                self._workspaces.append((number, scratch.kept_as))
                self._observe_workspaces(log.tick())
            else:
                beside = scratch.beside
                held.append((number, num_taken + beside if beside is not None else _TO_THE_END))
        self._give_back(held, None)

    def _take_between(self, scratch: Scratch, result: Tensor, *, is_backward: bool) -> None:
        """What is taken and freed behind one result, before the operator makes the next."""
        log, made = self.log, self.number(result)
        rows = range(len(log.events) - 1, -1, -1)
        row = next((row for row in rows if log.events[row][0] == made), len(log.events) - 1)
        _, _, time_ns, op, call = log.events[row]
        if scratch.size_bytes > 0:
            number = len(log.storages)
            log.storages.append((scratch.size_bytes, NONE, NONE, False, False))
            sizes = (scratch.size_bytes, -scratch.size_bytes)
            log.events[row + 1 : row + 1] = [(number, size, time_ns + at, op, call) for at, size in enumerate(sizes, 1)]
            log.undecided = [(at + 2 if at > row else at, *rest) for at, *rest in log.undecided]  # type: ignore[misc]
        if scratch.at_most_bytes:
            log.undecided.append((row, scratch.at_most_bytes, is_backward))

    def _give_back(self, held: list[tuple[int, int]], num_taken: int | None) -> list[tuple[int, int]]:
        """Free, the last one first, what is held no longer than up to a piece, or all; the rest."""
        log = self.log
        ended = [number for number, last in held if num_taken is None or last < num_taken]
        for number in reversed(ended):
            log.events.append((number, -log.storages[number][0], log.tick(), self._op, log.ops[self._op][3]))
        return [one for one in held if one[0] not in ended]

    # -------------------------------------------------------------------------------------------------- observations
    def observe(self, tensors: Iterable[tuple[Role, str, Tensor]]) -> None:
        """Note what tensors are; one that was not seen before is allocated now."""
        log = self.log
        observations = [
            (self.number(part), int(role), name)
            for role, name, tensor in tensors
            for part in plain_tensors(tensor)
            if part.layout is torch.strided
        ]
        now = log.tick()
        log.observations += [(now, *observation) for observation in observations]

    def _observe_workspaces(self, now: int) -> None:
        self.log.observations += [(now, number, int(Role.WORKSPACE), name) for number, name in self._workspaces]

    def observe_the_rest(self) -> None:
        """Note that Python, or a graph, or a library, holds every storage that is alive: one look with the last."""
        now = self.log.observations[-1][0] if self.log.observations else self.log.tick()
        self._observe_workspaces(now)
        alive = sorted(number for number, *_ in self._storage_of.values())
        self.log.observations += [(now, number, int(Role.HELD), "") for number in alive]

    def is_on_host(self, tensors: Iterable[Tensor]) -> None:
        """These are not on the device, and never were."""
        for number in map(self.number, tensors):
            size_bytes, shape, dtype, is_tensor, _ = self.log.storages[number]
            self.log.storages[number] = size_bytes, shape, dtype, is_tensor, True


_TO_THE_END = 1 << 30
_UNSHARED_STORAGE = 2  # the tensor, and the Python object that asks
_UNSHARED_TENSOR = 4  # the engine's buffer, the operator's arguments, and two of the call that brings them here
_COUNTS_INFINITIES = "aten::_amp_foreach_non_finite_check_and_unscale_"
_QUERIES = frozenset({"aten::size", "aten::stride", "aten::is_contiguous", "aten::numel", "aten::dim"})


def strided_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors with one storage among an operator's arguments, those in lists too."""
    for value in values:
        if isinstance(value, Tensor):
            if value.layout is torch.strided:
                yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, Tensor) and item.layout is torch.strided)
