"""The allocator model's answers about a recording: agreement, reserved memory, other requests, settings and GPUs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.allocator.recorded import GIB, MIB, Program
from tests.allocator.recording_allocator import RecordingAllocator
from tests.blocks.from_snapshot.recorded_program import (
    Recorded,
    by_reason,
    explain,
    fragmented,
    full,
    layer,
    line,
    screen,
    train,
)
from tests.snapshot.dumps import block, entry, freed, segment, snapshot
from tracer.allocator.reproduce import reproduce
from tracer.allocator.reserving import OutOfMemoryError
from tracer.allocator.settings import AllocatorSettings
from tracer.answers.allocator.allocator_finding import NO_HISTORY, explain_allocator
from tracer.answers.allocator.changed_requests import (
    Changed,
    Trial,
    TriedRequests,
    emptying_at,
    with_earlier_frees,
    with_smaller_blocks,
    without_blocks,
)
from tracer.answers.allocator.explained import Explanation, explanation_of, with_allocator
from tracer.answers.allocator.modelled import Modelled, model_device
from tracer.answers.allocator.reserved import ASKED, CACHED, HELD, ROUNDING, UNSPLIT, WAITING
from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
from tracer.errors import SettingsError
from tracer.exporters.json_documents.snapshot import snapshot_json
from tracer.snapshot.load import snapshot_in_memory


@pytest.mark.parametrize("version", [(2, 12), (2, 15)])
def test_the_rules_of_either_torch_are_found(version: tuple[int, int]) -> None:
    found = explain(Program(2, torch_version=version).run(2000).snapshot())
    assert found.modelled is not None and found.modelled.reproduction.is_exact
    assert found.modelled.torch_version == version
    assert "repeats every decision" in found.agreement[0]


def test_a_device_is_replayed_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """`what to try first` asks, and so does the explanation of a failure."""
    calls: list[object] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments[0])
        return reproduce(*arguments, **options)

    monkeypatch.setattr("tracer.answers.allocator.modelled.reproduce", counted)
    (device,) = replay_snapshot(snapshot_in_memory(Program(2, torch_version=(2, 12)).run(400).snapshot())).devices
    first = model_device(device)
    assert first is not None and model_device(device) is first
    assert len(calls) == 1


def test_retries_are_told() -> None:
    found = explain(Program(5, capacity=600 * MIB, empties=0.0).run(1500).snapshot())
    assert found.modelled is not None
    assert f"{found.modelled.reproduction.num_retries} times; each waits for the GPU." in found.agreement[1]


def test_what_does_not_come_out_is_named() -> None:
    objects = Program(1).run(600).snapshot()
    rows = objects["device_traces"][0]
    at = next(i for i, row in enumerate(rows) if i > 200 and row["action"] == "alloc")
    rows.insert(at, entry("a word of torch 9", 0, 0))
    rows[at + 1]["addr"] += 512 * 3
    said = " ".join(explain(objects).agreement)
    assert "repeats this recording in part: " in said
    assert "The first decision that differs is at entry" in said
    assert "1 entry has an action that this version does not know" in said


def test_another_allocators_recording_still_has_answers() -> None:
    rows = []
    for number in range(3000):
        rows += [entry("alloc", 512 * (number * 7919 % 100_003), 512), *freed(512 * (number * 7919 % 100_003), 512)]
    found = explain(snapshot(rows), settings=("expandable_segments:True",))
    assert "another allocator" in found.agreement[0]
    assert found.at_peak is None
    assert found.what_if is not None
    assert found.what_if.rows[0].outcome.reserved_peak_bytes == 2 * MIB
    assert "Reserved peak of the same requests" in screen(found)


def test_without_a_history_the_end_is_explained() -> None:
    objects = snapshot([], [segment(1 << 30, 20 * MIB, [block(1 << 30, 3 * MIB)])])
    objects["segments"][0]["blocks"].append({"size": 17 * MIB, "state": "inactive", "address": (1 << 30) + 3 * MIB})
    found = explain(objects, settings=("expandable_segments:True",))
    assert (found.modelled, found.what_if) == (None, None)
    (said,) = found.agreement
    assert "no history to be replayed" in said
    assert by_reason(found.at_end) == {ASKED: 3 * MIB, HELD: 17 * MIB}


def test_every_reserved_byte_has_a_reason() -> None:
    """By hand, at the peak: 3 MiB + 1 byte asked for in a segment of 20; 11 MiB in one of 12; a cached 40; a
    small one of 700 bytes; 4 MiB that wait for another stream."""
    program = Program(0)
    allocator = program.allocator
    allocator.free(allocator.allocate(30 * MIB, stream=1))
    allocator.free(allocator.allocate(40 * MIB, stream=2))
    allocator.allocate(3 * MIB + 1)
    waiting = allocator.allocate(4 * MIB)
    allocator.record_stream(waiting, 9)
    allocator.free(waiting)
    allocator.allocate(11 * MIB, stream=3)
    allocator.allocate(700)
    allocator.allocate(30 * MIB, stream=1)
    program.allocator.free(allocator.allocate(512))
    objects = program.snapshot()
    found = explain(objects)
    asked_at_peak = 3 * MIB + 1 + 11 * MIB + 700 + 30 * MIB + 512
    assert by_reason(found.at_peak) == {
        ASKED: asked_at_peak,
        ROUNDING: 511 + 324,
        UNSPLIT: MIB,
        WAITING: 4 * MIB,
        HELD: 20 * MIB - (3 * MIB + 512) - 4 * MIB + 2 * MIB - 1024 - 512,
        CACHED: 40 * MIB,
    }
    assert found.at_peak is not None
    assert found.at_peak.bytes == (30 + 40 + 20 + 12 + 2) * MIB
    assert {row.stream for row in found.at_peak.rows} == {0, 1, 2, 3}


def test_in_an_expandable_segment_pages_are_kept() -> None:
    """By hand: 40 MiB freed in front of 1.5: two pages are free, and the third is kept with its 18.5."""
    program = Program(0, AllocatorSettings(expandable_segments=True))
    first = program.allocator.allocate(40 * MIB)
    program.allocator.allocate(int(1.5 * MIB))
    program.allocator.free(first)
    found = explain(program.snapshot()).at_end
    assert by_reason(found) == {ASKED: int(1.5 * MIB), HELD: int(18.5 * MIB), CACHED: 40 * MIB}


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    expandable=st.booleans(),
    streams=st.integers(1, 3),
    waits=st.booleans(),
    steps=st.integers(1, 250),
)
def test_rows_sum_to_what_is_reserved(seed: int, expandable: bool, streams: int, waits: bool, steps: int) -> None:
    program = Program(seed, AllocatorSettings(expandable_segments=expandable), streams=streams, waits=waits).run(steps)
    assume(program.allocator.history)
    found = explain(program.snapshot())
    assert found.at_peak is not None
    assert sum(row.bytes for row in found.at_peak.rows) == program.allocator.peak_reserved_bytes
    assert sum(row.bytes for row in found.at_end.rows) == program.allocator.reserved_bytes
    in_use = sum(row.bytes for row in found.at_end.rows if row.reason in (ASKED, ROUNDING, UNSPLIT))
    assert in_use == program.allocator.allocated_bytes


def test_private_pools_have_rows_of_their_own() -> None:
    program = Program(0)
    program.allocator.begin_allocate_to_pool((0, 3))
    program.allocator.allocate(30 * MIB)
    rows = explain(program.snapshot()).at_end.rows
    assert [row.pool for row in rows] == ["large of private pool 0,3"]


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


def modelled(program: Program, num_last: int) -> Modelled:
    """The model of a recording that has the last entries alone."""
    num_entries = len(program.snapshot()["device_traces"][0])
    replayed = replay_snapshot(snapshot_in_memory(program.snapshot(keep_from=num_entries - num_last)))
    (device,) = replayed.devices
    found = model_device(device)
    assert found is not None
    return found


def test_pieces_from_before_the_recording_are_in_the_way_again() -> None:
    """Three segments of 100 MiB, 60 of each in use before it; of 150 MiB, asked for in it, there are not 100 left."""
    clean = modelled(full(), 1)
    assert clean.baseline.unserved == () and not clean.is_from_start
    found = clean.as_it_failed
    assert found.is_from_start and found.baseline.unserved == (0,)
    assert (found.baseline.allocated_peak_bytes, found.baseline.reserved_peak_bytes) == (180 * MIB, 300 * MIB)
    # 100 MiB of 400 are free. One segment is given back whole once nothing is in it, and then there are 200.
    rows = found.history.first_lives[:1]
    assert without_blocks(found, rows).outcome(found).unserved == ()
    assert with_earlier_frees(found, rows, np.zeros(1, np.int64)).outcome(found).unserved == ()
    assert without_blocks(found, rows[:0]).outcome(found).unserved == (0,)


def test_a_recording_that_is_whole_begins_in_a_clean_allocator() -> None:
    whole = modelled(full(), len(full().snapshot()["device_traces"][0]))
    assert whole.baseline.unserved and whole.as_it_failed is whole


@pytest.mark.parametrize("seed", [4, 8, 10, 14])
def test_a_cut_recording_fails_as_it_did(seed: int) -> None:
    program = Program(seed, capacity=700 * MIB, streams=1 + seed % 2, waits=seed % 3 == 0).run(700)
    actions = [entry["action"] for entry in program.snapshot()["device_traces"][0]]
    first = max(at for at, action in enumerate(actions) if action == "oom") - 60
    found = modelled(program, len(actions) - first)
    assert found.baseline.unserved == (), "a clean allocator has room"
    found = found.as_it_failed
    assert found.baseline.failure is None and found.baseline.unserved == (60,)
    assert found.baseline.reserved_peak_bytes == found.reproduction.recorded_peak_bytes


def test_what_expandable_segments_save() -> None:
    program = fragmented()
    found = explain(program.snapshot(), settings=("expandable_segments:True",)).what_if
    assert found is not None
    recorded, expandable = found.rows
    assert recorded.outcome.reserved_peak_bytes == program.allocator.peak_reserved_bytes
    assert recorded.saved_bytes == 0
    saved = recorded.outcome.reserved_peak_bytes - expandable.outcome.reserved_peak_bytes
    assert expandable.saved_bytes == saved > 500 * MIB
    assert found.best is expandable
    said = screen(explain(program.snapshot(), settings=("expandable_segments:True",)))
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reserves the least" in said
    assert "These figures are for a clean allocator and exactly these requests; a program" in said


def test_a_cache_from_before_is_said_to_be_missing() -> None:
    program = fragmented()
    objects = program.snapshot(keep_from=40)
    said = screen(explain(objects, settings=("expandable_segments:True",)))
    assert "without what was cached before the recording" in said


def test_whether_it_runs_on_a_smaller_gpu() -> None:
    objects = fragmented().snapshot()
    large = explain(objects, gpu_memory=2 * GIB).what_if
    assert large is not None and large.runs
    in_use = large.rows[0].outcome.allocated_peak_bytes
    assert in_use < large.rows[0].outcome.reserved_peak_bytes - 2 * MIB
    fits = explain(objects, gpu_memory=large.rows[0].outcome.reserved_peak_bytes - 2 * MIB)
    assert fits.what_if is not None and fits.what_if.runs
    assert fits.what_if.rows[0].on_gpu is not None and fits.what_if.rows[0].on_gpu.num_retries > 0
    assert "runs, " in screen(fits)
    fails = explain(objects, gpu_memory=in_use - 2 * MIB)
    assert fails.what_if is not None and not fails.what_if.runs
    assert "out of memory" in screen(fails)
    assert "As recorded: a request for " in screen(fails)


def test_it_runs_if_one_of_the_settings_asked_about_lets_it() -> None:
    objects = fragmented().snapshot()
    sizes = explain(objects, settings=("expandable_segments:True",), gpu_memory=2 * GIB).what_if
    assert sizes is not None
    for gpu_memory in range(100 * MIB, 2 * GIB, 100 * MIB):
        found = explain(objects, settings=("expandable_segments:True",), gpu_memory=gpu_memory).what_if
        assert found is not None and found.runs == found.rows[1].fits


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="20 or more"):
        explain(fragmented().snapshot(), settings=("max_split_size_mb:1",))


def test_other_settings_have_what_the_recording_had() -> None:
    program = full()
    found = explain(program.snapshot(), settings=("expandable_segments:True",)).what_if
    assert found is not None and found.capacity is not None
    recorded, expandable = found.rows
    assert recorded.outcome.reserved_peak_bytes == program.allocator.peak_reserved_bytes == found.recorded_peak_bytes
    assert program.allocator.peak_reserved_bytes <= found.capacity <= 400 * MIB
    assert (found.num_failed, len(recorded.outcome.unserved), expandable.outcome.unserved) == (1, 1, ())
    assert found.best is expandable
    said = " ".join(screen(explain(program.snapshot(), settings=("expandable_segments:True",))).split())
    assert "0 of 1 served as recorded" in said and "1 of 1 served expandable_segments:True" in said
    assert "With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, 1 of 1 failed request would" in said
    assert "The recording used all that the device had for it" in said


def test_json_has_all_of_it() -> None:
    objects = fragmented().snapshot()
    replayed = replay_snapshot(snapshot_in_memory(objects))
    found = with_allocator(explain_replayed(replayed), settings=("expandable_segments:True",), gpu_memory=GIB)
    (device,) = json.loads(json.dumps(snapshot_json(found, file="s")))["devices"]
    allocator = device["allocator"]
    assert allocator["reproduced"]["is_exact"] is True
    assert allocator["reproduced"]["addresses"] == {"equal": 40, "recorded": 40}
    peak = allocator["reserved_at_peak"]
    assert sum(row["bytes"] for row in peak["rows"]) == peak["reserved_bytes"]
    rows = allocator["what_if"]["rows"]
    assert [row["settings"] for row in rows] == ["", "expandable_segments:True"]
    assert rows[1]["on_gpu"]["failure"] is None


def test_without_a_history_what_is_asked_of_settings_is_said_to_have_no_answer() -> None:
    objects = {**fragmented().snapshot(), "device_traces": []}
    replayed = replay_snapshot(snapshot_in_memory(objects))
    asked = explain_allocator(replayed.devices[0], settings=("expandable_segments:True",))
    assert (asked.agreement, asked.what_if) == ((NO_HISTORY,), None)
    assert explain_allocator(replayed.devices[0]).agreement == ()


def explained(capacity: int | None = None, *, fails: bool = False) -> Explanation:
    """Of 4 blocks that a metric's forward keeps in each of 8 steps."""
    program = Recorded(capacity=capacity)
    for _ in range(8):
        train(program)
        for _ in range(4):
            program.make(10, layer(8, caller=4))
    if fails:
        program.fail(110, [line(2)])
    found = explanation_of(snapshot_in_memory(program.snapshot()))
    assert found is not None
    return found


def test_a_failure_is_explained_with_its_line() -> None:
    found = explained(420, fails=True)
    assert (found.file, found.line, found.cause) == ("/home/me/train.py", 2, "graphs kept")
    assert found.sentences.startswith("Memory grows: each of 6 steps left 40.00 MiB")


def test_growth_is_explained_without_a_failure() -> None:
    found = explained()
    assert (found.file, found.cause) == ("", "graphs kept")
    assert ".item() of a loss" in found.sentences


def test_where_the_allocator_is_to_blame_it_says_why() -> None:
    program = Recorded(capacity=100)
    scratch = program.make(60, [line(1)])
    program.free(scratch, [line(1)])
    program.make(15, [line(2)])  # in the 60 MiB, of which 45 stay free; so do 40 MiB of the device
    program.fail(50, [line(3)])
    found = explanation_of(snapshot_in_memory(program.snapshot()))
    assert found is not None and found.cause == "fragmentation"
    assert found.sentences.startswith("This request would have fit if the free memory were in one piece")


def test_of_an_empty_recording_there_is_nothing_to_say() -> None:
    assert explanation_of(snapshot_in_memory({"segments": [], "device_traces": []})) is None
