"""Reads what a process holds of its GPU where its phases begin and end: its `record_function` regions."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, ClassVar, Final, Self

import torch

from tracer.capture.device.devices import cuda_device, device_memory, is_capturing
from tracer.capture.device.memory_counters import read_counters
from tracer.capture.device.phase_memory import BETWEEN, MemoryLevels, PhaseMemory, ProcessPhases
from tracer.capture.forked_child import in_forked_child
from tracer.capture.torch_private.torch_cuda import PEAKS
from tracer.capture.torch_private.torch_profiler import on_regions

_ALL_OF_FIRST: Final = 32
_SELDOM: Final = 16
"""A phase is looked at in these first times, and then in one of so many: a driver may take a millisecond to answer."""
_MOST_PHASES: Final = 1000
"""Names with a number in them, as of each step, fill no memory: further phases are not looked at."""


class PhaseLedger:
    """Follows the phases of this process within a block: `with PhaseLedger("train.py") as ledger:`.

    A phase has all that is held in it, in phases inside of it too. In a forked child it does nothing.
    """

    is_followed: ClassVar[bool] = False  # Whether a ledger follows this process now

    def __init__(
        self,
        name: str,
        *,
        held_bytes: Callable[[torch.device], int | None] | None = None,
        entered: Callable[[str], None] = lambda name: None,
        ended: Callable[[PhaseLedger], None] = lambda ledger: None,
    ) -> None:
        """Set up; nothing is looked at before the block.

        Args:
            name: Of the process, such as its script.
            held_bytes: Returns what this process holds of a device; by default what is used of it, by whomever.
            entered: Called with the name of the innermost phase; empty outside of any.
            ended: Called after a phase that was looked at.
        """
        self._name, self._held_bytes, self._ended = name, held_bytes or _used_bytes, ended
        self._entered = entered
        self.fault: Exception | None = None  # Of this class, which has ended the ledger
        self._phases: dict[tuple[str, int], PhaseMemory] = {}
        self._num_begun = Counter({BETWEEN: 1})
        self._thread = threading.get_ident()
        self._open: dict[int, _Visit] = {}  # By `id()` of a region, outermost first
        self._between: _Visit | None = None
        self._device: torch.device | None = None  # CodeOwner peaks have been set back
        self._outside_bytes: Counter[torch.device] = Counter()  # At the last look
        self._stop: Callable[[], None] = lambda: None
        self._forget_forks: Callable[[], object] = lambda: None

    @property
    def phases(self) -> ProcessPhases:
        """Return the phases so far, in order of their first time, and last what is between them."""
        order = {name: number for number, name in enumerate(self._num_begun)} | {BETWEEN: len(self._num_begun)}
        found = [replace(each, num_times=self._num_begun[each.name]) for each in self._phases.values()]
        phases = sorted(found, key=lambda phase: order[phase.name])
        return ProcessPhases(os.getpid(), self._name, tuple(phases))

    def __enter__(self) -> Self:
        PhaseLedger.is_followed = True
        self._stop = on_regions(self._opened, self._closed)
        self._forget_forks = in_forked_child(self._leave)
        self._guarded(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        """Add the phase that is under way, as where memory ran out in it, and look no longer."""
        self._guarded(self._end_all)
        self._leave()

    def _start(self) -> None:
        """Begin between phases, whose peaks are none from before."""
        PEAKS.follow()
        self._begin_between(self._look())

    def _begin_between(self, levels: MemoryLevels | None) -> None:
        self._between = _Visit(BETWEEN)
        self._between.begin(levels)

    def _leave(self) -> None:
        PhaseLedger.is_followed = False
        self._open, self._between = {}, None
        self._stop()
        self._forget_forks()

    def _opened(self, region: Any, frame: FrameType) -> None:
        if threading.get_ident() == self._thread and _is_of_program(frame):
            self._open[id(region)] = visit = _Visit(str(region.name))
            self._guarded(partial(self._begin, visit))

    def _closed(self, region: Any) -> None:
        if threading.get_ident() == self._thread and id(region) in self._open:
            self._guarded(partial(self._end, id(region)))

    def _guarded(self, look: Callable[[], None]) -> None:
        """Look; a fault of our own ends the ledger, and never the program."""
        try:
            look()
        except Exception as fault:
            self.fault = fault
            self._leave()

    def _begin(self, visit: _Visit) -> None:
        self._entered(visit.name)
        if not self._is_looked_at(visit.name) or is_capturing():
            self._between = None  # it would have what this phase holds
            return
        levels = self._look()
        if self._between is not None:
            self._add(self._between)
            self._between = None
        visit.begin(levels)

    def _is_looked_at(self, name: str) -> bool:
        """Count one more time of a phase, and return whether to look at it."""
        if name not in self._num_begun and len(self._num_begun) > _MOST_PHASES:
            return False
        self._num_begun[name] += 1
        return self._num_begun[name] <= _ALL_OF_FIRST or self._num_begun[name] % _SELDOM == 0

    def _end(self, region: int) -> None:
        visit = self._open[region]
        levels = self._look() if visit.is_looked_at else None
        del self._open[region]
        self._entered(next((each.name for each in reversed(self._open.values())), ""))
        if not visit.is_looked_at:
            return
        self._add(visit)
        if not self._open:
            self._num_begun[BETWEEN] += 1
            self._begin_between(levels)
        self._ended(self)

    def _end_all(self) -> None:
        self._look()
        for visit in (*self._open.values(), self._between):
            if visit is not None:
                self._add(visit)

    def _look(self) -> MemoryLevels | None:
        """Tell each phase that is open what is held now, and the peaks since the last look; None before CUDA begins."""
        if (device := cuda_device()) is None or (levels := self._levels(device)) is None:
            return None
        peak = MemoryLevels()
        if self._device in (None, device):
            peaks = (PEAKS.peak_bytes(device.index, counter) for counter in ("allocated_bytes", "reserved_bytes"))
            peak = MemoryLevels(*peaks)
        for visit in (*self._open.values(), self._between):
            if visit is not None and visit.is_looked_at:
                visit.add(device, levels, peak)
        PEAKS.reset(device.index)
        self._device = device
        return levels

    def _add(self, visit: _Visit) -> None:
        if (memory := visit.memory()) is not None:
            key = memory.name, memory.device
            known = self._phases.get(key)
            self._phases[key] = memory if known is None else known.followed_by(memory)

    def _levels(self, device: torch.device) -> MemoryLevels | None:
        counters, held = read_counters(device), self._held_bytes(device)
        if counters is None or held is None:
            return None
        outside_bytes = held - counters.reserved_bytes
        if outside_bytes < 0:  # not all that is reserved is mapped, as while an engine sleeps; CUDA's context stays
            outside_bytes = self._outside_bytes[device]
        self._outside_bytes[device] = outside_bytes
        return MemoryLevels(counters.allocated_bytes, counters.reserved_bytes, held, outside_bytes)


class _Visit:
    """One time of a phase, on the device that is current in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_looked_at = False
        self._device: torch.device | None = None
        self._first = self._most = self._last = self._peak = MemoryLevels()

    def begin(self, levels: MemoryLevels | None) -> None:
        """Look at it from now on.

        Args:
            levels: Now; None where CUDA has not begun.
        """
        self.is_looked_at = True
        self._first = self._most = levels or MemoryLevels()

    def add(self, device: torch.device, levels: MemoryLevels, peak: MemoryLevels) -> None:
        """Add a look at a moment in it, or at its end, and the peaks since the look before."""
        self._device = device
        self._most, self._last = self._most.at_most(levels), levels
        self._peak = self._peak.at_most(peak)

    def memory(self) -> PhaseMemory | None:
        """Return the memory of this time, which has ended; None where there was no device."""
        if self._device is None:
            return None
        return PhaseMemory.of_visit(self.name, self._device.index, [self._first, self._most, self._last], self._peak)


def _used_bytes(device: torch.device) -> int | None:
    memory = device_memory(device)
    return memory[1] - memory[0] if memory is not None else None


def _is_of_program(frame: FrameType) -> bool:
    caller: FrameType | None = frame
    while caller is not None:
        module = str(caller.f_globals.get("__name__")).partition(".")[0]
        if module != "contextlib":
            return module != "torch"
        caller = caller.f_back
    return True
