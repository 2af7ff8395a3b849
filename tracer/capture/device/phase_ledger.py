"""Reads what a process holds of its GPU where its phases begin and end: its `record_function` regions."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final, Self

import torch

from tracer.capture.device.devices import device_memory
from tracer.capture.device.memory_counters import read_counters
from tracer.capture.device.phase_memory import BETWEEN, MemoryLevels, PhaseMemory, ProcessPhases
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
        self._open: dict[int, _Visit | None] = {}  # By `id()` of a region, outermost first; None is not looked at
        self._between: _Visit | None = None
        self._device: torch.device | None = None  # Whose peaks have been set back
        self._outside_bytes: Counter[torch.device] = Counter()  # At the last look
        self._stop: Callable[[], None] = lambda: None
        self._forget_forks: Callable[[], object] = lambda: None

    @property
    def phases(self) -> ProcessPhases:
        """Return the phases so far, in order of their first time, and last what is between them."""
        begun = [*self._num_begun]
        found = [replace(each, num_times=self._num_begun[each.name]) for each in self._phases.values()]
        phases = sorted(found, key=lambda phase: (phase.name == BETWEEN, begun.index(phase.name)))
        return ProcessPhases(os.getpid(), self._name, tuple(phases))

    def __enter__(self) -> Self:
        """Look at regions that are opened from now on."""
        PhaseLedger.is_followed = True
        self._stop = on_regions(self._opened, self._closed)
        self._forget_forks = in_forked_child(self._leave)
        self._guarded(self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Add the phase that is under way, as where memory ran out in it, and look no longer."""
        self._guarded(self._end_all)
        self._leave()

    def _start(self) -> None:
        """Begin between phases, whose peaks are none from before."""
        self._look()
        self._between = _Visit(BETWEEN, self._levels())

    def _leave(self) -> None:
        PhaseLedger.is_followed = False
        self._open, self._between = {}, None
        self._stop()
        self._forget_forks()

    def _opened(self, region: Any, frame: FrameType) -> None:
        if threading.get_ident() == self._thread and _is_of_program(frame):
            self._open[id(region)] = None
            self._guarded(partial(self._begin, id(region), str(region.name)))

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

    def _begin(self, region: int, name: str) -> None:
        self._num_begun[name] += 1
        is_looked_at = self._num_begun[name] <= _ALL_OF_FIRST or self._num_begun[name] % _SELDOM == 0
        if not is_looked_at or len(self._num_begun) > _MOST_PHASES or _is_capturing():
            self._between = None  # it would have what this phase holds
            return
        self._look()
        if self._between is not None:
            self._add(self._between)
            self._between = None
        self._open[region] = _Visit(name, self._levels())
        self._entered(name)

    def _end(self, region: int) -> None:
        visit = self._open[region]
        if visit is None:
            del self._open[region]
            return
        self._look()
        del self._open[region]
        self._add(visit)
        self._entered(next((each.name for each in reversed(self._open.values()) if each is not None), ""))
        if not self._open:
            self._num_begun[BETWEEN] += 1
            self._between = _Visit(BETWEEN, self._levels())
        self._ended(self)

    def _end_all(self) -> None:
        self._look()
        for visit in (*self._open.values(), self._between):
            if visit is not None:
                self._add(visit)

    def _look(self) -> None:
        """Tell each phase that is open what is held now, and the peaks since the last look."""
        device, levels = _device(), self._levels()
        if device is None or levels is None:
            return
        is_same = self._device in (None, device)
        peaks = [
            PEAKS.peak_bytes(device.index, f"{part}_bytes") if is_same else 0 for part in ("allocated", "reserved")
        ]
        for visit in (*self._open.values(), self._between):
            if visit is not None:
                visit.add(device, levels, MemoryLevels(*peaks))
        PEAKS.reset(device.index)
        self._device = device

    def _add(self, visit: _Visit) -> None:
        if (memory := visit.memory()) is not None:
            key = memory.name, memory.device
            known = self._phases.get(key)
            self._phases[key] = memory if known is None else known.followed_by(memory)

    def _levels(self) -> MemoryLevels | None:
        if (device := _device()) is None:
            return None
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

    def __init__(self, name: str, levels: MemoryLevels | None = None) -> None:
        """Begin.

        Args:
            levels: Now; None where CUDA has not begun.
        """
        self.name = name
        self._device: torch.device | None = None
        self._peak = MemoryLevels()
        self._levels = [levels or MemoryLevels()]

    def add(self, device: torch.device, levels: MemoryLevels, peak: MemoryLevels) -> None:
        """Add a look at a moment in it, or at its end, and the peaks since the look before."""
        self._device = device
        # Of many looks inside, as at regions in it, few are kept: those with the most, and the last.
        self._levels = [*self._levels[:1], *_largest(self._levels[1:]), levels]
        self._peak = MemoryLevels(
            max(self._peak.allocated_bytes, peak.allocated_bytes), max(self._peak.reserved_bytes, peak.reserved_bytes)
        )

    def memory(self) -> PhaseMemory | None:
        """Return the memory of this time, which has ended; None where there was no device."""
        if self._device is None:
            return None
        return PhaseMemory.of_visit(self.name, self._device.index, self._levels, self._peak)


def _largest(levels: list[MemoryLevels]) -> list[MemoryLevels]:
    """Return, for each part that counts in a phase's memory, the moment with the most of it."""
    parts: tuple[Callable[[MemoryLevels], int], ...] = (
        lambda level: level.allocated_bytes,
        lambda level: level.reserved_bytes,
        lambda level: level.held_bytes,
        lambda level: level.outside_bytes,
    )
    return list(dict.fromkeys(max(levels, key=part) for part in parts)) if levels else []


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
