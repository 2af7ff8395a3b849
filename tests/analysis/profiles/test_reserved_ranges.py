"""What was reserved at each event of a recording: the model of the allocator that both watched knows the truth."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.analysis.profiles.test_allocator_join import WatchedAllocator, joined, run
from tests.snapshot.allocator_model import SEGMENT_BYTES
from tracer.analysis.profiles.allocator_join import reserved_ranges
from tracer.analysis.profiles.findings import CycleFindings
from tracer.exporters.page.timeline_page import timeline_page


def reserved_at(cycle: CycleFindings) -> tuple[list[int], int]:
    """Bytes reserved at each event, and the first event of which that is known."""
    found = reserved_ranges(cycle.history, cycle.lifetimes) if cycle.history is not None else None
    num_events = len(cycle.lifetimes.events)
    if found is None:
        return [0] * num_events, num_events
    at = np.arange(num_events)[:, None]
    there = (found.begin <= at) & (found.end > at)
    return (there * found.size_bytes).sum(axis=1).tolist(), found.known_from


def test_worked_by_hand() -> None:
    """One segment from before; a second one from the third event on; the first one goes before the fifth."""
    allocator = WatchedAllocator()
    first = allocator.alloc(SEGMENT_BYTES // 2)
    allocator.start_recording()
    allocator.profiling = True
    second = allocator.alloc(SEGMENT_BYTES // 4)
    allocator.free(second)
    allocator.alloc(SEGMENT_BYTES)
    allocator.free(first)
    allocator.empty_cache()
    allocator.alloc(SEGMENT_BYTES)
    level, known_from = reserved_at(joined(allocator).worst)
    assert level == [SEGMENT_BYTES, SEGMENT_BYTES, 2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES]
    assert level == [truth.reserved for truth in allocator.truths]
    assert known_from == 0


def test_what_the_history_has_lost_is_not_known() -> None:
    allocator = WatchedAllocator()
    allocator.start_recording()
    allocator.profiling = True
    for _ in range(3):
        allocator.free(allocator.alloc(1024))
    allocator.alloc(2048)
    # The last entries: completed, alloc, requested, completed, alloc. The fifth event is the first that both have.
    cycle = joined(allocator, keep=5).worst
    assert reserved_at(cycle) == ([SEGMENT_BYTES] * 7, 4)
    space = timeline_page(joined(allocator, keep=5), run={}).space
    assert space is not None and space.ranges.known_from == 4
    assert space.homes == ("stream 0",)


def test_a_page_without_a_history_has_no_segments() -> None:
    allocator = WatchedAllocator()
    allocator.profiling = True
    allocator.alloc(512)
    page = timeline_page(allocator.findings(), run={})
    assert page.space is None
    assert page.blocks is not None and page.blocks.address is None


def drawn(random: Random) -> list[tuple[str, int]]:
    """Actions in which segments come and go: a request that fills one, and an emptied cache, are not rare."""
    names = ["alloc", "alloc", "free", "free", "request", "complete", "empty", "empty"]
    sizes = [random.randrange(1, 40_000) if random.random() < 0.6 else SEGMENT_BYTES for _ in range(40)]
    return [(random.choice(names), size) for size in sizes[: random.randrange(40)]]


@pytest.mark.parametrize("seed", range(60))
def test_it_is_what_the_allocator_had_reserved_whatever_happens(seed: int) -> None:
    random = Random(seed)
    allocator = WatchedAllocator()
    run(allocator, drawn(random))
    allocator.start_recording()
    run(allocator, drawn(random))
    allocator.profiling = True
    allocator.alloc(512)
    run(allocator, drawn(random))
    truth = [one.reserved for one in allocator.truths]
    for kept in (None, random.randrange(1, 60)):
        level, known_from = reserved_at(joined(allocator, keep=kept).worst)
        assert level[known_from:] == truth[known_from:]
        assert kept is not None or known_from == 0
