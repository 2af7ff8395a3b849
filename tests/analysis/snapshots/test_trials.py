"""Changes that would have served a failed request, each where it does and where it does not."""

from __future__ import annotations

import pytest

from tests.allocator.recorded import MIB, Program
from tests.analysis.snapshots.allocator_samples import full
from tracer.allocator.reserving import OutOfMemoryError
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.trials import Trial, Trials
from tracer.snapshot.load import snapshot_in_memory

EVERY: tuple[Trial, ...] = ("expandable segments", "split all", "one stream", "free at once")


def served(program: Program, *, keep_from: int = 0) -> list[Trial]:
    """The changes under which the last entry's request is served."""
    replayed = replay_snapshot(snapshot_in_memory(program.snapshot(keep_from=keep_from)))
    (device,) = replayed.devices
    trials = Trials(replayed.snapshot, device.state, device.replay)
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
    trials = Trials(replayed.snapshot, device.state, device.replay)
    assert [trials.serves(trial, 0) for trial in EVERY] == [None, None, None, False]
