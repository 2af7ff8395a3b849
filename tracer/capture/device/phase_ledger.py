"""Reads what a process holds of its GPU where its phases begin and end: the outermost `record_function` regions."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final, Self

import torch

from tracer.capture.device.devices import device_memory
from tracer.capture.device.memory_counters import read_counters
from tracer.capture.device.phase_memory import BETWEEN, Levels, PhaseMemory, ProcessPhases
from tracer.capture.forked_child import in_forked_child
from tracer.capture.torch_private.peak_counters import PEAKS
from tracer.capture.torch_private.torch_profiler import on_regions

_ALL_OF_FIRST: Final = 32
_SELDOM: Final = 16
"""A phase is looked at in these first times, and then in one of so many: a driver may take a millisecond to answer."""
_MOST_PHASES: Final = 1000
"""Names with a number in them, as of each step, fill no memory: further phases are not looked at."""


class PhaseLedger:
    """Follows the phases of this process within a block: `with PhaseLedger("train.py") as ledger:`.

    In a forked child it does nothing.
    """

    def __init__(
        self,
        name: str,
        *,
        held_bytes: Callable[[torch.device], int | None] | None = None,
        ended: Callable[[PhaseLedger], None] = lambda ledger: None,
    ) -> None:
        """Set up; nothing is looked at before the block.

        Args:
            name: Of the process, such as its script.
            held_bytes: Returns what this process holds of a device; by default what is used of it, by whomever.
            ended: Called after a phase that was looked at.
        """
        self._name, self._held_bytes, self._ended = name, held_bytes or _used_bytes, ended
        self.fault: Exception | None = None  # Of this class, which has ended the ledger
        self._phases: dict[tuple[str, int], PhaseMemory] = {}
        self._num_begun = Counter({BETWEEN: 1})
        self._thread = threading.get_ident()
        self._open: list[int] = []  # `id()` of the regions that are open, of which the first is the phase
        self._visit: _Visit | None = None
        self._stop: Callable[[], None] = lambda: None
        self._forget_forks: Callable[[], object] = lambda: None

    @property
    def phases(self) -> ProcessPhases:
        """Return the phases so far, in order of their first time, and last what is between them."""
        found = [replace(each, num_times=self._num_begun[each.name]) for each in self._phases.values()]
        phases = sorted(found, key=lambda phase: phase.name == BETWEEN)
        return ProcessPhases(os.getpid(), self._name, tuple(phases))

    def __enter__(self) -> Self:
        """Look at regions that are opened from now on."""
        self._visit = _Visit(BETWEEN, self._levels)
        self._stop = on_regions(self._opened, self._closed)
        self._forget_forks = in_forked_child(self._leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Add the phase that is under way, as where memory ran out in it, and look no longer."""
        self._guarded(self._end_visit)
        self._leave()

    def _leave(self) -> None:
        self._visit = None
        self._stop()
        self._forget_forks()

    def _opened(self, region: Any, frame: FrameType) -> None:
        if threading.get_ident() != self._thread or not _is_of_program(frame):
            return
        self._open.append(id(region))
        self._guarded(self._note if len(self._open) > 1 else partial(self._begin_phase, str(region.name)))

    def _closed(self, region: Any) -> None:
        if threading.get_ident() != self._thread or id(region) not in self._open:
            return
        self._open.remove(id(region))
        self._guarded(self._note if self._open else self._end_phase)

    def _guarded(self, look: Callable[[], None]) -> None:
        """Look; a fault of our own ends the ledger, and never the program."""
        try:
            look()
        except Exception as fault:
            self.fault = fault
            self._leave()

    def _begin_phase(self, name: str) -> None:
        self._num_begun[name] += 1
        is_looked_at = self._num_begun[name] <= _ALL_OF_FIRST or self._num_begun[name] % _SELDOM == 0
        if not is_looked_at or len(self._num_begun) > _MOST_PHASES or _is_capturing():
            self._visit = None
            return
        self._end_visit()
        self._visit = _Visit(name, self._levels)

    def _end_phase(self) -> None:
        if self._visit is not None:
            self._end_visit()
            self._num_begun[BETWEEN] += 1
            self._visit = _Visit(BETWEEN, self._levels)
            self._ended(self)

    def _note(self) -> None:
        """Look within a phase: an engine may wake and fall asleep in it."""
        if self._visit is not None and not _is_capturing():
            self._visit.note(self._levels)

    def _end_visit(self) -> None:
        if self._visit is None or (memory := self._visit.end(self._levels)) is None:
            return
        key = memory.name, memory.device
        known = self._phases.get(key)
        self._phases[key] = memory if known is None else known.followed_by(memory)

    def _levels(self, device: torch.device) -> Levels | None:
        counters = read_counters(device)
        held = self._held_bytes(device)
        if counters is None or held is None:
            return None
        return Levels(counters.allocated_bytes, counters.reserved_bytes, held)


_Read = Callable[[torch.device], Levels | None]
_MOST_NOTES: Final = 64
"""Moments within one time of a phase that are looked at."""


class _Visit:
    """One time of a phase, on the device that is current when it begins, or where none has begun, when it ends."""

    def __init__(self, name: str, read: _Read) -> None:
        self._name = name
        self._device = _device()
        level = read(self._device) if self._device is not None else Levels()
        self._levels = [level] if level is not None else []
        if self._device is not None:
            PEAKS.reset(self._device.index)

    def note(self, read: _Read) -> None:
        """Look in between."""
        if self._device is not None and len(self._levels) < _MOST_NOTES and (level := read(self._device)) is not None:
            self._levels.append(level)

    def end(self, read: _Read) -> PhaseMemory | None:
        """Return the memory of this time; None where there was no device."""
        device = self._device or _device()
        level = read(device) if device is not None else None
        if device is None or level is None:
            return None
        allocated, reserved = (PEAKS.peak_bytes(device.index, f"{part}_bytes") for part in ("allocated", "reserved"))
        return PhaseMemory.of_visit(
            self._name, device.index, [*self._levels, level], Levels(allocated, reserved, level.held_bytes)
        )


def _device() -> torch.device | None:
    """Return the CUDA device that this process uses now; it is not started for that."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def _used_bytes(device: torch.device) -> int | None:
    memory = device_memory(device)
    return memory[1] - memory[0] if memory is not None else None


def _is_capturing() -> bool:
    """Return whether a graph is captured now, in which a driver allows few calls."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def _is_of_program(frame: FrameType) -> bool:
    """Return whether a region is opened by code outside of torch, which opens some around optimizers and loaders."""
    modules = (str(caller.f_globals.get("__name__")).partition(".")[0] for caller in _callers(frame))
    return next((module for module in modules if module != "contextlib"), "") != "torch"


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
