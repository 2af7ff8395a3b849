"""Recordings that the model of the allocator makes of random programs, in torch's own structure."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

from tests.allocator.recording_allocator import RecordingAllocator
from tracer.allocator.blocks import PENDING, USED, Block
from tracer.allocator.history import History, Requests, read_history
from tracer.allocator.replay import program_of
from tracer.allocator.reproduce import Reproduction, reproduce
from tracer.allocator.reserving import OutOfMemoryError
from tracer.allocator.settings import AllocatorSettings, recorded_settings
from tracer.allocator.start_state import StartState, find_start
from tracer.snapshot.columns import DeviceState, Snapshot, Trace
from tracer.snapshot.load import snapshot_in_memory
from tracer.snapshot.replay import replay

MIB = 1 << 20
GIB = 1 << 30


class Program:
    """A program on a modelled device: steps that keep some of what they make, on a few streams."""

    def __init__(
        self,
        seed: int,
        settings: AllocatorSettings | None = None,
        *,
        capacity: int | None = None,
        torch_version: tuple[int, int] = (2, 15),
        streams: int = 1,
        waits: bool = False,
        empties: float = 0.002,
    ) -> None:
        self.rng = random.Random(seed)
        self.allocator = RecordingAllocator(settings, device_bytes=capacity, torch_version=torch_version)
        self.live: list[Block] = []
        self._streams, self._waits, self._empties = streams, waits, empties

    def run(self, steps: int) -> Program:
        """Allocate and free."""
        for _ in range(steps):
            what = self.rng.random()
            if what < self._empties:
                self.allocator.empty_cache()
            elif what < 0.48 and self.live:
                self._free(self.live.pop(self.rng.randrange(len(self.live))))
            elif self._waits and what < 0.53 and self.allocator.pending:
                self.allocator.finish(next(iter(self.allocator.pending)))
            else:
                self._allocate()
        return self

    def snapshot(self, *, keep_from: int = 0) -> dict[str, Any]:
        """The recording, from some entry on."""
        objects = self.allocator.snapshot()
        objects["device_traces"] = [objects["device_traces"][0][keep_from:]]
        return objects

    def _allocate(self) -> None:
        rng = self.rng
        size = (
            int(2 ** rng.uniform(8, 27)) if rng.random() < 0.6 else rng.choice((900, MIB, 3 * MIB, 11 * MIB, 40 * MIB))
        )
        try:
            self.live.append(self.allocator.allocate(size, rng.randrange(self._streams)))
        except OutOfMemoryError:
            for block in self.live[::2]:
                self._free(block)
            self.live = self.live[1::2]

    def _free(self, block: Block) -> None:
        if block.state is not USED:
            return
        if self._waits and self.rng.random() < 0.3:
            self.allocator.record_stream(block, 77)
        self.allocator.free(block)
        assert block.streams is None or block.state is PENDING


def device_of(objects: Any) -> tuple[Snapshot, DeviceState]:
    """The loaded snapshot and its only device."""
    snapshot = snapshot_in_memory(objects)
    (state,) = snapshot.devices
    return snapshot, state


def without_head(state: DeviceState, entries: int) -> DeviceState:
    """As after a ring buffer has dropped the first entries."""
    trace = state.trace
    return replace(state, trace=Trace(**{one.name: getattr(trace, one.name)[entries:] for one in fields(Trace)}))


def parts(snapshot: Snapshot, state: DeviceState) -> tuple[AllocatorSettings, History, StartState]:
    """What a replay of a recording is made of."""
    settings = recorded_settings(snapshot.settings)
    history = read_history(snapshot, state, replay(state, snapshot.settings))
    return settings, history, find_start(state, history, settings)


def reproduced(
    snapshot: Snapshot, state: DeviceState, *, torch_version: tuple[int, int] = (2, 15), device_bytes: int | None = None
) -> tuple[Reproduction, StartState]:
    """The recording replayed at its own settings."""
    settings, history, start = parts(snapshot, state)
    found = reproduce(state, history, start, settings, torch_version=torch_version, device_bytes=device_bytes)
    return found, start


def requests_of(program: Program) -> Requests:
    """What a program asked for, by its recording."""
    loaded = device_of(program.snapshot())
    found, _ = reproduced(*loaded)
    return program_of(parts(*loaded)[1], found.releases_by_program)
