"""Pieces of a device's memory that an engine which sleeps has unmapped: torch counts them, and they are elsewhere's.

vLLM's sleep mode keeps the addresses of its weights and its KV cache, and gives back what lies behind them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

STILL_ASLEEP_NS: Final = 1 << 62
SLEEP_MODULE: Final = "vllm.device_allocator.cumem"
_CLASS: Final = "CuMemAllocator"
_ENDS_SLEEP: Final = "wake_up"
_CALLS: Final = ("sleep", "discard", _ENDS_SLEEP)


class AsleepPiece(NamedTuple):
    """A piece that was unmapped for some time."""

    device: int  # Number of the device
    address: int
    size_bytes: int
    asleep_ns: int  # When, on the profiler's clock
    awake_ns: int  # When it was mapped again; `STILL_ASLEEP_NS` where it was not


class AsleepMemory:
    """Notes which pieces are unmapped, and when."""

    def __init__(self) -> None:
        self._since_ns: dict[tuple[int, int, int], int] = {}  # By device, address and size
        self._pieces: list[AsleepPiece] = []

    @property
    def pieces(self) -> tuple[AsleepPiece, ...]:
        """Return the pieces so far, those that are still unmapped last."""
        now = [AsleepPiece(*place, since_ns, STILL_ASLEEP_NS) for place, since_ns in self._since_ns.items()]
        return (*self._pieces, *now)

    def note(self, unmapped: Iterable[tuple[int, int, int]]) -> None:
        """Note all that is unmapped now: device, address and size of each piece."""
        now_ns, found = time.time_ns(), set(unmapped)
        for place in self._since_ns.keys() - found:
            self._pieces.append(AsleepPiece(*place, self._since_ns.pop(place), now_ns))
        for place in found - self._since_ns.keys():
            self._since_ns[place] = now_ns


ASLEEP: Final = AsleepMemory()
"""Of this process."""


def follow_sleep(module: Any) -> None:
    """Note what vLLM's allocator unmaps from now on.

    Args:
        module: `vllm.device_allocator.cumem`.
    """
    allocator = getattr(module, _CLASS, None)
    for name in _CALLS:
        if (original := getattr(allocator, name, None)) is not None:
            setattr(allocator, name, _noting(original, name))


def _noting(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def noted(allocator: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return original(allocator, *arguments, **options)
        finally:
            tags = next(iter((*arguments, *options.values())), None)
            ASLEEP.note(_unmapped(allocator, name, tags))

    return noted


def _unmapped(allocator: Any, called: str, tags: Any) -> list[tuple[int, int, int]]:
    """Return what is unmapped after a call; in earlier versions of vLLM no piece says so, and all of it sleeps."""
    found = []
    for data in allocator.pointer_to_data.values():
        device, size_bytes, address = data.handle[:3]
        is_awake = called == _ENDS_SLEEP and (tags is None or data.tag in tags)
        if getattr(data, "is_asleep", not is_awake):
            found.append((int(device), int(address), int(size_bytes)))
    return found
