"""The profiler's own types and switches: the event tree of a finished recording says what happened."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cache, partial
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tracer.collector import objects_with_type
from tracer.errors import RecordingError

_TESTED = "torch 2.7 to 2.15"


def _missing(feature: str) -> RecordingError:
    return RecordingError(
        f"torch {torch.__version__} does not offer {feature}, which reading a recording needs.",
        hint=f"Use one of the versions that this program was tested with: {_TESTED}.",
    )


try:
    from torch._C import _profiler
except ImportError as error:  # pragma: no cover - only on a torch whose private API has moved
    raise _missing(f"the profiler's event types ({error})") from error


def _profiler_type(name: str) -> Any:
    if not hasattr(_profiler, name):
        raise _missing(f"torch._C._profiler.{name}")
    return getattr(_profiler, name)


OpFields = _profiler_type("_ExtraFields_TorchOp")
AllocationFields = _profiler_type("_ExtraFields_Allocation")
PyCallFields = _profiler_type("_ExtraFields_PyCall")
PyCCallFields = _profiler_type("_ExtraFields_PyCCall")
TensorFields = _profiler_type("_TensorMetadata")
BACKWARD_SCOPE: Any = _profiler_type("RecordScope").BACKWARD_FUNCTION
USER_SCOPE: Any = _profiler_type("RecordScope").USER_SCOPE
STRIDED: Any = torch.strided
HOST_DEVICE_TYPE: Any = torch._C._autograd.DeviceType.CPU
# Every attribute that event_tree.py reads, per type: checked once, so that a renamed field is one sentence.
_FIELDS: dict[Any, tuple[str, ...]] = {
    OpFields: ("name", "inputs", "scope", "sequence_number"),
    AllocationFields: ("ptr", "alloc_size", "allocation_id", "id", "device", "total_allocated", "total_reserved"),
    PyCallFields: ("callsite", "caller", "module", "optimizer"),
    PyCCallFields: ("caller",),
    TensorFields: ("id", "allocation_id", "storage_data_ptr", "device", "dtype", "layout", "sizes", "strides"),
}


@cache
def check_event_types() -> None:
    """Make sure that torch's event types have every field that is read.

    Raises:
        RecordingError: A field is gone; the message names it and torch's version.
    """
    for fields, names in _FIELDS.items():
        for name in names:
            if not hasattr(fields, name):
                raise _missing(f"{fields.__name__}.{name}")


def storage_address(fields: Any) -> int | None:
    """Return the address of a tensor's storage; None if it has no memory.

    torch returns None without a reference of its own: after some 100,000 calls Python would deallocate None and crash,
    so this function adds the reference. In a later version that counts it, one reference too many does no harm.

    Source:
        `strong_pointer_type_cast` in torch/csrc/profiler/python/pybind.h returns `py::none()` as a handle.
    """
    address: int | None = fields.storage_data_ptr
    if address is None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
    return address


def check_kernel_events() -> None:
    """Make sure that the profiler's list of events has what is read of kernels.

    Raises:
        RecordingError: Something is gone; the message names it and torch's version.
    """
    event = getattr(torch._C._autograd, "_KinetoEvent", None)
    for name in (
        "linked_correlation_id",
        "correlation_id",
        "device_type",
        "start_thread_id",
        "start_ns",
        "duration_ns",
        "is_user_annotation",
        "name",
    ):
        if not hasattr(event, name):
            raise _missing(f"_KinetoEvent.{name}")


def kineto_results(profiler: Any) -> Any:
    """The finished recording of a `torch.profiler.profile`, inside or after `on_trace_ready`.

    Args:
        profiler: A `torch.profiler.profile`, or the recording itself (`prof.profiler.kineto_results`).

    Raises:
        RecordingError: Nothing was recorded yet, or the cycle is still running.
    """
    if hasattr(profiler, "experimental_event_tree"):
        return profiler
    inner = getattr(profiler, "profiler", None)
    results = getattr(inner, "kineto_results", None)
    if results is None or not hasattr(results, "experimental_event_tree"):
        raise RecordingError(
            "The profiler holds no finished recording.",
            hint="Call this from on_trace_ready, or after a cycle of wait, warmup and active steps has ended.",
        )
    return results


def free_an_older_block() -> None:
    """Have the CPU's allocator free a block that was made before a profiler came, under one that keeps nothing."""
    enable = getattr(torch._C._autograd, "_enable_profiler_legacy", None)
    if enable is None:
        return
    older = torch.empty(1, dtype=torch.uint8, device="cpu")
    config = _profiler_type("ProfilerConfig")(
        _profiler_type("ProfilerState").CPU, False, True, False, False, False, _profiler_type("_ExperimentalConfig")()
    )
    try:
        enable(config)
    except RuntimeError:  # somebody's profiler is on
        return
    try:
        del older
    finally:
        torch._C._autograd._disable_profiler_legacy()


def device_text(device: Any) -> str:
    """A device as `str(torch.device)` writes it; what ROCm's events call HIP has the name CUDA everywhere else."""
    text = str(device)
    return f"cuda{text.removeprefix('hip')}" if text.startswith("hip") else text


def release_recording(profiler: Any) -> None:
    """Free what a `torch.profiler.profile` holds of the cycle that has ended, which it keeps until the next begins."""
    profiler.profiler.kineto_results = None


def on_preparing(callback: Callable[[Any], None]) -> Callable[[], None]:
    """Be told before a profiler of torch's prepares to record, whoever has made it.

    Args:
        callback: Given the `torch.autograd.profiler.profile`, which every `torch.profiler.profile` has inside.
    """
    kind: Any = torch.autograd.profiler.profile
    original = kind._prepare_trace

    def _prepare_trace(profiler: Any) -> None:
        callback(profiler)
        original(profiler)

    def end() -> None:
        if kind._prepare_trace is _prepare_trace:
            kind._prepare_trace = original

    kind._prepare_trace = _prepare_trace
    return end


def on_regions(opened: Callable[[Any, FrameType], None], closed: Callable[[Any], None]) -> Callable[[], None]:
    """Be told of each `record_function` region in this process, before it opens and after it has closed.

    Args:
        opened: Given the region and the frame that opens it.

    Returns:
        What ends that, unless somebody has put himself around the region's functions meanwhile.
    """
    kind: Any = torch.autograd.profiler.record_function
    enter, leave = kind.__enter__, kind.__exit__
    is_on = True

    def entered(region: Any) -> Any:
        if is_on:
            frame = sys._getframe(1)
            while frame.f_code is entered.__code__ and frame.f_back is not None:  # of another call of `on_regions`
                frame = frame.f_back
            opened(region, frame)
        return enter(region)

    def left(region: Any, *error: Any) -> Any:
        try:
            return leave(region, *error)
        finally:
            if is_on:
                closed(region)

    def end() -> None:
        nonlocal is_on
        is_on = False
        if kind.__enter__ is entered:
            kind.__enter__, kind.__exit__ = enter, leave

    kind.__enter__, kind.__exit__ = entered, left
    return end


class OpenRegions:
    """The `record_function` regions that this thread has opened since `start` and not closed."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._closed: Callable[[], None] | None = None
        self._end: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Look at regions that are opened from now on."""
        thread = threading.get_ident()

        def opened(region: Any, frame: FrameType) -> None:
            if threading.get_ident() == thread:
                self._open.add(id(region))

        def closed(region: Any) -> None:
            self._open.discard(id(region))
            self._call_back()

        self._end = on_regions(opened, closed)

    def stop(self) -> None:
        """Look no longer."""
        self._closed = None
        self._end()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call back when all of them are closed, once; at once if none is open."""
        self._closed = callback
        self._call_back()

    def _call_back(self) -> None:
        if self._closed is not None and not self._open:
            callback = self._closed
            self.stop()
            callback()


@contextmanager
def _inductor_left_out() -> Iterator[None]:
    """While active, `torch._inductor` is absent unless it has been imported: importing it takes a second.

    The profiler asks whether it makes CUDA graphs, which an option of its own or a variable of the environment says.
    """
    find = vars(torch).get("__getattr__")
    if find is None or "torch._inductor" in sys.modules or "TORCHINDUCTOR_CUDAGRAPHS" in os.environ:
        yield
        return

    def find_others(name: str) -> Any:
        if name == "_inductor":
            raise AttributeError(name)
        return find(name)

    with patch.object(torch, "__getattr__", find_others):
        yield


class Detail(Enum):
    """Share of a step's events that is recorded: torch keeps some 2 KB of each, and takes 10 us for it."""

    ALL = "operators, Python's calls and allocations"
    OUTSIDE_OPTIMIZER = "all until the first optimizer steps; from then on allocations alone"
    ALLOCATIONS = "allocations alone"


def has_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if an optimizer's `step(closure)` was given one; the optimizer itself is the first argument."""
    return any(value is not None for value in (*args[1:2], kwargs.get("closure")))


def _leave_out_optimizer() -> Callable[[], None]:
    """Have allocations alone recorded from the next optimizer's step on, if it has no closure, which trains inside it.

    Torch's Python tracer is ended by a hook that is no call of Python's: what is allocated then is of the call that is
    still open, the optimizer's own step.

    Returns:
        What ends that.
    """
    thread = threading.get_ident()

    def begins(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == thread and not has_closure(args, kwargs):
            optimizer._optimizer_step_code()  # at whose call torch's tracer notes the optimizer's tensors
            torch._C._autograd._enable_record_function(False)
        elif (hooks := no_calls.hooks_dict_ref()) is not None:
            hooks[no_calls.id] = lambda *_: None  # torch walks over the hooks: none may go

    set_profile: Any = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.py_object] * 3)(
        ("PyEval_SetProfile", ctypes.pythonapi)
    )
    began = register_optimizer_step_pre_hook(begins)
    no_calls = register_optimizer_step_pre_hook(partial(set_profile, None, None))

    def end() -> None:
        torch._C._autograd._enable_record_function(True)
        began.remove()
        no_calls.remove()

    return end


class PoliteProfiler(torch.profiler.profile):
    """torch's profiler, which gives back the program's own profile function when a recording has stopped.

    A thread has one such function: torch's Python tracer sets its own, and in the end none.

    Attributes:
        detail: What the next recording has.
    """

    detail = Detail.ALL
    _of_program: Any = None
    _record_operators: Callable[[], None] = staticmethod(lambda: None)

    def prepare_trace(self) -> None:
        """Get ready to record."""
        with _inductor_left_out():
            super().prepare_trace()

    def start_trace(self) -> None:
        """Start to record."""
        self._of_program = sys.getprofile()
        super().start_trace()
        if self.detail is Detail.ALLOCATIONS:
            torch._C._autograd._enable_record_function(False)
            self._record_operators = partial(torch._C._autograd._enable_record_function, True)
        elif self.detail is Detail.OUTSIDE_OPTIMIZER:
            self._record_operators = _leave_out_optimizer()

    def stop_trace(self) -> None:
        """Stop recording."""
        self._record_operators()
        super().stop_trace()
        function, self._of_program = self._of_program, None
        if function is None or sys.getprofile() is not None:
            return
        if hasattr(function, "enable"):  # cProfile's
            function.enable()
        elif callable(function):
            sys.setprofile(function)


def memory_profiler(
    activities: Iterable[Any],
    schedule: Callable[[int], torch.profiler.ProfilerAction],
    *,
    has_shapes: bool,
    detail: Detail = Detail.ALL,
    ended: Callable[[Any], None],
) -> PoliteProfiler:
    """Return a profiler that records memory and stacks, and calls back when a recording has ended."""
    profiler = PoliteProfiler(
        activities=activities,
        schedule=schedule,
        record_shapes=has_shapes,
        profile_memory=True,
        with_stack=detail is not Detail.ALLOCATIONS,
        on_trace_ready=ended,
    )
    profiler.detail = detail
    return profiler


def abandon(profiler: Any) -> None:
    """End a profiler in another thread than the one that it began in, which torch cannot: its recording is lost."""
    profiler.on_trace_ready = None
    with suppress(RuntimeError):
        profiler.__exit__(None, None, None)
    release_profiler(profiler)


def end(profiler: Any, error: BaseException | None = None) -> None:
    """End a `torch.profiler.profile`, and let go of what it holds."""
    try:
        profiler.__exit__(type(error) if error is not None else None, error, error and error.__traceback__)
    finally:
        release_profiler(profiler)


def is_prepared(profiler: Any) -> bool:
    """True if a `torch.autograd.profiler.profile` warms up or records."""
    return bool(profiler.entered) and profiler.kineto_results is None


def prepared_profilers() -> list[Any]:
    """Every `torch.autograd.profiler.profile` that warms up or records now, whoever has made it."""
    profilers = objects_with_type((torch.autograd.profiler.profile,))
    return [profiler for profiler in profilers if is_prepared(profiler)]


def is_recorded_by_profiler() -> bool:
    """True if any profiler of torch's records now."""
    return bool(torch._C._autograd._profiler_enabled())


def record_no_calls() -> None:
    """Have the profiler that records this thread record no further Python calls, of which our own would be millions.

    What is open stays so until the recording ends: torch's tracer has set the thread's profile function.
    """
    sys.setprofile(None)


def record_no_shapes(profiler: Any) -> None:
    """Have a `torch.profiler.profile` record no operator's tensors from its next cycle on, or from the one prepared."""
    profiler.record_shapes = False
    if getattr(profiler, "profiler", None) is not None:
        profiler.profiler.record_shapes = False


def begin_at(profiler: Any, step: int) -> None:
    """Have a `torch.profiler.profile` that has not begun do so with this step of its schedule."""
    profiler.step_num = step
    profiler.current_action = profiler._prev_schedule_action = profiler.schedule(step)


def release_profiler(profiler: Any) -> None:
    """Break the circles in a stopped `torch.profiler.profile`, so that it goes without a garbage collection."""
    profiler.on_trace_ready = None
    profiler.profiler = None
    if isinstance(getattr(profiler, "action_map", None), dict):
        profiler.action_map = {}


def leave_profiler_of_parent() -> None:
    """Stop recording in a forked child, without calling the profiler, whose threads are not here."""
    if torch._C._autograd._profiler_enabled():
        sys.setprofile(None)
        torch._C._autograd._enable_record_function(False)
