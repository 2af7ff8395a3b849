"""An independent bookkeeper of every tensor's storage: what is alive, who holds it, what was doing when it was made.

It shares no code with the tracer and reads nothing that the profiler recorded. A dispatch mode in every thread sees
each operator's arguments and results, weak references see storages die, hooks of saved tensors see what is kept for
backward and when it is let go of. What it cannot see is what a kernel allocates inside itself and frees again.

What the autograd engine makes was called by nobody's line but that of `backward`. It belongs to the forward operator
whose node the engine runs: nodes are numbered, and each operator is noted under the number of the node that it made.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from tests.truth.program import Program
from tests.truth.storages import storages_in, storages_of, tensors_in

ROOT = str(Path(__file__).resolve().parent.parent.parent)
_TORCH = tuple(f"{path}/" for path in (Path(torch.__file__).parent, Path(torch.__file__).resolve().parent))
# The harness calls the programs; its own lines are nobody's.
_HARNESS = {
    str(Path(__file__).with_name(name))
    for name in ("bookkeeper.py", "running.py", "storages.py", "isolate.py", "on_device.py")
}


# Of the peak. A kernel's own memory, which only the tracer sees, may put its peak inside another operator.
_NEARLY = 0.6
_SUM = "aten.add.Tensor"


class HeldBy(StrEnum):
    """By which object a storage is held, in the order in which one is chosen."""

    PARAMETER = "PARAMETER"
    GRADIENT = "GRADIENT"
    BUFFER = "BUFFER"
    OPTIMIZER_STATE = "OPTIMIZER_STATE"
    INPUT = "INPUT"


class Phase(StrEnum):
    """What was going on when a storage was first seen."""

    BEFORE = "before"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@dataclass(slots=True, eq=False)
class Block:
    """A live storage.

    Attributes:
        made: Whether an operator's result showed it first; else it was an argument first, or the garbage collector's
            list of tensors had it: memory that need not be torch's own allocator's.
        from_nothing: The operator that made it was given no tensor.
        packed: How many saved tensors of it are not released.
        was_packed: There ever was one.
        becomes_gradient: At a later time it was some parameter's `.grad`.
        becomes_state: At the end of a step of the optimizer that made it, it was in its state.
        is_collectives: Handed to a collective, received into, or what FSDP copies into or out of for a collective.
        added_to: Sums that backward added something to, and got this. The engine writes into the sum, and does not
            where somebody looks on.
        line: The innermost line of the project's code or a library's, outside harness and torch; of the engine's work,
            the forward's.
    """

    reference: weakref.ref[torch.UntypedStorage]
    bytes: int
    address: int
    made: bool
    op: str
    phase: Phase
    step: int
    module: str | None
    file: str | None
    line: int | None
    from_nothing: bool = False
    packed: int = 0
    was_packed: bool = False
    becomes_gradient: bool = False
    becomes_state: bool = False
    is_collectives: bool = False
    added_to: list[Block] = field(default_factory=list)
    seen_as: Alive | None = None


@dataclass(frozen=True, slots=True)
class Alive:
    """A block at an instant that was kept: what is true of it then, and whether it is a gradient or state later."""

    bytes: int
    holder: HeldBy | None
    name: str | None
    packed: bool
    phase: Phase
    step: int
    module: str | None
    op: str
    file: str | None
    line: int | None
    from_nothing: bool = False
    becomes_gradient: bool = False
    becomes_state: bool = False
    is_collectives: bool = False
    is_left: bool = False  # In use in a backward, made in forward, and never saved: a variable has it


@dataclass(frozen=True, slots=True)
class Instant:
    """What tensors held before or after an operator, within a phase of a step."""

    bytes: int
    step: int
    phase: Phase
    op: str
    blocks: tuple[Alive, ...]


_Where = tuple[str | None, str | None, int | None]
"""Module, file and line."""


@dataclass
class _Thread(threading.local):
    modules: list[str] = field(default_factory=list)
    optimizers: int = 0
    watches: bool = False
    makers: dict[int, _Where] = field(default_factory=dict)
    """Who made each autograd node, by its number, which counts in each thread."""


class _Packed:
    """What a hook packed: kept for backward until this object is let go of."""

    __slots__ = ("__weakref__", "unpack", "value")

    def __init__(self, value: Any, unpack: Callable[[Any], Any]) -> None:
        self.value, self.unpack = value, unpack


class Bookkeeper:
    """Watches a program from before it is built; `begin` and `end` enclose the steps that count.

    Attributes:
        live_bytes: Of all storages that are alive now.
        peak_bytes: The most within the steps that count.
        start_bytes: At their beginning, the last time that some began.
        old_bytes: Time in ns and bytes of what is left of the storages from before the steps that count.
        begins: Where in `old_bytes` each of their beginnings is.
        foreign_bytes: The most that was alive, within those steps, of storages that no operator made.
    """

    def __init__(
        self, *, saves: bool = True, size_of: Callable[[torch.UntypedStorage], int] = torch.UntypedStorage.nbytes
    ) -> None:
        """Prepare.

        Args:
            saves: Whether to set hooks of saved tensors; without them nothing is known to be kept for backward.
            size_of: How many bytes a storage counts.
        """
        self.program: Program | None = None
        self._size_of = size_of
        self.saves = saves
        self.live_bytes = self.peak_bytes = self.start_bytes = self.foreign_bytes = 0
        self._largest: dict[tuple[int, Phase], tuple[Instant, tuple[Block, ...]]] = {}
        self._near_peak: list[tuple[Instant, tuple[Block, ...]]] = []
        self.old_bytes: list[tuple[int, int]] = []
        self.begins: list[int] = []
        self.step = -1
        self._live: dict[int, Block] = {}
        self._at: dict[int, dict[int, int]] = {}
        self._old: dict[int, int] = {}
        self._foreign: dict[int, int] = {}
        self._counts = False
        self._has_changed, self._last_here = True, (-1, Phase.BEFORE)  # since the last instant, and where that was
        self._lock = threading.RLock()
        self._here = _Thread()
        self._names: dict[int, str] = {}

    # ---- the life cycle ----------------------------------------------------------------------------------------------
    @contextmanager
    def watching(self) -> Iterator[None]:
        """See every operator, in this thread and in those that start within."""
        with ExitStack() as stack:
            stack.enter_context(self._hooks_of_others())
            stack.enter_context(self._in_threads())
            stack.enter_context(self._in_this_thread())
            handles = (
                module_hooks.register_module_forward_pre_hook(self._enter_module),
                module_hooks.register_module_forward_hook(self._leave_module, always_call=True),
                optimizer_hooks.register_optimizer_step_pre_hook(self._enter_optimizer),
                optimizer_hooks.register_optimizer_step_post_hook(self._leave_optimizer),
            )
            for handle in handles:
                stack.callback(handle.remove)
            yield

    def knows(self, program: Program) -> None:
        """Learn the names of a program's modules."""
        self.program = program
        for prefix, model in self._models():
            for name, module in model.named_modules():
                # A model without a name around it goes by that of its class.
                path = ".".join(filter(None, (prefix, name))) or type(module).__name__
                self._names.setdefault(id(module), path)
        for parameter in self._parameters():
            if parameter.is_leaf and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._note_gradient)

    def begin(self) -> None:
        """The next step is the first that counts: everything that is alive now belongs to the peak."""
        self.look_around()
        with self._lock:
            self._old = {key: block.bytes for key, block in self._live.items()}
            self._counts, self.start_bytes = True, self.live_bytes
            self.begins.append(len(self.old_bytes))
            self.old_bytes.append((time.time_ns(), sum(self._old.values())))
            self._note_instant("(start)")

    def end(self) -> None:
        """No more steps count."""
        self._counts = False
        self.note_gradients()

    @property
    def instants(self) -> tuple[Instant, ...]:
        """The largest of each phase of each step, and all that are nearly as large as the peak."""
        near = [each for each in self._near_peak if each[0].bytes >= _NEARLY * self.peak_bytes]
        found, final = [], dict[int, Alive]()
        for instant, blocks in (*self._largest.values(), *near):
            for one, block in zip(instant.blocks, blocks, strict=True):
                if id(one) not in final:
                    final[id(one)] = replace(
                        one,
                        becomes_gradient=block.becomes_gradient,
                        becomes_state=block.becomes_state,
                        is_collectives=block.is_collectives,
                    )
            found.append(replace(instant, blocks=tuple(final[id(one)] for one in instant.blocks)))
        return tuple(found)

    def note_gradients(self) -> None:
        """Whatever is a parameter's gradient now was made to be one."""
        if self.program is not None:
            for parameter in self._parameters():
                self._note_gradient(parameter)

    def _note_gradient(self, parameter: Tensor) -> None:
        with warnings.catch_warnings():  # .grad of what takes a parameter's place for a while
            warnings.simplefilter("ignore")
            gradient = parameter.grad
        for storage in storages_in(gradient):
            waiting = [self._live[storage._cdata]] if storage._cdata in self._live else []
            self._has_changed = True
            while waiting:
                block = waiting.pop()
                block.becomes_gradient = True
                waiting += block.added_to
                block.added_to = []

    def look_around(self) -> None:
        """Enter every tensor that Python has an object of."""
        for value in gc.get_objects():
            if issubclass(type(value), Tensor):
                self._see(value, "(alive)", made=False)

    def look_into_graphs(self) -> None:
        """Enter what the graphs of Python's tensors saved for backward, of which Python need not have an object."""
        roots = [value.grad_fn for value in gc.get_objects() if issubclass(type(value), Tensor)]
        waiting, seen = [node for node in roots if node is not None], set[Any]()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            waiting += [before for before, _ in node.next_functions if before is not None]
            for name in dir(node):
                if name.startswith("_saved_"):
                    with suppress(RuntimeError):  # let go of, or written to since
                        for tensor in tensors_in(getattr(node, name)):
                            self._see(tensor, "(saved)", made=True)

    # ---- threads -----------------------------------------------------------------------------------------------------
    @contextmanager
    def _in_this_thread(self) -> Iterator[None]:
        if self._here.watches:
            yield
            return
        self._here.watches = True
        try:
            with _Mode(self), saved_tensors_hooks(_same, _same) if self.saves else nullcontext():
                yield
        finally:
            self._here.watches = False

    @contextmanager
    def _in_threads(self) -> Iterator[None]:
        """Modes and hooks belong to one thread: each that starts gets its own."""
        run = threading.Thread.run

        def watched(thread: threading.Thread) -> None:
            with self._in_this_thread():
                run(thread)

        threading.Thread.run = watched  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            threading.Thread.run = run  # type: ignore[method-assign]

    # ---- saved tensors -----------------------------------------------------------------------------------------------
    @contextmanager
    def _hooks_of_others(self) -> Iterator[None]:
        """Only the innermost hooks are called: whoever sets some gets ours around them."""
        init = saved_tensors_hooks.__init__

        def with_ours(hooks: Any, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
            init(hooks, lambda tensor: self._pack(pack(tensor), unpack), lambda packed: packed.unpack(packed.value))

        saved_tensors_hooks.__init__ = with_ours  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            saved_tensors_hooks.__init__ = init  # type: ignore[method-assign]

    def _pack(self, value: Any, unpack: Callable[[Any], Tensor]) -> _Packed:
        packed = _Packed(value, unpack)
        with self._lock:
            blocks = [self._enter(storage, "(packed)", made=False) for storage in storages_in(value)]
            for block in blocks:
                block.packed += 1
                block.was_packed = True
            self._has_changed = True
        weakref.finalize(packed, self._release, blocks).atexit = False
        return packed

    def _release(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.packed -= 1
        self._has_changed = True

    # ---- where we are ------------------------------------------------------------------------------------------------
    def _enter_module(self, module: nn.Module, args: Any) -> None:
        self._here.modules.append(self._names.get(id(module), type(module).__name__))

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._here.modules:
            self._here.modules.pop()

    def _enter_optimizer(self, *args: Any) -> None:
        self._here.optimizers += 1
        self.note_gradients()

    def _leave_optimizer(self, optimizer: torch.optim.Optimizer, *args: Any) -> None:
        self._here.optimizers -= 1
        with self._lock:
            for storage in storages_in(optimizer.state):
                if storage._cdata in self._live:
                    self._live[storage._cdata].becomes_state = True

    def _phase(self) -> Phase:
        if self.step < 0:
            return Phase.BEFORE
        if torch._C._current_graph_task_id() >= 0:
            return Phase.BACKWARD
        if self._here.modules:
            return Phase.FORWARD
        return Phase.OPTIMIZER if self._here.optimizers else Phase.OTHER

    # ---- storages ----------------------------------------------------------------------------------------------------
    def before_operator(self, op: str, arguments: object) -> None:
        """Enter what no operator showed, and note whose node it is that the operator may have made just now."""
        for storage in storages_in(arguments):
            self._enter(storage, op, made=False)
        if self._counts:
            with self._lock:
                self._note_instant(op)
        if torch.is_grad_enabled():
            self._here.makers[torch._C._autograd._get_sequence_nr() - 1] = self._where()

    def after_operator(self, op: str, results: object, *, arguments: object = None, from_nothing: bool = False) -> None:
        """Enter what it made or resized."""
        for storage in storages_in(results):
            block = self._enter(storage, op, made=True, from_nothing=from_nothing)
            if op == _SUM and block.phase is Phase.BACKWARD:
                known = (self._live.get(each._cdata) for each in storages_in(arguments))
                block.added_to = [one for one in known if one is not None and one is not block and one.op == _SUM]
        if self._counts:
            with self._lock:
                self._note_instant(op)

    def note_collective(self, op: str, arguments: tuple[Any, ...], written: object) -> None:
        """Note buffers of what is sent between ranks, and gradients that FSDP puts into one.

        Args:
            op: An operator.
            arguments: All of them by position.
            written: What else it writes into, and results.
        """
        name, chosen = op.split(".")[1], object()
        if op.startswith("c10d.") and name != "send":
            chosen = arguments[0] if "allgather" in name else arguments  # what is gathered is the parameter's own
        elif op.startswith("fsdp."):
            chosen = (arguments, written) if name == "all_gather_copy_in" else written
            for storage in storages_in(arguments if name.startswith("chunk_cat") else ()):
                self._enter(storage, op, made=False).becomes_gradient = True
        for storage in storages_in(chosen):
            self._enter(storage, op, made=False).is_collectives = True

    def _see(self, tensor: Tensor, op: str, *, made: bool) -> None:
        for storage in storages_of(tensor):
            self._enter(storage, op, made=made)

    def _enter(self, storage: torch.UntypedStorage, op: str, *, made: bool, from_nothing: bool = False) -> Block:
        key = storage._cdata
        with self._lock:
            block = self._live.get(key)
            if block is None:
                reference = weakref.ref(storage, lambda _: self._gone(key))
                where = (self._phase(), self.step, *self._where())
                block = self._live[key] = Block(reference, 0, 0, made, op, *where, from_nothing)
            self._measure(key, block, storage)
        return block

    def _where(self) -> _Where:
        """Module and line that what is made now belongs to."""
        node = torch._C._current_autograd_node() if torch._C._current_graph_task_id() >= 0 else None
        file, line, is_engines = _place()
        if node is not None and is_engines:
            maker = self._here.makers.get(node._sequence_nr())  # type: ignore[attr-defined]
            if maker is not None:
                return maker
        return (self._here.modules[-1] if self._here.modules else None), file, line

    def _measure(self, key: int, block: Block, storage: torch.UntypedStorage) -> None:
        address, size = storage.data_ptr(), self._size_of(storage)
        if (address, size) != (block.address, block.bytes):
            self._forget_size(key, block)
            block.address, block.bytes = address, size
            self._change(address, key, size)
            if not block.made:
                self._foreign[key] = size

    def _change(self, address: int, key: int, size: int) -> None:
        """Storages at one address are one piece of memory, such as an array of NumPy's that two tensors show."""
        self._has_changed = True
        sizes = self._at.setdefault(address, {})
        before = max(sizes.values(), default=0)
        if size:
            sizes[key] = size
        else:
            sizes.pop(key, None)
        self.live_bytes += max(sizes.values(), default=0) - before
        if not sizes:
            del self._at[address]

    def _forget_size(self, key: int, block: Block) -> None:
        if block.bytes:
            self._change(block.address, key, 0)
        if self._old.pop(key, None) is not None:
            self.old_bytes.append((time.time_ns(), sum(self._old.values())))

    def _gone(self, key: int) -> None:
        with self._lock:
            self._forget_size(key, self._live.pop(key))
            self._foreign.pop(key, None)

    # ---- the peak ----------------------------------------------------------------------------------------------------
    def _note_instant(self, op: str) -> None:
        self._measure_collectives()
        here = (self.step, self._phase())
        if not self._has_changed and here == self._last_here:
            return
        self._has_changed, self._last_here = False, here
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        new = [size for key, size in self._foreign.items() if key not in self._old]
        self.foreign_bytes = max(self.foreign_bytes, sum(new))
        known = self._largest.get(here)
        is_largest = known is None or self.live_bytes > known[0].bytes
        if not is_largest and self.live_bytes < _NEARLY * self.peak_bytes:
            return
        pairs = list(self._alive())
        found = Instant(self.live_bytes, *here, op, tuple(one for one, _ in pairs)), tuple(one for _, one in pairs)
        if is_largest:
            self._largest[here] = found
        else:
            self._near_peak.append(found)

    def _measure_collectives(self) -> None:
        """FSDP frees its buffers by their storages' sizes, which is no operator."""
        for key, block in self._live.items():
            if block.is_collectives and (storage := block.reference()) is not None:
                self._measure(key, block, storage)

    def _alive(self) -> Iterator[tuple[Alive, Block]]:
        holders, seen, in_backward = self._holders(), set[int](), self._phase() is Phase.BACKWARD
        order = sorted(self._live.items(), key=lambda item: item[0] not in holders)
        for key, block in order:
            if block.address in seen or not block.bytes:
                continue
            seen.add(block.address)
            holder, name = holders.get(key, (None, None))
            is_left = in_backward and block.phase is Phase.FORWARD and not block.was_packed
            alive = Alive(
                block.bytes, holder, name, block.packed > 0, block.phase, block.step, block.module, block.op,
                block.file, block.line, block.from_nothing, is_left=is_left,
            )  # fmt: skip
            # Most are as they were at the instant before.
            if block.seen_as != alive:
                block.seen_as = alive
            assert block.seen_as is not None
            yield block.seen_as, block

    def _parameters(self) -> list[Tensor]:
        """Of all models, of the optimizers, and those that are in neither."""
        assert self.program is not None
        found = [each for _, model in self._models() for each in model.parameters()]
        found += [each for optimizer in self.program.optimizers for each in _parameters_of(optimizer)]  # type: ignore[misc]
        return list({id(each): each for each in (*found, *self.program.parameters)}.values())

    def _models(self) -> list[tuple[str, nn.Module]]:
        assert self.program is not None
        own = [("", self.program.model)] if self.program.model is not None else []
        return [*own, *self.program.others.items()]

    def _holders(self) -> dict[int, tuple[HeldBy, str | None]]:
        """By which object each storage is held now."""
        found: dict[int, tuple[HeldBy, str | None]] = {}

        def put(holder: HeldBy, name: str | None, value: object) -> None:
            for storage in storages_in(value):
                found.setdefault(storage._cdata, (holder, name))

        assert self.program is not None
        with warnings.catch_warnings():  # .grad of what takes a parameter's place for a while
            warnings.simplefilter("ignore")
            parameters = [item for _, model in self._models() for item in model.named_parameters()]
            parameters += [("", each) for opt in self.program.optimizers for each in _parameters_of(opt)]  # type: ignore[misc]
            parameters += [("", each) for each in self.program.parameters]  # type: ignore[misc]
            for name, parameter in parameters:
                put(HeldBy.PARAMETER, name, parameter)
            for name, parameter in parameters:
                put(HeldBy.GRADIENT, name, parameter.grad)
        for _, model in self._models():
            for name, buffer in model.named_buffers():
                put(HeldBy.BUFFER, name, buffer)
        for optimizer in self.program.optimizers:
            put(HeldBy.OPTIMIZER_STATE, None, optimizer.state)
        if self.program.batch is not None:
            for storage in self.program.batch.storages():
                found.setdefault(storage._cdata, (HeldBy.INPUT, None))
        return found


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _place() -> tuple[str | None, int | None, bool]:
    """File and line of the innermost frame of the project's or a library's; whether the engine lies between."""
    frame, is_engines = sys._getframe(), False
    while frame is not None:
        name = frame.f_code.co_filename
        is_library = "/site-packages/" in name and not name.startswith(_TORCH)
        is_own = name.startswith(ROOT) and name not in _HARNESS and "/site-packages/" not in name
        # A class of tensors that takes operators over passes them on: the line is that which uses it.
        if (is_library or is_own) and frame.f_code.co_name not in ("__torch_function__", "__torch_dispatch__"):
            return name, frame.f_lineno, is_engines
        is_engines |= frame.f_code.co_name == "_engine_run_backward"
        frame = frame.f_back  # type: ignore[assignment]
    return None, None, is_engines  # type: ignore[unreachable]


class _Mode(TorchDispatchMode):
    def __init__(self, book: Bookkeeper) -> None:
        super().__init__()
        self.book = book

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, FakeTensor) for each in types):  # DTensor asks what the result's shape would be
            return func(*args, **(kwargs or {}))
        # A subclass that dispatches itself does so now, and its inner operators come back here.
        if any(hasattr(each, "__torch_dispatch__") and _dispatches(each) for each in types):
            return NotImplemented
        kwargs, name = kwargs or {}, str(func)
        self.book.before_operator(name, (args, kwargs))
        results = func(*args, **kwargs)
        self.book.note_collective(name, args, (kwargs.get("out"), results))
        self.book.after_operator(
            name, results, arguments=args, from_nothing=not any(True for _ in tensors_in((args, kwargs)))
        )
        return results


def _dispatches(kind: type) -> bool:
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]
