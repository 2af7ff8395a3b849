"""Bytes of each kind over a recording: by hand, a plain loop on every workload, and together all that is alive."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.histories import Event, Key, known_of, levels_of, recording_of
from tests.training_steps import WORKLOADS, Recorded
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.findings import find_in_cycle
from tracer.analysis.profiles.memory_by_kind import memory_by_kind
from tracer.capture.objects.known_storages import Role


def test_an_example_by_hand() -> None:
    # A parameter of 100 from before, a block of 7 that is made, then freed; a batch of 5 beside it.
    events = [Event(500, 7, 2), Event(600, 5, 3), Event(500, -7, 2)]
    known = known_of((-5, 10, 100, Role.PARAMETER, "w"), (1, 600, 5, Role.INPUT, "batch"))
    found = find_in_cycle(recording_of(events, [Key(10, 100, 1)]), known=known)
    levels = memory_by_kind(found.lifetimes, found.blocks)
    assert [(level.kind, level.before_bytes, level.values_bytes.tolist()) for level in levels] == [
        (Kind.PARAMETER, 100, [100, 100, 100]),
        (Kind.INPUT, 0, [0, 5, 5]),
        (Kind.TEMPORARY, 0, [7, 7, 0]),
    ]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_plain_loop_agrees_and_kinds_add_up(name: str, recorded: Callable[[str], Recorded]) -> None:
    for recording in recorded(name).recordings:
        found = find_in_cycle(recording)
        lifetimes, kinds = found.lifetimes, found.blocks.kind.tolist()
        levels = memory_by_kind(lifetimes, found.blocks)
        assert [level.kind for level in levels if level.kind in kinds] == [level.kind for level in levels]
        assert {level.kind for level in levels} == set(kinds)
        total = [sum(values) for values in zip(*(level.values_bytes.tolist() for level in levels), strict=True)]
        assert total == levels_of(lifetimes) == lifetimes.allocator_bytes.tolist()
        last = len(lifetimes.events) - 1
        for position in (-1, 0, last // 2, last):
            alive = lifetimes.alive_at(position).tolist()
            for level in levels:
                expected = sum(int(lifetimes.size_bytes[row]) for row in alive if kinds[row] == level.kind)
                assert (level.before_bytes if position < 0 else level.values_bytes[position]) == expected
