"""What torch's CPU allocator tells a profiler, as a plain model of it, and drawn programs to run on that.

Source: c10/core/CPUAllocator.cpp (`ProfiledCPUMemoryReporter::New` and `Delete`): its table of sizes is kept from one
recording to the next, and nothing that happens while nobody records changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from tests.histories import START_NS, Event, Key, known_of, recording_of
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.recording import Recording


class Reporter:
    """`size_table_` and `allocated_`."""

    def __init__(self) -> None:
        self.is_recording = False
        self.sizes: dict[int, int] = {}
        self.allocated_bytes = 0

    def new(self, address: int, size_bytes: int) -> tuple[int, int] | None:
        """What is reported: the size and the counter; None where nothing is."""
        if not self.is_recording:
            return None
        self.sizes[address] = size_bytes
        self.allocated_bytes += size_bytes
        return size_bytes, self.allocated_bytes

    def delete(self, address: int) -> tuple[int, int] | None:
        """The same, with a size below zero."""
        if not self.is_recording or address not in self.sizes:
            return None
        size_bytes = self.sizes.pop(address)
        self.allocated_bytes -= size_bytes
        return -size_bytes, self.allocated_bytes


@dataclass(frozen=True, slots=True)
class Storage:
    """One life of an address. Its name is its own; a role of HELD is none."""

    address: int
    size_bytes: int
    name: str
    role: Role


@dataclass
class Cycle:
    """One recording, and what was true while it lasted."""

    events: list[Event] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    """Bytes that are really allocated after each event."""
    alive: list[tuple[Storage, ...]] = field(default_factory=list)
    """What is really there after each event."""
    spans: dict[int, int] = field(default_factory=dict)
    """Bytes that tensors show of what has a number, by number."""
    first_bytes: dict[int, int] = field(default_factory=dict)
    """The size that was first reported under a number."""
    reported: dict[int, int] = field(default_factory=dict)
    """Frees that were reported of each address so far."""

    def number_at(self, address: int) -> int:
        """The profiler's number: a new one behind each free of the address that was reported."""
        return address * 1000 + self.reported.get(address, 0)

    def recording(self) -> Recording:
        """As the profiler tells it. A size that was reported stands before what tensors show."""
        numbers = sorted(self.spans)
        keys = [Key(number // 1000, self.first_bytes.get(number, self.spans[number]), number) for number in numbers]
        row_of = {number: row for row, number in enumerate(numbers)}
        return recording_of([replace(event, key=row_of.get(event.number, -1)) for event in self.events], keys)


class Machine:
    """Runs a program: allocates, frees, records and looks, on one thread."""

    def __init__(self) -> None:
        self.reporter, self.now = Reporter(), 0
        # A session has a model, so that each look finds something.
        self.alive = [Storage(1, 1, "weight", Role.PARAMETER)]
        self.cycles: list[Cycle] = []
        self._rows: list[tuple[int, int, int, Role, str]] = []
        self._walks: list[int] = []
        self._ends: list[tuple[int, int]] = []
        self._watched: list[Storage] = []

    def allocate(self, address: int, size_bytes: int, role: Role) -> None:
        """Unless something is in the way."""
        if any(one.address < address + size_bytes and address < one.address + one.size_bytes for one in self.alive):
            return
        self.alive.append(Storage(address, size_bytes, f"tensor {self.now}", role))
        self._note(address, self.reporter.new(address, size_bytes))

    def free(self, index: int) -> None:
        """One of those that are there, which a weak reference sees go."""
        if not self.alive[1:]:
            return
        gone = self.alive.pop(1 + index % len(self.alive[1:]))
        if gone in self._watched:
            self._ends.append((self._tick(), gone.address))
            self._watched.remove(gone)
        self._note(gone.address, self.reporter.delete(gone.address))

    def use(self, index: int) -> None:
        """An operator is given a tensor of one of those that are there."""
        if self.reporter.is_recording:
            used, cycle = self.alive[index % len(self.alive)], self.cycles[-1]
            number = cycle.number_at(used.address)
            cycle.spans[number] = max(cycle.spans.get(number, 0), used.size_bytes)

    def look(self) -> None:
        """Observe all that have a role."""
        now = self._tick()
        self._rows += [
            (now, one.address, one.size_bytes, one.role, one.name) for one in self.alive if one.role != Role.HELD
        ]

    def toggle(self) -> None:
        """Begin a recording behind a walk, or end it and look."""
        if self.reporter.is_recording:
            self.reporter.is_recording = False
            self.look()
            return
        now = self._tick()
        self._walks.append(now)
        self._rows += [(now, one.address, one.size_bytes, one.role, one.name) for one in self.alive]
        self._watched = list(self.alive)
        self.cycles.append(Cycle())
        self.reporter.is_recording = True

    def known(self) -> KnownStorages:
        """All that was seen."""
        known = known_of(*self._rows) if self._rows else known_of((0, 1, 1, Role.PARAMETER, "weight"))
        ends = np.array(self._ends, np.int64).reshape(-1, 2)
        return replace(
            known,
            walks_ns=START_NS + np.array(self._walks, np.int64),
            ends_ns=START_NS + ends[:, 0],
            ends_address=np.ascontiguousarray(ends[:, 1]),
            ends_device=np.zeros(len(ends), np.int64),
        )

    def _tick(self) -> int:
        self.now += 10
        return self.now

    def _note(self, address: int, reported: tuple[int, int] | None) -> None:
        at_ns = self._tick()
        if reported is None:
            return
        cycle, (size_bytes, total_bytes) = self.cycles[-1], reported
        number = cycle.number_at(address)
        cycle.events.append(Event(address, size_bytes, number, at_ns=at_ns, total_bytes=total_bytes))
        cycle.first_bytes.setdefault(number, abs(size_bytes))
        if size_bytes < 0:
            cycle.reported[address] = cycle.reported.get(address, 0) + 1
        cycle.levels.append(sum(one.size_bytes for one in self.alive))
        cycle.alive.append(tuple(self.alive))


_ROLES = (Role.HELD, Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Any program over several recordings: a few addresses, used again and again with other sizes."""
    machine = Machine()
    steps = st.one_of(
        st.tuples(
            st.just("allocate"), st.integers(1, 6).map(lambda at: at * 10), st.integers(1, 15), st.sampled_from(_ROLES)
        ),
        st.tuples(st.just("free"), st.integers(0, 5)),
        st.tuples(st.just("use"), st.integers(0, 5)),
        st.tuples(st.just("look")),
        st.tuples(st.just("toggle")),
    )
    run(machine, draw(st.lists(steps, max_size=40)))
    return machine


def run(machine: Machine, steps: Sequence[tuple[object, ...]]) -> None:
    """Do some steps, and end the recording that they leave on."""
    for what, *arguments in steps:
        getattr(machine, str(what))(*arguments)
    if machine.reporter.is_recording:
        machine.toggle()
