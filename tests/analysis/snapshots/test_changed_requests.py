"""Recorded programs with other requests: what each change comes to, beside a program that was written so."""

from __future__ import annotations

import numpy as np
import pytest

from tests.allocator.recorded import MIB, Program
from tests.allocator.recording_allocator import RecordingAllocator
from tests.analysis.snapshots.allocator_samples import explain, full
from tracer.allocator.reserving import OutOfMemoryError
from tracer.analysis.snapshots.changed_requests import (
    Changed,
    Trial,
    TriedRequests,
    emptying_at,
    with_earlier_frees,
    with_smaller_blocks,
    without_blocks,
)
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.modelled import Modelled
from tracer.snapshot.load import snapshot_in_memory


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


EVERY: tuple[Trial, ...] = ("expandable segments", "split all", "one stream", "free at once")


def served(program: Program, *, keep_from: int = 0) -> list[Trial]:
    """The changes under which the last entry's request is served."""
    replayed = replay_snapshot(snapshot_in_memory(program.snapshot(keep_from=keep_from)))
    (device,) = replayed.devices
    trials = TriedRequests(device)
    return [trial for trial in EVERY if trials.serves(trial, len(device.state.trace) - 1)]


def fails(program: Program, size: int, stream: int = 0) -> Program:
    with pytest.raises(OutOfMemoryError):
        program.allocator.allocate(size * MIB, stream)
    return program


def test_pieces_of_segments_want_expandable_segments() -> None:
    assert served(full()) == ["expandable segments"]


def test_another_streams_memory_wants_one_stream() -> None:
    program = Program(0, capacity=400 * MIB)
    allocate, free = program.allocator.allocate, program.allocator.free
    large = allocate(300 * MIB, 1)
    free(large)
    kept = allocate(20 * MIB, 1)
    assert served(fails(program, 150)) == ["expandable segments", "one stream"], "whose free pages are given back"
    assert kept


def test_a_free_that_waits_wants_no_waiting() -> None:
    program = Program(0, capacity=400 * MIB)
    large, small = program.allocator.allocate(200 * MIB), program.allocator.allocate(150 * MIB)
    program.allocator.free(large)
    kept = program.allocator.allocate(150 * MIB)
    beside = program.allocator.allocate(40 * MIB)
    program.allocator.record_stream(kept, 7)
    program.allocator.free(kept)
    between = program.allocator.allocate(MIB)
    assert "free at once" in served(fails(program, 140))
    assert small and beside and between


def test_what_is_too_much_is_served_by_nothing() -> None:
    program = Program(0, capacity=400 * MIB)
    kept = program.allocator.allocate(300 * MIB)
    assert served(fails(program, 150)) == []
    assert kept


def test_what_would_have_acted_before_the_recording_is_not_told() -> None:
    """The pieces are from before it: the replay goes on from them, and other settings would have made other ones."""
    program = full()
    objects = program.snapshot(keep_from=len(program.snapshot()["device_traces"][0]) - 1)
    replayed = replay_snapshot(snapshot_in_memory(objects))
    (device,) = replayed.devices
    trials = TriedRequests(device)
    assert [trials.serves(trial, 0) for trial in EVERY] == [None, None, None, False]
