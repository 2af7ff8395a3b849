"""Memory of each kind over time has the sizes that the rows of the peak have, and sums to the allocator's count."""

from __future__ import annotations

import numpy as np

from tests.analysis.profiles.test_allocator_join import WatchedAllocator, joined
from tests.histories import known_of
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.counted_blocks import counted_blocks
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
