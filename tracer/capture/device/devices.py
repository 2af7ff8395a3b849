"""Capabilities of a device, asked of torch: allocator counters and history, events, random numbers, kernels.

No function depends on a device's name. Every accelerator has a module, `torch.cuda` or one of another package;
`torch.accelerator` may have the functions that the module lacks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch
from torch.profiler import ProfilerActivity

_NOT_ACCELERATORS = ("cpu", "meta")


def is_accelerator(device: torch.device) -> bool:
    """True if a device has memory of its own, which torch's allocator for it hands out."""
    return device.type not in _NOT_ACCELERATORS


def module_of(device: torch.device) -> ModuleType | None:
    """The module of torch for the devices of this type, such as `torch.cuda`; None where there is none."""
    try:
        return torch.get_device_module(device)
    except RuntimeError:
        return None


def num_devices(device: torch.device) -> int:
    """Return the number of devices of this type that can be used now."""
    module = module_of(device)
    if module is None or not hasattr(module, "device_count"):
        return 0
    is_available = getattr(module, "is_available", lambda: True)
    return int(module.device_count()) if is_available() else 0


def with_index(device: torch.device) -> torch.device:
    """A device with its number: without one it is the current one, as everywhere in torch."""
    if ":" in str(device) or not is_accelerator(device):
        return device
    current = _function(device, "current_device")
    index = int(current()) if current is not None else 0
    return torch.device(device.type, index)


def cuda_device() -> torch.device | None:
    """Return the CUDA device that this process uses now; it is not started for that."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def device_in_use() -> torch.device | None:
    """The current accelerator, if its allocator has handed out anything in this process; it is not started for that."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not getattr(module_of(accelerator), "is_initialized", lambda: False)():
        return None
    device = with_index(accelerator)
    return device if peak_allocated_bytes(device) else None


def profiler_activities(device: torch.device) -> list[ProfilerActivity]:
    """Return the activities to profile for a run on this device: the CPU, and the device's kernels if it has them."""
    return [ProfilerActivity.CPU, *_kernel_activities(device)]


def _kernel_activities(device: torch.device) -> list[ProfilerActivity]:
    if not is_accelerator(device):
        return []
    named = getattr(ProfilerActivity, device.type.upper(), None)
    wanted = ProfilerActivity.PrivateUse1 if named is None else named
    offered = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    return [wanted] if wanted in offered else []


# ------------------------------------------------------------------------------------------------------ the allocator
def allocator_counters(device: torch.device) -> dict[str, int]:
    """Return the allocator's counters in bytes, without changing them; empty if it has none."""
    if not is_accelerator(device):
        return {}
    counter_names = {
        "allocated": "memory_allocated",
        "reserved": "memory_reserved",
        "largest allocated so far": "max_memory_allocated",
    }
    state = {word: value for word, name in counter_names.items() if isinstance(value := _answer(device, name), int)}
    if (memory := device_memory(device)) is not None:
        state["free on the device"], state["device"] = memory
    return state


def allowed_bytes(device: torch.device) -> int | None:
    """Bytes of an accelerator that a memory fraction lets this process reserve; None without a fraction."""
    fraction, memory = memory_fraction(device), device_memory(device)
    return int(fraction * memory[1]) if memory is not None and fraction is not None else None


def memory_fraction(device: torch.device) -> float | None:
    """The share of an accelerator that this process was given to reserve; None without such a limit."""
    if not is_accelerator(device):
        return None
    with suppress(RuntimeError):  # Where there is no driver, or a kernel's error stands before every answer
        fraction = _answer(with_index(device), "get_per_process_memory_fraction")
        return fraction if isinstance(fraction, float) and fraction < 1 else None
    return None


def device_memory(device: torch.device) -> tuple[int, int] | None:
    """Return the free and the total memory of an accelerator in bytes, by its driver; None if unknown."""
    if not is_accelerator(device):
        return None
    # Behind a kernel's error the driver answers every question with that error, which is being reported already.
    with suppress(RuntimeError):
        memory = _answer(device, "mem_get_info", "get_memory_info")
        return (int(memory[0]), int(memory[1])) if memory is not None else None
    return None


def is_capturing() -> bool:
    """Return True while a CUDA graph is captured, which forbids most of CUDA."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def allocated_bytes(device: torch.device) -> int | None:
    """Return the bytes that an accelerator's allocator has allocated now; None if unknown."""
    return _bytes(device, "memory_allocated")


def peak_allocated_bytes(device: torch.device) -> int | None:
    """The most that the allocator of an accelerator has handed out so far; None where it does not say."""
    return _bytes(device, "max_memory_allocated")


def reserved_bytes(device: torch.device) -> int | None:
    """Return the bytes that an accelerator's allocator has reserved now; None if unknown."""
    return _bytes(device, "memory_reserved")


def _bytes(device: torch.device, name: str) -> int | None:
    value = _answer(device, name) if is_accelerator(device) else None
    return int(value) if value is not None else None


def reserved_peaks(kind: str) -> dict[int, int]:
    """The most that this process's allocator has reserved of each device of a type, by number; without those of 0."""
    if not getattr(module_of(torch.device(kind)), "is_initialized", lambda: False)():
        return {}
    peaks = {
        index: int(_answer(torch.device(kind, index), "max_memory_reserved") or 0)
        for index in range(num_devices(torch.device(kind)))
    }
    return {index: peak_bytes for index, peak_bytes in peaks.items() if peak_bytes}


def uuid_of(device: torch.device) -> str | None:
    """The device's own identifier, whatever CUDA_VISIBLE_DEVICES calls it; None where it is not told."""
    properties = _answer(device, "get_device_properties")
    uuid = getattr(properties, "uuid", None)
    return None if uuid is None else str(uuid)


def _answer(device: torch.device, *names: str) -> Any:
    """Call the first of these functions that the device's backend implements; None if it implements none."""
    for name in names:
        ask = _function(device, name)
        if ask is not None:
            # A backend may have the function and not what is behind it.
            with suppress(NotImplementedError):
                return ask(device)
    return None


def _function(device: torch.device, name: str) -> Callable[..., Any] | None:
    own = getattr(module_of(device), name, None)
    if own is not None or not _is_current_accelerator(device):
        return own
    return getattr(torch.accelerator, name, None)


def _is_current_accelerator(device: torch.device) -> bool:
    """True if torch.accelerator is about devices of this type: a process has one such type."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type


# --------------------------------------------------------------------------------------------------------------- time
def has_events(device: torch.device) -> bool:
    """True if the device's own clock can be read between two pieces of work."""
    return is_accelerator(device) and (
        hasattr(module_of(device), "Event") or (_is_current_accelerator(device) and hasattr(torch, "Event"))
    )


def record_event(device: torch.device) -> Any:
    """An event behind the work that was launched on the device's current stream."""
    own = getattr(module_of(device), "Event", None)
    event = own(enable_timing=True) if own is not None else torch.Event(device=device, enable_timing=True)
    stream = _function(device, "current_stream")
    if not _parameters(event.record):
        event.record()  # a backend with one stream, such as MPS
    elif stream is not None:
        event.record(stream(device))
    return event


def synchronize(device: torch.device) -> None:
    """Wait for the device, if there is something to wait for."""
    if not is_accelerator(device):
        return
    wait = _function(device, "synchronize")
    if wait is not None:
        wait(device) if _parameters(wait) else wait()  # MPS, with one device, takes none


def _parameters(function: Callable[..., Any]) -> bool:
    with suppress(ValueError, TypeError):
        return bool(inspect.signature(function).parameters)
    return True


# --------------------------------------------------------------------------------------------------------------- more
def has_random_state(device: torch.device) -> bool:
    """True if the device draws random numbers from a state of its own, which can be saved and restored."""
    module = module_of(device)
    return is_accelerator(device) and hasattr(module, "get_rng_state") and hasattr(module, "set_rng_state")


def device_name(device: torch.device) -> str:
    """Return the device's name, as its maker gave it; empty if unknown."""
    name = getattr(module_of(device), "get_device_name", None) if is_accelerator(device) else None
    if name is None or not num_devices(device):
        return ""
    # Behind a kernel's error the driver answers every question with that error, which is being reported already.
    with suppress(RuntimeError):
        return str(name(device))
    return ""


def lacks(device: torch.device, *, has_history: bool, has_kernels: bool) -> str | None:
    """A sentence on what this device lacks that the program would have used; None if it lacks nothing."""
    if not is_accelerator(device):
        return None
    missing = list(_missing(device, has_history, has_kernels))
    return f"What {device.type} does not offer: {'; '.join(missing)}." if missing else None


def _missing(device: torch.device, has_history: bool, has_kernels: bool) -> Iterable[str]:
    if not has_history:
        yield "a history of its allocator (requested sizes, segments, and why memory ran out are left out)"
    if not has_kernels:
        yield "kernels of operators to torch's profiler (a replayed graph has none; run times are the host's)"
    if not has_events(device):
        yield "events (phases are timed by the host's clock)"
