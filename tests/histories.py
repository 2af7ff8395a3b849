"""Allocation histories built by hand or drawn, as recordings, and the plainest possible loop over them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tracer.arrays import in_use
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.recording import Allocations, Calls, DataFlow, Frames, Keys, Modules, Ops, Recording, Spans

START_NS = 1_790_000_000_000_000_000


def _empty(table: Any) -> Any:
    return table(*(np.empty(0, np.int64) for _ in table.__dataclass_fields__))


_TABLES = map(_empty, (Allocations, Keys, DataFlow, Ops, Calls, Spans, Frames, Modules))
_COLUMNS: Any = ((), ("cpu",), (), *_TABLES, *[np.empty(0, np.int64)] * 3, 0)
NOTHING = Recording(*_COLUMNS)
"""A recording in which nothing happened."""


@dataclass(frozen=True, slots=True)
class Event:
    """An allocation, or a free where the size is negative. The number is the allocator's, of one life of an address."""

    address: int
    size_bytes: int
    number: int
    key: int = -1
    device: int = 0
    at_ns: int | None = None
    """Since the start; by default its place in the list, so that a thousand share a microsecond."""
    assumed: bool = False
    total_bytes: int | None = None
    """The allocator's counter; by default the running sum of what the device reported."""


@dataclass(frozen=True, slots=True)
class Key:
    """A storage that was seen as a tensor."""

    address: int
    size_bytes: int
    number: int
    device: int = 0


def recording_of(
    events: Sequence[Event], keys: Sequence[Key] = (), *, devices: tuple[str, ...] = ("cpu",), first_total: int = 0
) -> Recording:
    """The recording in which just these events happened."""
    counters = dict.fromkeys(range(len(devices)), first_total)
    totals = []
    for event in events:
        counters[event.device] += 0 if event.assumed else event.size_bytes
        counted = counters[event.device] if event.total_bytes is None else event.total_bytes
        totals.append(-1 if event.assumed else counted)
    none = np.full(len(events), -1, np.int64)

    def column(values: Iterable[int]) -> Any:
        return np.array(list(values), np.int64)

    return replace(
        NOTHING,
        devices=devices,
        allocations=Allocations(
            time_ns=column(START_NS + (at if e.at_ns is None else e.at_ns) for at, e in enumerate(events)),
            address=column(event.address for event in events),
            size_bytes=column(event.size_bytes for event in events),
            allocation_id=column(event.number for event in events),
            key=column(event.key for event in events),
            device=column(event.device for event in events),
            total_allocated_bytes=column(totals),
            total_reserved_bytes=np.zeros(len(events), np.int64),
            op=none,
            call=none,
            assumed=np.array([event.assumed for event in events], bool),
        ),
        keys=Keys(
            id=np.arange(len(keys)),
            allocation_id=column(key.number for key in keys),
            device=column(key.device for key in keys),
            address=column(key.address for key in keys),
            size_bytes=column(key.size_bytes for key in keys),
            shape=np.full(len(keys), -1),
            dtype=np.full(len(keys), -1),
        ),
        flow=_reading(sorted(set(range(len(keys))) - {e.key for e in events if e.size_bytes > 0})),
        num_events=len(events),
    )


def _reading(keys: Sequence[int]) -> DataFlow:
    """One operator, at the beginning, that reads these storages: so the recording knows of them."""
    none = np.zeros(len(keys), bool)
    node = np.zeros(len(keys), np.int64)
    return DataFlow(np.array([START_NS]), np.array([False]), node, np.array(keys, np.int64), none, none, none)


def known_of(*rows: tuple[int, int, int, Role, str], device: str = "cpu") -> KnownStorages:
    """Observations from rows of time since the start, address, bytes, role and name."""
    names = tuple(dict.fromkeys(row[4] for row in rows))
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(4)]
    columns[0] += START_NS
    name = np.array([names.index(row[4]) for row in rows], np.int64)
    time_ns, address, size_bytes, role = columns
    return KnownStorages(time_ns, address, size_bytes, role, name, np.zeros_like(name), names, (device,))


# ---- drawn histories -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Life:
    """What really happened to one block: its bytes, and the events [made, gone) during which it was there."""

    address: int
    size_bytes: int
    made: int
    gone: int
    number: int


@dataclass(frozen=True, slots=True)
class History:
    """A drawn history and the lives of all blocks that a recording of it can know of."""

    events: tuple[Event, ...]
    keys: tuple[Key, ...]
    lives: tuple[Life, ...]
    first_total: int

    def recording(self) -> Recording:
        return recording_of(self.events, self.keys, first_total=self.first_total)

    def levels(self) -> list[int]:
        """Bytes after each event, by looking at every block at every event."""
        levels = []
        for position in range(len(self.events)):
            total = 0
            for life in self.lives:
                if life.made <= position < life.gone:
                    total += life.size_bytes
            levels.append(total)
        return levels


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any history of a CPU allocator: addresses are used again and again, and some frees go unrecorded."""
    numbers = itertools.count(1)
    places = st.tuples(st.integers(0, 60), st.integers(1, 25))
    # number: (address, bytes, made at, was there before, has a key)
    alive: dict[int, tuple[int, int, int, bool, bool]] = {}
    keys: list[Key] = []
    for _ in range(draw(st.integers(0, 4))):
        place = draw(places)
        if not any(_overlap(place, block[:2]) for block in alive.values()):
            number, seen = next(numbers), draw(st.booleans())
            alive[number] = (*place, -1, True, seen)
            if seen:
                keys.append(Key(*place, number))
    events: list[Event] = []
    lives: list[Life] = []

    def gone(number: int, *, recorded: bool) -> None:
        address, size, made, before, seen = alive.pop(number)
        # What was there before, without a tensor and without a recorded free, nobody can know of.
        if not before or seen or recorded:
            lives.append(Life(address, size, made, len(events), number))

    for _ in range(draw(st.integers(0, 25))):
        if alive and draw(st.booleans()):  # type: ignore[arg-type]
            number = draw(st.sampled_from(sorted(alive)))
            address, size, _, _, seen = alive[number]
            row = next((row for row, key in enumerate(keys) if key.number == number), -1) if seen else -1
            gone(number, recorded=True)
            events.append(Event(address, -size, number, key=row))
            continue
        place = draw(places)
        in_the_way = [number for number, block in alive.items() if _overlap(place, block[:2])]
        for number in in_the_way:
            address, size, _, before, seen = alive[number]
            if not before:  # the reader of recordings puts a free in
                row = next((row for row, key in enumerate(keys) if key.number == number), -1) if seen else -1
                gone(number, recorded=True)
                events.append(Event(address, -size, number, key=row, assumed=True))
        for number in in_the_way:
            if number in alive:
                gone(number, recorded=False)
        number, seen = next(numbers), draw(st.booleans())
        if seen:
            keys.append(Key(*place, number))
        alive[number] = (*place, len(events), False, seen)
        events.append(Event(*place, number, key=len(keys) - 1 if seen else -1))
    end = len(events)
    for number in list(alive):
        address, size, made, before, seen = alive.pop(number)
        if not before or seen:
            lives.append(Life(address, size, made, end, number))
    # The counter has what it was told of before; it cannot fall below nothing.
    numbers_before = {life.number for life in lives if life.made < 0}
    told_before = sum(-event.size_bytes for event in events if event.size_bytes < 0 and event.number in numbers_before)
    return History(tuple(events), tuple(keys), tuple(lives), told_before + draw(st.integers(0, 1000)))


def levels_of(lifetimes: BlockLifetimes) -> list[int]:
    """Bytes of the blocks alive after each event."""
    columns = (lifetimes.size_bytes, lifetimes.made_at, lifetimes.freed_at)
    return in_use(*columns, len(lifetimes.events))[1:].tolist()
