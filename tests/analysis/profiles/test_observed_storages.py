"""Rows, count and names beside what really happened, on programs that a model of torch's CPU reporter reports."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.cpu_reporter import Cycle, Machine, machines, run
from tests.histories import levels_of
from tracer.analysis.profiles.block_lifetimes import BlockLifetimes, follow_blocks
from tracer.capture.objects.known_storages import KnownStorages, Role

G, P, H = Role.GRADIENT, Role.PARAMETER, Role.HELD


def followed(machine: Machine) -> list[tuple[Cycle, KnownStorages, BlockLifetimes]]:
    """Each cycle in which something was reported."""
    known = machine.known()
    return [(cycle, known, follow_blocks(cycle.recording(), known, 0)) for cycle in machine.cycles if cycle.events]


def check(machine: Machine) -> None:
    """The blocks are those that are there, and the rows' sum and the count are their bytes, after each event."""
    for cycle, known, lifetimes in followed(machine):
        for position, alive in enumerate(cycle.alive):
            rows = lifetimes.alive_at(position)
            found = sorted(zip(lifetimes.address[rows].tolist(), lifetimes.size_bytes[rows].tolist(), strict=True))
            assert found == sorted((storage.address, storage.size_bytes) for storage in alive)
            name_of = {storage.address: storage.name for storage in alive}
            seen = rows[lifetimes.observed_as[rows] >= 0]
            for address, row in zip(
                lifetimes.address[seen].tolist(), lifetimes.observed_as[seen].tolist(), strict=True
            ):
                assert known.names[known.name[row]] == name_of[address]
        assert levels_of(lifetimes) == cycle.levels
        assert lifetimes.allocator_bytes.tolist() == cycle.levels
        assert (lifetimes.count.counter_bytes >= 0).all()


@given(machines())
def test_rows_and_count_are_what_is_really_there(machine: Machine) -> None:
    check(machine)


# The first recording leaves 10 bytes for the reporter to remember at address 20; then others take the address unseen.
STALE = [("toggle",), ("allocate", 20, 10, H), ("allocate", 40, 1, H), ("toggle",), ("free", 0)]


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("size_bytes", [4, 10, 15])
def test_a_gradient_from_before_has_its_own_size_whatever_the_reporter_remembers(
    size_bytes: int, is_used: bool
) -> None:
    machine = Machine()
    used = [("use", 2)] if is_used else []
    steps = [*STALE, ("allocate", 20, size_bytes, G), ("toggle",), *used, ("allocate", 60, 3, H), ("free", 1)]
    run(machine, [*steps, ("allocate", 50, 2, H)])
    check(machine)
    last = machine.cycles[-1]
    assert [event.size_bytes for event in last.events] == [3, -10, 2]
    assert last.levels == [1 + 1 + size_bytes + 3, 1 + 1 + 3, 1 + 1 + 3 + 2]


def test_a_free_that_python_saw_at_another_time_is_unexplained() -> None:
    """Rows go by what operators and frees say, and the count by what Python saw, so that an error of one side shows."""
    machine = Machine()
    run(machine, [*STALE, ("allocate", 20, 4, G), ("toggle",), ("allocate", 60, 3, H), ("free", 1), ("look",)])
    ((cycle, known, lifetimes),) = followed(machine)[-1:]
    assert lifetimes.allocator_bytes.tolist() == cycle.levels == [9, 5]
    known.ends_ns[-1] -= 20
    lifetimes = follow_blocks(cycle.recording(), known, 0)
    assert levels_of(lifetimes) == [9, 5]
    assert lifetimes.allocator_bytes.tolist() == [5, 5]


def test_a_storage_is_as_large_as_python_saw_it_whatever_its_tensors_span() -> None:
    machine = Machine()
    run(machine, [("allocate", 20, 4, G), ("toggle",), ("use", 1), ("allocate", 60, 3, H)])
    ((cycle, known, _),) = followed(machine)
    known.size_bytes[known.address == 20] = 2
    lifetimes = follow_blocks(cycle.recording(), known, 0)
    assert levels_of(lifetimes) == [6] and cycle.levels == [8]
    assert lifetimes.allocator_bytes.tolist() == [6]
