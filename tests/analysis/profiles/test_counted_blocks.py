"""Memory of each kind over time has the sizes that the rows of the peak have, and sums to the allocator's count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.analysis.profiles.test_allocator_join import WatchedAllocator, joined
from tests.histories import Event, Key, known_of, levels_of, recording_of
from tests.training_steps import WORKLOADS, Recorded
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.findings import counted_blocks, find_in_cycle
from tracer.capture.objects.known_storages import Role


def test_a_parameter_from_before_has_the_allocators_size() -> None:
    """It spans 900 bytes of a block of 2,048: all of these are the parameter's, at the peak and in the curve."""
    allocator = WatchedAllocator()
    allocator.start_recording()
    weight = allocator.alloc(2000)
    allocator.profiling = True
    allocator.free(allocator.alloc(512))
    known = known_of((-5, weight, 900, Role.PARAMETER, "w"), device="cuda:0")
    cycle = joined(allocator, known=known).worst
    levels = counted_blocks(cycle).by_kind
    assert levels[Kind.PARAMETER].tolist() == [2048, 2048, 2048]
    assert {
        kind.name: int(level[cycle.peak.position + 1]) for kind, level in levels.items()
    } == cycle.peak.by_category()
    total = np.sum([level[1:] for level in levels.values()], axis=0)
    assert total.tolist() == cycle.lifetimes.allocator_bytes.tolist()


def test_an_example_by_hand() -> None:
    # A parameter of 100 from before, a block of 7 that is made, then freed; a batch of 5 beside it.
    events = [Event(500, 7, 2), Event(600, 5, 3), Event(500, -7, 2)]
    known = known_of((-5, 10, 100, Role.PARAMETER, "w"), (1, 600, 5, Role.INPUT, "batch"))
    found = find_in_cycle(recording_of(events, [Key(10, 100, 1)]), known=known)
    levels = counted_blocks(found).by_kind
    assert [(kind, level.tolist()) for kind, level in levels.items()] == [
        (Kind.PARAMETER, [100, 100, 100, 100]),
        (Kind.INPUT, [0, 0, 5, 5]),
        (Kind.TEMPORARY, [0, 7, 7, 0]),
    ]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_plain_loop_agrees_and_kinds_add_up(name: str, recorded: Callable[[str], Recorded]) -> None:
    for found in recorded(name).cycles:
        lifetimes, kinds = found.lifetimes, found.blocks.kind.tolist()
        levels = counted_blocks(found).by_kind
        assert set(levels) == set(kinds)
        total = [sum(values) for values in zip(*(level[1:].tolist() for level in levels.values()), strict=True)]
        assert total == levels_of(lifetimes) == lifetimes.allocator_bytes.tolist()
        last = len(lifetimes.events) - 1
        for position in (-1, 0, last // 2, last):
            alive = lifetimes.alive_at(position).tolist()
            for kind, level in levels.items():
                assert level[position + 1] == sum(int(lifetimes.size_bytes[row]) for row in alive if kinds[row] == kind)
