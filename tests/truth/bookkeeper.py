"""An independent bookkeeper of every tensor's storage: what is alive, who holds it, what was doing when it was made.

It shares no code with the tracer and reads nothing that the profiler recorded. A dispatch mode in every thread sees
each operator's arguments and results, weak references see storages die, hooks of saved tensors see what is kept for
backward and when it is let go of. What it cannot see is what a kernel allocates inside itself and frees again.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from tests.truth.program import Program
from tests.truth.storages import storages_in, storages_of

ROOT = str(Path(__file__).resolve().parent.parent.parent)
# The harness calls the programs; its own lines are nobody's.
_HARNESS = {
    str(Path(__file__).with_name(name)) for name in ("bookkeeper.py", "running.py", "storages.py", "isolate.py")
}


class Holder(StrEnum):
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
        packed: How many saved tensors of it are not released.
        line: The innermost line of the project's code, outside the harness.
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
    packed: int = 0


@dataclass(frozen=True, slots=True)
class Alive:
    """A block at an instant that was kept: what is true of it then."""

    bytes: int
    holder: Holder | None
    name: str | None
    packed: bool
    phase: Phase
    step: int
    module: str | None
    op: str
    file: str | None
    line: int | None


@dataclass(frozen=True, slots=True)
class Instant:
    """The most that tensors held at one time within a phase of a step."""

    bytes: int
    step: int
    phase: Phase
    op: str
    blocks: tuple[Alive, ...]


@dataclass
class _Thread(threading.local):
    modules: list[str] = field(default_factory=list)
    optimizers: int = 0
    watches: bool = False


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
        start_bytes: At their beginning.
        instants: The largest instant of each phase of each step.
        old_bytes: Time in ns and bytes of what is left of the storages from before the steps that count.
        foreign_bytes: The most that was alive, within those steps, of storages that no operator made.
    """

    def __init__(self, *, saves: bool = True) -> None:
        """Prepare.

        Args:
            saves: Whether to set hooks of saved tensors; without them nothing is known to be kept for backward.
        """
        self.program: Program | None = None
        self.saves = saves
        self.live_bytes = self.peak_bytes = self.start_bytes = self.foreign_bytes = 0
        self.instants: dict[tuple[int, Phase], Instant] = {}
        self.old_bytes: list[tuple[int, int]] = []
        self.step = -1
        self._live: dict[int, Block] = {}
        self._at: dict[int, dict[int, int]] = {}
        self._old: dict[int, int] = {}
        self._foreign: dict[int, int] = {}
        self._counts = False
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
                self._names.setdefault(id(module), ".".join(filter(None, (prefix, name))))

    def begin(self) -> None:
        """The next step is the first that counts: everything that is alive now belongs to the peak."""
        self.look_around()
        with self._lock:
            self._old = {key: block.bytes for key, block in self._live.items()}
            self._counts, self.start_bytes = True, self.live_bytes
            self.old_bytes.append((time.time_ns(), sum(self._old.values())))
            self._note_instant("(start)")

    def end(self) -> None:
        """No more steps count."""
        self._counts = False

    def look_around(self) -> None:
        """Enter every tensor that Python has an object of."""
        for value in gc.get_objects():
            if issubclass(type(value), Tensor):
                self._see(value, "(alive)", made=False)

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

        threading.Thread.run = watched  # type: ignore[method-assign]
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

        saved_tensors_hooks.__init__ = with_ours  # type: ignore[method-assign]
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
        weakref.finalize(packed, _release, blocks).atexit = False
        return packed

    # ---- where we are ------------------------------------------------------------------------------------------------
    def _enter_module(self, module: nn.Module, args: Any) -> None:
        self._here.modules.append(self._names.get(id(module), type(module).__name__))

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._here.modules:
            self._here.modules.pop()

    def _enter_optimizer(self, *args: Any) -> None:
        self._here.optimizers += 1

    def _leave_optimizer(self, *args: Any) -> None:
        self._here.optimizers -= 1

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
        """Enter what no operator showed."""
        for storage in storages_in(arguments):
            self._enter(storage, op, made=False)

    def after_operator(self, op: str, results: object) -> None:
        """Enter what it made or resized."""
        for storage in storages_in(results):
            self._enter(storage, op, made=True)
        if self._counts:
            with self._lock:
                self._note_instant(op)

    def _see(self, tensor: Tensor, op: str, *, made: bool) -> None:
        for storage in storages_of(tensor):
            self._enter(storage, op, made=made)

    def _enter(self, storage: torch.UntypedStorage, op: str, *, made: bool) -> Block:
        key = storage._cdata
        with self._lock:
            block = self._live.get(key)
            if block is None:
                reference = weakref.ref(storage, lambda _: self._gone(key))
                module = self._here.modules[-1] if self._here.modules else None
                where = (self._phase(), self.step, module, *_place())
                block = self._live[key] = Block(reference, 0, 0, made, op, *where)
            self._measure(key, block, storage)
        return block

    def _measure(self, key: int, block: Block, storage: torch.UntypedStorage) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if (address, size) != (block.address, block.bytes):
            self._forget_size(key, block)
            block.address, block.bytes = address, size
            self._change(address, key, size)
            if not block.made:
                self._foreign[key] = size

    def _change(self, address: int, key: int, size: int) -> None:
        """Storages at one address are one piece of memory, such as an array of NumPy's that two tensors show."""
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
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        new = [size for key, size in self._foreign.items() if key not in self._old]
        self.foreign_bytes = max(self.foreign_bytes, sum(new))
        here = (self.step, self._phase())
        known = self.instants.get(here)
        if known is None or self.live_bytes > known.bytes:
            self.instants[here] = Instant(self.live_bytes, *here, op, tuple(self._alive()))

    def _alive(self) -> Iterator[Alive]:
        holders, seen = self._holders(), set[int]()
        order = sorted(self._live.items(), key=lambda item: item[0] not in holders)
        for key, block in order:
            if block.address in seen or not block.bytes:
                continue
            seen.add(block.address)
            holder, name = holders.get(key, (None, None))
            yield Alive(
                block.bytes, holder, name, block.packed > 0, block.phase, block.step, block.module, block.op,
                block.file, block.line,
            )  # fmt: skip

    def _models(self) -> list[tuple[str, nn.Module]]:
        assert self.program is not None
        own = [("", self.program.model)] if self.program.model is not None else []
        return [*own, *self.program.others.items()]

    def _holders(self) -> dict[int, tuple[Holder, str | None]]:
        """By which object each storage is held now."""
        found: dict[int, tuple[Holder, str | None]] = {}

        def put(holder: Holder, name: str | None, value: object) -> None:
            for storage in storages_in(value):
                found.setdefault(storage._cdata, (holder, name))

        assert self.program is not None
        with warnings.catch_warnings():  # .grad of what takes a parameter's place for a while
            warnings.simplefilter("ignore")
            parameters = [item for _, model in self._models() for item in model.named_parameters()]
            parameters += [("", each) for opt in self.program.optimizers for each in _parameters_of(opt)]
            for name, parameter in parameters:
                put(Holder.PARAMETER, name, parameter)
            for name, parameter in parameters:
                put(Holder.GRADIENT, name, parameter.grad)
        for _, model in self._models():
            for name, buffer in model.named_buffers():
                put(Holder.BUFFER, name, buffer)
        for optimizer in self.program.optimizers:
            put(Holder.OPTIMIZER_STATE, None, optimizer.state)
        if self.program.batch is not None:
            for storage in self.program.batch.storages():
                found.setdefault(storage._cdata, (Holder.INPUT, None))
        return found


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _release(blocks: list[Block]) -> None:
    for block in blocks:
        block.packed -= 1


def _place() -> tuple[str | None, int | None]:
    """File and line of the innermost frame of the project's own code."""
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(ROOT) and name not in _HARNESS and "/.venv/" not in name:
            return name, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None, None


class _Mode(TorchDispatchMode):
    def __init__(self, book: Bookkeeper) -> None:
        super().__init__()
        self.book = book

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A subclass that dispatches itself does so now, and its inner operators come back here.
        if any(hasattr(each, "__torch_dispatch__") and _dispatches(each) for each in types):
            return NotImplemented
        kwargs, name = kwargs or {}, str(func)
        self.book.before_operator(name, (args, kwargs))
        results = func(*args, **kwargs)
        self.book.after_operator(name, results)
        return results


def _dispatches(kind: type) -> bool:
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]
