"""Runs one program: unwatched, watched by the tracer, or under the bookkeeper; and says what came of it."""

from __future__ import annotations

import gc
import hashlib
import random
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.profiler import ProfilerActivity, profile

from tests.truth.bookkeeper import Bookkeeper, Instant
from tests.truth.catalogue import entry_of
from tests.truth.program import Program, Provable
from tests.truth.storages import parts_of, storages_in, tensors_in
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import profile_training

PLAN = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=3, num_repeats=1)
_ONE_STEP = Schedule(num_wait_steps=0, num_warmup_steps=0, num_active_steps=1, num_repeats=1)
_CYCLE = PLAN.num_wait_steps + PLAN.num_warmup_steps + PLAN.num_active_steps


def plan_of(name: str) -> Schedule:
    """Which steps of a program are recorded."""
    entry = entry_of(name)
    return _ONE_STEP if entry.is_one_step else replace(PLAN, num_repeats=entry.cycles)


def num_steps_of(name: str) -> int:
    """How many steps a program does."""
    return 1 if entry_of(name).is_one_step else plan_of(name).num_steps


def first_recorded(step: int, name: str) -> int:
    """The first step of a program that is recorded in the cycle of another one."""
    if entry_of(name).is_one_step:
        return 0
    return step - step % _CYCLE + PLAN.num_wait_steps + PLAN.num_warmup_steps


@dataclass(frozen=True)
class Effects:
    """What a run did to the program and to torch: everything here is the same whether somebody watches or not."""

    losses: tuple[str, ...]
    tensors: dict[str, str]
    random_states: str
    compilations: dict[str, int]
    torch_state: dict[str, Any]
    batches_alive: tuple[tuple[bool, ...], ...]
    """After each step, for each step's batch so far, whether some of it is alive."""
    alive_after: dict[str, bool]
    """Of the program's objects, after the program was let go of and before any garbage collection."""


@dataclass(frozen=True)
class Claims:
    """What the tracer says of the program's peak."""

    peak: dict[str, Any]
    blocks: tuple[tuple[int, str], ...]
    """Bytes and category of each block at the peak."""
    failed_files: tuple[str, ...]
    warned: tuple[str, ...]

    @property
    def crash(self) -> str:
        """What the tracer failed in, though the program went on; empty if it is whole."""
        faults = tuple(text for text in self.warned if "an internal fault" in text)
        if not self.peak:
            return "; ".join(self.failed_files or faults or self.warned or ("no peak.json",))
        return "; ".join((*self.failed_files, *faults))


@dataclass(frozen=True)
class Truth:
    """What the bookkeeper says."""

    peak_bytes: int
    start_bytes: int
    foreign_bytes: int
    """The most that was alive of storages that no operator made, such as NumPy's: torch's allocator knows none."""
    instants: tuple[Instant, ...]


@dataclass
class Loop:
    """A program's loop, and what is noted of it while it runs."""

    program: Program
    num_steps: int
    after_step: Callable[[], object] = lambda: None
    before_step: Callable[[int], object] = lambda index: None
    losses: list[str] = field(default_factory=list)
    batches: list[list[weakref.ref[Any]]] = field(default_factory=list)
    alive: list[tuple[bool, ...]] = field(default_factory=list)

    def run(self) -> None:
        """All steps of the plan."""
        self.before_step(0)
        if self.program.loop is not None:
            self.program.loop(self.num_steps, lambda loss: self._ended(bits_of(loss)))
            assert len(self.losses) == self.num_steps, "the program's own loop has as many steps as it is told"
            return
        for _ in range(self.num_steps):
            self._ended(bits_of(self.program.step()))

    def _ended(self, loss: str) -> None:
        self.losses.append(loss)
        if self.program.batch is not None:
            self.batches.append(self.program.batch.references())
        self.alive.append(tuple(any(each() is not None for each in batch) for batch in self.batches))
        self.after_step()
        if len(self.losses) < self.num_steps:
            self.before_step(len(self.losses))


def may_fail(name: str) -> AbstractContextManager[None]:
    """Go on behind a loop that runs out of memory, if the program is to."""
    return suppress(torch.OutOfMemoryError) if entry_of(name).fails else nullcontext()


# ---- the three ways to run -------------------------------------------------------------------------------------------


def run_unwatched(
    name: str,
    before_step: Callable[[int], object] = lambda index: None,
    after_step: Callable[[], object] = lambda: None,
) -> Effects:
    """As its author runs it; around its steps something may be read that changes nothing."""
    program, state = begin(name)
    loop = Loop(program, num_steps_of(name), after_step, before_step)
    del program
    with may_fail(name):
        loop.run()
    if entry_of(name).fails:
        after_step()
    return _effects(loop, state, program_of=lambda: loop.__dict__.pop("program"), drop=lambda: None)


def run_watched(name: str, save_dir: Path, after_step: Callable[[], object] = lambda: None) -> tuple[Effects, Claims]:
    """With the tracer around the loop, as its user writes it; behind its steps something may be read."""
    program, state = begin(name)
    plan = plan_of(name)
    loop = Loop(program, num_steps_of(name))
    warned: list[str] = []
    warnings.showwarning = lambda message, *_: warned.append(str(message))
    first = program.optimizers[0] if program.optimizers else None
    model = program.model or (None if first is not None else nn.Module())
    with may_fail(name), profile_training(model, first, save_dir=save_dir, schedule=plan) as session:
        del first, model  # the program may replace them
        ends: list[Callable[[], object]] = [session.step, after_step]
        loop.after_step = lambda: [end() for end in ends]
        loop.run()
    claims = _claims(session, tuple(warned))
    loop.after_step = lambda: None
    ends.clear()
    held: list[Any] = [session]
    del session, program
    return _effects(loop, state, program_of=lambda: loop.__dict__.pop("program"), drop=held.clear), claims


def run_under_bookkeeper(
    name: str, size_of: Callable[[torch.UntypedStorage], int] = torch.UntypedStorage.nbytes
) -> tuple[tuple[str, ...], Truth]:
    """Losses and truth.

    Args:
        name: Of a program.
        size_of: How many bytes a storage counts.
    """
    book = Bookkeeper(saves=entry_of(name).saves, size_of=size_of)
    torch.compiler.set_stance("force_eager")
    with book.watching():
        program, _ = begin(name)
        book.knows(program)
        loop = Loop(program, num_steps_of(name), before_step=lambda index: _count(book, index, name))
        with may_fail(name):
            loop.run()
        if entry_of(name).is_one_step or entry_of(name).fails:
            book.end()
    return tuple(loop.losses), Truth(book.peak_bytes, book.start_bytes, book.foreign_bytes, book.instants)


def run_counted(name: str) -> tuple[int, int]:
    """The least and the most that the peak can be by torch's allocator, as its events in a bare profiler tell it.

    They begin with the recorded steps, for which the bookkeeper leaves: some operators allocate more where a dispatch
    mode looks on. It has entered what is there by then, and still sees what of it goes. What is compiled is never
    looked on: of what is there, the garbage collector knows. Before further recordings it is asked for what the graphs
    saved as well.
    """
    book, kept = Bookkeeper(saves=False), list[Any]()
    is_compiled = entry_of(name).provable is Provable.EAGER_TWIN
    with threads_in_line() if entry_of(name).threads else nullcontext(), ExitStack() as watching:
        if not is_compiled:
            watching.enter_context(book.watching())
        program, _ = begin(name)
        book.knows(program)

        def before_step(index: int) -> None:
            if index == first_recorded(0, name):
                watching.close()
            elif index == first_recorded(index, name):
                book.look_into_graphs()
            _count(book, index, name)

        plan = plan_of(name)
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=plan.for_torch(),
            profile_memory=True,
            on_trace_ready=lambda prof: kept.append(prof.profiler.kineto_results),
        ) as running:
            Loop(program, num_steps_of(name), after_step=running.step, before_step=before_step).run()
    return _counted_bytes(book, kept)


@contextmanager
def threads_in_line() -> Iterator[None]:
    """What others would compute, the main thread does at once: of theirs, the profiler tells no allocation."""

    def submit(pool: ThreadPoolExecutor, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future

    with (
        patch.object(ThreadPoolExecutor, "submit", submit),
        patch.object(threading.Thread, "start", lambda thread: thread.run()),
        patch.object(threading.Thread, "join", lambda thread, timeout=None: None),
    ):
        yield


def _count(book: Bookkeeper, index: int, name: str) -> None:
    book.note_gradients()
    book.step = index
    if index == first_recorded(index, name):
        book.begin()
    elif index and index % _CYCLE == 0:
        book.end()


def begin(name: str) -> tuple[Program, dict[str, Any]]:
    """Build it from the seed. The garbage collector is off in all runs: when it comes would be chance."""
    torch.set_num_threads(2)
    gc.collect()
    gc.disable()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    program = entry_of(name).build()
    return program, torch_state(program)


# ---- the allocator's count -------------------------------------------------------------------------------------------


def _counted_bytes(book: Bookkeeper, cycles: Sequence[Any]) -> tuple[int, int]:
    """What is left of the old storages, and what torch's allocator gave out since a recording began, at the most.

    Old storages only ever go: what was left of them a little earlier is the most, whatever the two clocks say, and what
    was left a little later is the least.
    """
    slack_ns, peaks = 200_000, [book.start_bytes, book.start_bytes]
    ends = [*book.begins[1:], len(book.old_bytes)]
    for begin, end, results in zip(book.begins, ends, cycles, strict=True):
        times, left = np.array(book.old_bytes[begin:end], np.int64).T
        found = _allocator_totals(results.experimental_event_tree())
        if not found:
            continue
        at, totals = np.array(found, np.int64).T
        for which, moment in enumerate((at + slack_ns, at - slack_ns)):
            rows = np.maximum(np.searchsorted(times, moment, side="right") - 1, 0)
            peaks[which] = max(peaks[which], int(left[0]), int((left[rows] + totals).max()))
    return peaks[0], peaks[1]


def _allocator_totals(events: Iterable[Any]) -> list[tuple[int, int]]:
    """Time and bytes after each event, of what was allocated since the recording began.

    Frees of what it did not see being made have sizes of earlier recordings, and say nothing. What was mapped, with a
    total of 0, is other allocators'.
    """
    waiting, found = list(events), []
    while waiting:
        event = waiting.pop()
        waiting += event.children
        fields = event.extra_fields
        if type(fields).__name__ == "_ExtraFields_Allocation":
            found.append((event.start_time_ns, fields.ptr, fields.alloc_size, fields.total_allocated))
    sizes: dict[int, int] = {}
    totals, total = [], 0
    for time_ns, address, size, counter in sorted(found, key=lambda row: row[0]):
        if size > 0 and counter > 0:
            total += size - sizes.pop(address, 0)
            sizes[address] = size
        elif size < 0:
            total -= sizes.pop(address, 0)
        totals.append((time_ns, total))
    return totals


# ---- what the tracer says --------------------------------------------------------------------------------------------


def _claims(session: Any, warned: tuple[str, ...]) -> Claims:
    import json

    failed = tuple(f"{each.path.name}: {each.error}" for each in session.written if each.error is not None)
    path = session.folder / "peak.json"
    peak = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    blocks: tuple[tuple[int, str], ...] = ()
    if session.results is not None and session.results.findings is not None:
        from tracer.blocks.kinds import Kind

        at_peak = session.results.findings.worst.peak.blocks
        columns = zip(at_peak.size_bytes.tolist(), at_peak.kind.tolist(), strict=True)
        blocks = tuple((size, Kind(kind).name) for size, kind in columns)
    return Claims(peak, blocks, failed, warned)


# ---- what a run did --------------------------------------------------------------------------------------------------


def _effects(
    loop: Loop, state: dict[str, Any], *, program_of: Callable[[], Program], drop: Callable[[], None]
) -> Effects:
    """Note everything, then let go of the program, then of whoever watched it, and see what stays alive."""
    program = program_of()
    tensors = {name: bits_of(tensor) for name, tensor in named_tensors(program).items()}
    after = torch_state(program)
    changed = {key: after[key] for key in after if after[key] != state.get(key)}
    random_states = bits_of((torch.get_rng_state(), str(np.random.get_state()), str(random.getstate())))
    references = _references(program)
    gc.collect()
    batches = [(f"batch {index}", batch) for index, batch in enumerate(loop.batches)]
    drop()
    del program
    references += [(name, each) for name, batch in batches for each in batch]
    alive = {name: False for name, _ in references}
    for name, reference in references:
        alive[name] |= reference() is not None
    gc.enable()
    return Effects(tuple(loop.losses), tensors, random_states, compilations(), changed, tuple(loop.alive), alive)


def _references(program: Program) -> list[tuple[str, weakref.ref[Any]]]:
    found: list[tuple[str, weakref.ref[Any]]] = [("program", weakref.ref(program))]
    if program.model is not None:
        found.append(("model", weakref.ref(program.model)))
        found += [("parameters", weakref.ref(each)) for each in storages_in(list(program.model.parameters()))]
    for number, optimizer in enumerate(program.optimizers):
        found.append((f"optimizer {number}", weakref.ref(optimizer)))
        found += [("optimizer state", weakref.ref(each)) for each in storages_in(optimizer.state)]
    return found


def named_tensors(program: Program) -> dict[str, Any]:
    """Parameters, gradients, buffers and optimizer state, by name."""
    found: dict[str, Any] = {}
    models = [("", program.model)] if program.model is not None else []
    for prefix, model in [*models, *program.others.items()]:
        for name, parameter in model.named_parameters():
            found[f"{prefix}:{name}"] = parameter
            found[f"{prefix}:{name}.grad"] = parameter.grad
        found |= {f"{prefix}:{name}": buffer for name, buffer in model.named_buffers()}
    for number, optimizer in enumerate(program.optimizers):
        states = list(optimizer.state.values())
        found |= {f"optimizer {number} state {index}": state for index, state in enumerate(states)}
    return found


def bits_of(value: object) -> str:
    """A digest of all elements of the tensors in a value; of the value itself where there is none."""
    digest, num_tensors = hashlib.sha256(), 0
    with torch.no_grad():
        for tensor in tensors_in(value):
            for part in parts_of(tensor):
                num_tensors += 1
                plain = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
                digest.update(repr((plain.dtype, tuple(plain.shape))).encode())
                digest.update(plain.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes())
    if num_tensors == 0:
        digest.update(repr(value).encode())
    return digest.hexdigest()


def compilations() -> dict[str, int]:
    """What torch.compile did in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return {}
    counters = dynamo.counters
    return {
        "unique graphs": counters["stats"]["unique_graphs"],
        "frames": counters["frames"]["total"],
        "frames compiled": counters["frames"]["ok"],
        "graph breaks": sum(counters["graph_break"].values()),
        "recompile limit hit": sum(counters["recompile_limit"].values()),
    }


def _saved_tensor_hooks() -> Any:
    """Those that are on, which torch tells since 2.8."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(False)


def torch_state(program: Program) -> dict[str, Any]:
    """What a run could leave behind in torch, in Python, and on the program's objects."""
    models = [model for model in (program.model, *program.others.values()) if model is not None]
    modules = [module for model in models for module in model.modules()]
    state: dict[str, Any] = {
        "profiler": torch.autograd._profiler_enabled(),  # type: ignore[attr-defined]
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "grad": torch.is_grad_enabled(),
        "saved tensor hooks": str(_saved_tensor_hooks()),
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "collector": gc.isenabled(),
        "collector's callbacks": len(gc.callbacks),
        "profile function": str(sys.getprofile()),
        "trace function": str(sys.gettrace()),
        "excepthook": str(sys.excepthook),
        "signals": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM)],
        # Inductor's pool has as many as there was to compile at one time.
        "python threads": sum(
            not thread.daemon and not thread.name.startswith("ThreadPoolExecutor") for thread in threading.enumerate()
        ),
    }
    for owner in (module_hooks, optimizer_hooks):
        state |= {
            f"global {name}": len(hooks)
            for name, hooks in vars(owner).items()
            if name.startswith("_global_") and hasattr(hooks, "__len__")
        }
    for name in ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks"):
        state[f"modules'{name}"] = sum(len(getattr(module, name, ())) for module in modules)
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_state_dict_post_hooks"):
        state[f"optimizers'{name}"] = sum(len(getattr(each, name, ())) for each in program.optimizers)
    state["attributes"] = sorted({name for module in models for name in vars(module)})
    return state
