"""CUDA graphs that a program captures: which are alive, in which private pools, and what each capture allocated.

A replay allocates nothing, and torch counts what it works in as free. Only the capture tells what that is, which mostly
comes before the recorded steps: so it is recorded when it happens.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from tracer.capture.device.device_blocks import PoolBytes, pool_bytes, used_in_private_pools
from tracer.capture.profiler.quiet_profiler import quiet_profiler
from tracer.capture.recording import Recording
from tracer.capture.torch_private import torch_profiler

_MOST_RECORDED = 64
"""Captures, as a server makes one for each batch size."""
Pool = tuple[int, int]
_Told = Callable[[Any], None]


@dataclass(slots=True, eq=False)
class Capture:
    """The capture of one graph."""

    device: int  # Index of the CUDA device
    began_ns: int  # When, on the profiler's clock
    ended_ns: int = 0  # When; 0 until then
    # Private pools that the graph works in, its own first; none until the capture has ended. Torch 2.14 tells of
    # others too, which `use_mem_pool` names during a capture; 2.10 does not.
    pools: tuple[Pool, ...] = ()
    # All that was recorded meanwhile; None where a profiler was recording already, which has it.
    recording: Recording | None = None
    # Addresses of blocks of private pools that were in use when it began, which may be earlier captures'.
    in_use: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class LivePool:
    """A private pool of graphs that are alive, with others that they work in."""

    captures: tuple[Capture, ...]  # Of these graphs, in order
    size: PoolBytes  # What is reserved for it and allocated in it


class GraphCaptures:
    """Notes captures while anybody has started it."""

    def __init__(self) -> None:
        self.fault: Exception | None = None  # What kept a capture from being recorded, or None
        self._num_starts = self._num_recorded = 0
        self._end: Callable[[], None] = lambda: None
        self._captures: weakref.WeakKeyDictionary[Any, Capture] = weakref.WeakKeyDictionary()
        self._profilers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def start(self) -> None:
        """Look out for captures; as often as it is called, `stop` has to be."""
        self._num_starts += 1
        if self._num_starts == 1:
            self._end = _on_captures(begins=self._begins, ended=self._ended, was_reset=self._forget)

    def stop(self) -> None:
        """Look no longer, and forget all graphs, if nobody else wants to know."""
        self._num_starts -= 1
        if not self._num_starts:
            self._end()
            self._captures.clear()
            self._num_recorded = 0

    def pools(self, device: torch.device) -> tuple[LivePool, ...]:
        """The pools of graphs that are alive, on a device."""
        of_pool: dict[Pool, list[Capture]] = {}
        counted_for: dict[Pool, Pool] = {}
        for capture in sorted(self._captures.values(), key=lambda capture: capture.began_ns):
            if device.type == "cuda" and capture.device == device.index and capture.pools:
                of_pool.setdefault(capture.pools[0], []).append(capture)
                counted_for = dict.fromkeys(capture.pools, capture.pools[0]) | counted_for
        counted_for |= {pool: pool for pool in of_pool}
        sizes = pool_bytes(device.index, counted_for) if of_pool else {}
        found = []
        for first, captures in of_pool.items():
            if mine := [size for pool, size in sizes.items() if counted_for[pool] == first]:
                total = PoolBytes(sum(size.reserved_bytes for size in mine), sum(size.allocated_bytes for size in mine))
                found.append(LivePool(tuple(captures), total))
        return tuple(found)

    def _begins(self, graph: Any) -> None:
        try:
            self._profilers.pop(graph, None)
            if self._num_recorded < _MOST_RECORDED and not torch_profiler.is_recorded_by_profiler():
                self._profilers[graph] = _profiler()
                self._num_recorded += 1
        except Exception as fault:
            self.fault = fault
        in_use = used_in_private_pools(device := torch.cuda.current_device())
        self._captures[graph] = Capture(device, time.time_ns(), in_use=in_use)

    def _ended(self, graph: Any) -> None:
        capture, profiler = self._captures.get(graph), self._profilers.pop(graph, None)
        if capture is None:
            return
        capture.ended_ns = time.time_ns()
        try:
            pools = graph.pools() if hasattr(graph, "pools") else [graph.pool()]
            capture.pools = tuple(tuple(pool) for pool in pools)
            if profiler is not None:
                from tracer.capture.profiler.event_tree import read_recording

                with quiet_profiler():
                    profiler.stop()
                capture.recording = read_recording(torch_profiler.kineto_results(profiler))
                torch_profiler.release_profiler(profiler)
        except Exception as fault:
            self.fault = fault

    def _forget(self, graph: Any) -> None:
        self._captures.pop(graph, None)


def _on_captures(*, begins: _Told, ended: _Told, was_reset: _Told) -> Callable[[], None]:
    """Have it called with the graph before a capture begins, after it has ended, well or not, and after a reset.

    torch's own hooks come with 2.15, and the first of them when the capture has begun, which forbids most of CUDA.
    """
    kind: Any = torch.cuda.CUDAGraph
    originals = {name: kind.__dict__[name] for name in ("capture_begin", "capture_end", "reset")}

    def told(name: str, *, before: _Told | None = None, after: _Told | None = None) -> Callable[..., Any]:
        original = originals[name]

        @wraps(original)
        def call(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(graph)
            try:
                return original(graph, *args, **kwargs)
            finally:
                if after is not None:
                    after(graph)

        return call

    ours = {
        "capture_begin": told("capture_begin", before=begins),
        "capture_end": told("capture_end", after=ended),
        "reset": told("reset", after=was_reset),
    }
    for name, call in ours.items():
        setattr(kind, name, call)

    def end() -> None:
        for name, call in ours.items():
            if kind.__dict__.get(name) is call:  # else another has wrapped it since
                setattr(kind, name, originals[name])

    return end


def _profiler() -> Any:
    profiler: Any = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True
    )
    with quiet_profiler():
        profiler.start()
    return profiler


GRAPH_CAPTURES = GraphCaptures()
"""Graph captures of this process."""
