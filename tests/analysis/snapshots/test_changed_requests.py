"""Recorded programs with other requests: what each change comes to, beside a program that was written so."""

from __future__ import annotations

import numpy as np

from tests.allocator.recorded import MIB
from tests.allocator.recording_allocator import RecordingAllocator
from tests.analysis.snapshots.allocator_samples import explain
from tracer.analysis.snapshots.changed_requests import (
    Changed,
    emptying_at,
    with_earlier_frees,
    with_smaller_blocks,
    without_blocks,
)
from tracer.analysis.snapshots.modelled import Modelled


def recorded() -> Modelled:
    """100 MiB, then 60 beside them; both are freed, and 130 take their place. Entries 1, 3, 4 to 7 and 9."""
    allocator = RecordingAllocator()
    first, second = allocator.allocate(100 * MIB), allocator.allocate(60 * MIB)
    allocator.free(first)
    allocator.free(second)
    allocator.allocate(130 * MIB)
    modelled = explain(allocator.snapshot()).modelled
    assert modelled is not None
    return modelled


def peaks(modelled: Modelled, changed: Changed | None = None) -> tuple[int, int]:
    """Allocated and reserved."""
    outcome = modelled.baseline if changed is None else changed.outcome(modelled)
    assert outcome.failure is None
    return outcome.allocated_peak_bytes // MIB, outcome.reserved_peak_bytes // MIB


def row_of(modelled: Modelled, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.flatnonzero(modelled.history.lives.requested_bytes == size * MIB)


def test_as_recorded() -> None:
    assert peaks(recorded()) == (160, 290)


def test_blocks_that_are_never_asked_for() -> None:
    modelled = recorded()
    assert peaks(modelled, without_blocks(modelled, row_of(modelled, 60))) == (130, 230)
    assert peaks(modelled, without_blocks(modelled, row_of(modelled, 130))) == (160, 160)


def test_blocks_of_a_quarter_of_their_size() -> None:
    modelled = recorded()
    assert peaks(modelled, with_smaller_blocks(modelled, row_of(modelled, 60), 4)) == (130, 246)


def test_blocks_that_are_freed_before_the_next() -> None:
    modelled = recorded()
    lives, row = modelled.history.lives, row_of(modelled, 100)
    entry = lives.begin[row_of(modelled, 60)]
    assert peaks(modelled, with_earlier_frees(modelled, row, entry)) == (130, 230)


def test_an_emptied_cache() -> None:
    modelled = recorded()
    entry = modelled.history.lives.begin[row_of(modelled, 130)]
    assert peaks(modelled, emptying_at(modelled, entry)) == (160, 160)


def test_blocks_from_before_the_recording_can_be_left_out_too() -> None:
    allocator = RecordingAllocator()
    kept = allocator.allocate(100 * MIB)
    allocator.allocate(60 * MIB)
    objects = allocator.snapshot()
    objects["device_traces"] = [objects["device_traces"][0][2:]]
    modelled = explain(objects).modelled
    assert modelled is not None
    assert peaks(modelled) == (160, 160)
    assert peaks(modelled, without_blocks(modelled, row_of(modelled, 100))) == (60, 60)
    assert kept
