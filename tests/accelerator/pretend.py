"""A pretend accelerator: importing this registers the backend `pretend` with torch, two devices on memory of the host.

It has what the program asks of a GPU and what no CPU has: a caching allocator with CUDA's rules, its history, streams,
events and an autograd engine on a thread of its own. It is for tests alone; `tracer/` never names it. Registering a
backend changes `torch.accelerator` for the whole process, so tests import this in processes of their own.

    python main.py --import tests.accelerator.pretend --device pretend:0
"""

from __future__ import annotations

import sys
from types import ModuleType, TracebackType
from typing import Any

import torch

from tests.accelerator.build import load_extension

NAME = "pretend"
_C = load_extension()

Device = torch.device | str | int | None


def _index(of: Device) -> int:
    if isinstance(of, int):
        return of
    index = None if of is None else torch.device(of).index
    return _C.current_device() if index is None else int(index)


class device:  # noqa: N801 - torch's name
    """A block in which another device is the current one."""

    def __init__(self, chosen: Device) -> None:
        self._chosen, self._before = _index(chosen), 0

    def __enter__(self) -> None:
        self._before = _C.current_device()
        _C.set_device(self._chosen)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C.set_device(self._before)


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return int(_C.device_count())


def current_device() -> int:
    return int(_C.current_device())


def set_device(chosen: Device) -> None:
    _C.set_device(_index(chosen))


def synchronize(on: Device = None) -> None:
    _C.synchronize(_index(on))


def get_device_name(of: Device = None) -> str:
    return "Pretend accelerator"


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


# ------------------------------------------------------------------------------------------------------ random numbers
def get_rng_state(of: Device = NAME) -> torch.Tensor:
    return _C.generator(_index(of)).get_state()  # type: ignore[no-any-return]


def set_rng_state(state: torch.Tensor, of: Device = NAME) -> None:
    _C.generator(_index(of)).set_state(state)


def manual_seed(seed: int) -> None:
    _C.generator(_C.current_device()).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _C.generator(index).manual_seed(seed)


def _is_in_bad_fork() -> bool:
    return False


def _lazy_init() -> None:
    pass


# --------------------------------------------------------------------------------------------------------- its history
_SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": "",
    "max_split_size": -1,
    "garbage_collection_threshold": 0.0,
    "expandable_segments": False,
    "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)},
}


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Device = None,
) -> None:
    _C.set_history(enabled is not None, min(max_entries, sys.maxsize), context == "all")


def _snapshot(device: Device = None) -> dict[str, Any]:
    segments, traces = _C.snapshot()
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": dict(_SETTINGS),
        "external_annotations": [],
    }


def _is_history_enabled() -> bool:
    return bool(_C.has_history())


# ------------------------------------------------------------------------------------------------------ for tests only
set_capacity = _C.set_capacity
set_lag = _C.set_lag
KERNEL_MS: float = _C.KERNEL_NS / 1e6
CAPACITY = 8 << 30
LAG = 16


def set_as_new() -> None:
    """Capacity, lag, current device and history as at the beginning, and nothing cached."""
    _record_memory_history(None)
    set_lag(LAG)
    set_device(0)
    for index in range(device_count()):
        synchronize(index)
        set_capacity(index, CAPACITY)
    torch.accelerator.empty_cache()


def _register() -> None:
    """Give torch the module `torch.pretend`, made of what is above."""
    module, memory = ModuleType(f"torch.{NAME}"), ModuleType(f"torch.{NAME}.memory")
    for function in (_record_memory_history, _snapshot, _is_history_enabled):
        setattr(memory, function.__name__, function)
    for public in (
        *(device, is_available, is_initialized, device_count, current_device, set_device, synchronize),
        *(get_device_name, get_amp_supported_dtype, get_rng_state, set_rng_state, manual_seed, manual_seed_all),
        *(_is_in_bad_fork, _lazy_init),
    ):
        setattr(module, public.__name__, public)
    for name in ("set_capacity", "set_lag", "KERNEL_MS"):
        setattr(module, name, globals()[name])
    module.memory = memory  # type: ignore[attr-defined]
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


_register()
