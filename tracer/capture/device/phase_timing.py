"""How long forward, backward and optimizer step take: by the device's own events, or else by the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tracer.capture.device import devices
from tracer.capture.kept_run import PHASES, PhaseTimings
from tracer.units import NS_PER_MS


class PhaseTimer:
    """Times phases of steps on one device.

    Where the device has events, one is recorded on its current stream at each edge, and the host waits for the device
    only when a step ends. Elsewhere the host's clock is read at the edges, after waiting for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._has_events = devices.has_events(device)
        self._edges: list[tuple[str, Any, Any]] = []
        self._durations_ms: dict[str, list[float]] = {phase: [] for phase in PHASES}

    def _now(self) -> Any:
        if self._has_events:
            return devices.record_event(self.device)
        devices.synchronize(self.device)
        return time.perf_counter_ns()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block as a phase."""
        start = self._now()
        yield
        self._edges.append((name, start, self._now()))

    def end_step(self, *, keep: bool) -> None:
        """Close a step; the durations of a warm-up step are thrown away."""
        devices.synchronize(self.device)
        for name, start, end in self._edges:
            duration = start.elapsed_time(end) if self._has_events else (end - start) / NS_PER_MS
            if keep:
                self._durations_ms[name].append(duration)
        self._edges.clear()

    def timings(self) -> PhaseTimings:
        """What was kept so far."""
        return PhaseTimings(
            device=str(self.device),
            clock=self.device.type.upper() if self._has_events else "CPU",
            durations_ms={name: tuple(values) for name, values in self._durations_ms.items()},
        )


def time_phases(
    *,
    forward: Callable[[], Any],
    backward: Callable[[Any], None],
    optimizer_step: Callable[[], None],
    device: torch.device,
    num_warmup_steps: int = 2,
    num_steps: int = 6,
    after_step: Callable[[], None] = lambda: None,
) -> PhaseTimings:
    """Run steps and time their phases, without profiler or allocator history."""
    timer = PhaseTimer(device)
    devices.synchronize(device)
    for step in range(num_warmup_steps + num_steps):
        with timer.phase("total_time"):
            with timer.phase("model_fwd"):
                loss = forward()
            with timer.phase("loss_bk"):
                backward(loss)
            with timer.phase("opt_step"):
                optimizer_step()
        timer.end_step(keep=step >= num_warmup_steps)
        del loss
        after_step()
    return timer.timings()
