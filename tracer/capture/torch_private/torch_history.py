"""The caching allocator's history and counters, of `torch.cuda.memory` or of another backend's module."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch

from tracer.capture.torch_private.torch_cuda import TORCH, when_cuda_has_begun
from tracer.errors import RecordingError
from tracer.loaded_modules import before_next_call

_at_cudas_start: dict[str, str] = {}
"""The `name` of this process's allocations where CUDA begins, once somebody has given one."""


def _history_module(device: torch.device) -> Any:
    """Module that switches a device's history on and off, such as `torch.cuda.memory`; None for none."""
    try:
        memory = getattr(torch.get_device_module(device), "memory", None)
    except RuntimeError:
        return None
    return memory if hasattr(memory, "_record_memory_history") and hasattr(memory, "_snapshot") else None


def has_allocator_history(device: torch.device) -> bool:
    """True if the allocator of a device can record its history."""
    return _history_module(device) is not None


def allocator_history_enabled(device: torch.device) -> bool:
    """True if the allocator's history is already being recorded.

    Raises:
        RecordingError: The allocator is not torch's own, which alone has a history and tells the profiler of its work.
    """
    memory = _history_module(device)
    backend = memory.get_allocator_backend() if hasattr(memory, "get_allocator_backend") else "native"
    if backend != "native":
        raise RecordingError(
            f"The {device.type.upper()} allocator {backend} records no allocations, neither for the profiler nor in a "
            "history.",
            hint="Use torch's own: leave out PYTORCH_CUDA_ALLOC_CONF=backend:... and change_current_allocator.",
        )
    enabled = getattr(torch._C, f"_{device.type}_isHistoryEnabled", None)
    if enabled is not None:
        return bool(enabled())
    if device.type != torch._C._get_privateuse1_backend_name():
        return False
    # A backend from outside torch does not say; what is off has no entries.
    return any(memory._snapshot(device).get("device_traces", ()))


def start_allocator_history(device: torch.device, max_entries: int, *, stacks_of_frees: bool = True) -> None:
    """Record allocations and frees of the caching allocator, with Python stacks.

    C++ stacks are left out: reading them took minutes on real runs, and the profiler knows the operators. From torch
    2.15 on, the allocator of pinned host memory is recorded too.

    Args:
        stacks_of_frees: Whether to take the stack of a free too, which costs as much as that of an allocation; with
            torch 2.11 on CUDA until the program's first checkpoint.
    """
    record = partial(
        _record_history,
        device,
        enabled="all",
        stacks="python",
        max_entries=max_entries,
        record_pinned_host_memory=True,
        device=device,
    )
    record(context="all" if stacks_of_frees else "alloc")
    if stacks_of_frees and device.type == "cuda" and TORCH < _STACKS_OF_FREES_LEAVE_ERRORS:
        import torch.utils.checkpoint

        end = before_next_call(torch.utils.checkpoint, ("_CheckpointFrame",), lambda: record(context="alloc"))
        when_history_is_switched(end)


_STACKS_OF_FREES_LEAVE_ERRORS = (2, 12)
"""Before that, the stack of a free loses a Python error on its way through C++, such as the end of a recomputation by
`torch.utils.checkpoint`: a backward ends with "SystemError: ... returned NULL without setting an exception"."""


def start_history_without_stacks(device: torch.device, max_entries: int) -> None:
    """Record allocations and frees of the caching allocator alone, in order: quicker, and smaller."""
    _record_history(device, enabled="all", context=None, max_entries=max_entries, device=device)


def memory_metadata() -> str:
    """The name of this thread's allocations in CUDA's history; empty without one, as with torch 2.9."""
    get = getattr(torch.cuda.memory, "_get_memory_metadata", None)
    if get is None:
        return ""
    return str(get()) if torch.cuda.is_initialized() else _at_cudas_start.get("name", "")  # type: ignore[no-untyped-call]


def set_memory_metadata(name: str) -> None:
    """Call this thread's allocations so in CUDA's history, from where CUDA begins; nothing where torch has no names.

    To begin CUDA is left to the program: a process that is forked then could not use it.
    """
    call = getattr(torch.cuda.memory, "_set_memory_metadata", None)
    if call is None:
        return
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        call(name)
        return
    if not _at_cudas_start:
        when_cuda_has_begun(lambda: call(_at_cudas_start["name"]))
    _at_cudas_start["name"] = name


def annotate(tensor: torch.Tensor, name: str) -> None:
    """Call the block of a CUDA tensor so in CUDA's history; nothing of another tensor, and before torch 2.14."""
    call = getattr(torch.cuda.memory, "_annotate_tensor", None)
    if call is not None and tensor.is_cuda:
        call(tensor, name)


def when_history_is_switched(act: Callable[[], None]) -> None:
    """Call something once, before CUDA's history is next switched on, off or over, by anybody."""
    before_next_call(torch._C, ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy"), act)


def stop_allocator_history(device: torch.device) -> None:
    """Stop recording; what was recorded is dropped."""
    _record_history(device, enabled=None, device=device)


def _record_history(of: torch.device, **options: Any) -> None:
    """Switch it with those of the options that the backend knows: XPU's, for one, takes no device."""
    record = _history_module(of)._record_memory_history
    known = inspect.signature(record).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())
    record(**{name: value for name, value in options.items() if takes_all or name in known})


def allocator_snapshot(device: torch.device) -> dict[str, Any]:
    """Return `torch.cuda.memory._snapshot()` of a device: the segments now, and the recorded history."""
    snapshot: dict[str, Any] = _history_module(device)._snapshot(device)
    return snapshot


def on_out_of_memory(device: torch.device, callback: Callable[[], None]) -> bool:
    """Register a callback for the moment before an allocator raises out of memory; False if it cannot.

    torch has no way to take it back: register once in a process.
    """
    attach = getattr(torch._C, f"_{device.type}_attach_out_of_memory_observer", None)
    if attach is None:
        return False
    attach(lambda *_: callback())
    return True


class RaisedOutOfMemory:
    """Counts the out-of-memory errors that reach Python, without those that a library such as cuDNN catches itself.

    Torch's observer is called for both. Only an error that reaches Python has its exception constructed. From there on
    it is counted what collections of Python's free, for what cycles alone hold is else gone when somebody looks.
    """

    def __init__(self) -> None:
        """Count nothing."""
        self.number = self._num_starts = 0
        self.collected_bytes = 0  # Since the last of these errors
        self.requested_bytes = 0  # In use on the current device as the last of these errors was made
        self._before_bytes: int | None = None
        self._counts_collections = False
        self.callbacks: list[Callable[[], None]] = []  # Called as such an error is made, before any function is left

    def start(self, *, with_collections: bool = True) -> None:
        """Count from now on; as often as it is called, `stop` has to be.

        Args:
            with_collections: False leaves Python's collector alone: after an error each collection asks the allocator.
        """
        self._num_starts += 1
        self._counts_collections |= with_collections
        if self._num_starts > 1:
            return

        def made(error: torch.OutOfMemoryError, *arguments: object) -> None:
            self.number += 1
            self.collected_bytes = 0
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                self.requested_bytes = torch.cuda.memory_stats().get("requested_bytes.all.current", 0)
            if self._counts_collections and self._while_collecting not in gc.callbacks:
                gc.callbacks.append(self._while_collecting)
            RuntimeError.__init__(error, *arguments)
            for callback in self.callbacks:
                callback()

        setattr(torch.OutOfMemoryError, "__init__", made)  # noqa: B010

    def stop(self) -> None:
        """Count no longer."""
        self._num_starts -= 1
        if not self._num_starts:
            delattr(torch.OutOfMemoryError, "__init__")
            self._counts_collections = False
            self.forget()

    def forget(self) -> None:
        """Look at no collection any more, until the next error."""
        self.collected_bytes = 0
        if self._while_collecting in gc.callbacks:
            gc.callbacks.remove(self._while_collecting)

    def _while_collecting(self, phase: str, info: Mapping[str, Any]) -> None:
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        if phase == "start":
            self._before_bytes = torch.cuda.memory_allocated()
        elif self._before_bytes is not None:
            self.collected_bytes += max(0, self._before_bytes - torch.cuda.memory_allocated())
            self._before_bytes = None


RAISED = RaisedOutOfMemory()


def allocator_statistics(device: torch.device) -> Mapping[str, Any]:
    """The allocator's counters as they are kept, nested by name; empty where it has none.

    What `torch.cuda.memory_stats` puts in one flat dictionary of a hundred entries, at ten times the cost.
    """
    ask = _statistics_of(device)
    try:
        return ask() if ask is not None else {}
    except (RuntimeError, NotImplementedError):  # an allocator without counters
        return {}


@cache
def _statistics_of(device: torch.device) -> Callable[[], Mapping[str, Any]] | None:
    """The function that reads a device's counters, looked up once: a step calls it several times."""
    nested = getattr(torch.get_device_module(device), "memory_stats_as_nested_dict", None)
    if nested is not None:
        return partial(nested, device)
    ask = getattr(torch._C, "_accelerator_getDeviceStats", None)
    accelerator = torch.accelerator.current_accelerator()
    if ask is None or accelerator is None or accelerator.type != device.type:
        return None
    return partial(ask, device.index)
