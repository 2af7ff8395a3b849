"""What the model says of a snapshot: agreement, why so much is reserved, other settings and devices."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.allocator.recorded import GIB, MIB, Program
from tests.snapshot.dumps import block, entry, frame, freed, segment, snapshot
from tracer.allocator.settings import AllocatorSettings
from tracer.analysis.snapshots.allocator_finding import AllocatorFinding, explain_allocator
from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot
from tracer.analysis.snapshots.reserved import ASKED, HELD, IDLE, REUSED, ROUNDING, UNSPLIT, WAITING, Reserved
from tracer.analysis.snapshots.what_if import WORTH_TRYING
from tracer.errors import SettingsError
from tracer.exporters.allocator_screen import print_allocator
from tracer.exporters.snapshot_json import snapshot_json
from tracer.snapshot.load import snapshot_in_memory

SMALL_STACK = [frame("make_small", "/home/me/model.py", 5)]


def explain(objects: Any, **asked: Any) -> AllocatorFinding:
    (found,) = explain_allocator(replay_snapshot(snapshot_in_memory(objects)), **asked)
    return found


def screen(*found: AllocatorFinding) -> str:
    console = Console(file=StringIO(), width=110)
    print_allocator(found, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def by_reason(reserved: Reserved | None) -> dict[str, int]:
    assert reserved is not None
    sums: dict[str, int] = {}
    for row in reserved.rows:
        sums[row.reason] = sums.get(row.reason, 0) + row.bytes
    return sums


# ---- agreement -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(2, 12), (2, 15)])
def test_the_rules_of_either_torch_are_found(version: tuple[int, int]) -> None:
    found = explain(Program(2, torch_version=version).run(2000).snapshot())
    assert found.modelled is not None and found.modelled.reproduction.is_exact
    assert found.modelled.torch_version == version
    assert "every decision of the allocator comes out" in found.agreement[0]


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
    assert "Replayed at its own settings: " in said
    assert "The first decision that does not come out is at entry" in said
    assert "1 entries have an action that this version does not know" in said


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
    assert (found.modelled, found.what_if, found.agreement) == (None, None, ())
    assert by_reason(found.at_end) == {ASKED: 3 * MIB, HELD: 17 * MIB}


# ---- why so much is reserved -----------------------------------------------------------------------------------------


def test_every_reserved_byte_has_a_reason() -> None:
    """By hand, at the peak: 3 MiB + 1 byte asked for in a segment of 20; 11 MiB in one of 12; a cached 30 that is used
    again and a cached 40 that is not; a small one of 700 bytes; 4 MiB that wait for another stream."""
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
        IDLE: 40 * MIB,
    }
    assert found.at_peak is not None
    assert found.at_peak.bytes == (30 + 40 + 20 + 12 + 2) * MIB
    assert {row.stream for row in found.at_peak.rows} == {0, 1, 2, 3}


def test_cache_that_is_used_again_is_told_from_cache_that_is_not() -> None:
    """By hand: when 60 MiB come on top, 30 and 40 are cached; only the 30 are taken afterwards."""
    program = Program(0)
    allocator = program.allocator
    for size in (30, 40):
        allocator.free(allocator.allocate(size * MIB, stream=size))
    large = allocator.allocate(60 * MIB)
    allocator.free(large)
    allocator.allocate(30 * MIB, stream=30)
    assert by_reason(explain(program.snapshot()).at_peak) == {ASKED: 60 * MIB, REUSED: 30 * MIB, IDLE: 40 * MIB}


def test_pages_that_are_used_again_are_told_too() -> None:
    """By hand, expandable: 100 MiB are freed as five pages, and 30 MiB of them are taken afterwards: two pages."""
    program = Program(0, AllocatorSettings(expandable_segments=True))
    allocator = program.allocator
    allocator.free(allocator.allocate(100 * MIB, stream=1))
    large = allocator.allocate(60 * MIB)
    allocator.free(large)
    allocator.allocate(30 * MIB, stream=1)
    assert by_reason(explain(program.snapshot()).at_peak) == {ASKED: 60 * MIB, REUSED: 40 * MIB, IDLE: 60 * MIB}


def test_who_keeps_free_memory_in_its_segment() -> None:
    """By hand: 1.5 MiB keep 18.5 of a segment of 20, and 512 bytes keep 2 MiB less those."""
    program = Program(0)
    program.allocator.allocate(int(1.5 * MIB))
    program.allocator.allocate(512)
    objects = program.snapshot()
    for row in objects["device_traces"][0]:
        if row["action"] == "alloc" and row["size"] == 512:
            row["frames"] = SMALL_STACK
    found = explain(objects).at_peak
    assert found is not None
    assert [(h.free_bytes, h.held_bytes, h.num_segments, h.num_blocks) for h in found.holders] == [
        (int(18.5 * MIB), int(1.5 * MIB), 1, 1),
        (2 * MIB - 512, 512, 1, 1),
    ]
    assert found.holders[1].sites[0].frame == "make_small"
    assert "make_small  /home/me/model.py:5" in screen(explain(objects))


def test_in_an_expandable_segment_pages_are_kept() -> None:
    """By hand: 40 MiB freed in front of 1.5: two pages are free, and the third is kept with its 18.5."""
    program = Program(0, AllocatorSettings(expandable_segments=True))
    first = program.allocator.allocate(40 * MIB)
    program.allocator.allocate(int(1.5 * MIB))
    program.allocator.free(first)
    found = explain(program.snapshot()).at_end
    assert by_reason(found) == {ASKED: int(1.5 * MIB), HELD: int(18.5 * MIB), IDLE: 40 * MIB}
    assert [(h.free_bytes, h.held_bytes, h.num_segments) for h in found.holders] == [
        (int(18.5 * MIB), int(1.5 * MIB), 1)
    ]


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
    for moment in (found.at_peak, found.at_end):
        held = sum(row.bytes for row in moment.rows if row.reason == HELD)
        assert sum(holder.free_bytes for holder in moment.holders) == held
    in_use = sum(row.bytes for row in found.at_end.rows if row.reason in (ASKED, ROUNDING, UNSPLIT))
    assert in_use == program.allocator.allocated_bytes


def test_private_pools_have_rows_of_their_own() -> None:
    program = Program(0)
    program.allocator.begin_allocate_to_pool((0, 3))
    program.allocator.allocate(30 * MIB)
    rows = explain(program.snapshot()).at_end.rows
    assert [row.pool for row in rows] == ["large of private pool 0,3"]


# ---- other settings and devices --------------------------------------------------------------------------------------


def fragmented() -> Program:
    """Blocks that grow from round to round: what is cached is always a little too small."""
    program = Program(0)
    for size in range(30, 90, 3):
        blocks = [program.allocator.allocate(size * MIB), program.allocator.allocate(2 * MIB)]
        program.allocator.free(blocks[0])
    return program


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
    assert "The least is reserved with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in said
    assert "These are the needs of a clean allocator for just these requests; a program" in said


def test_a_cache_from_before_is_said_to_be_missing() -> None:
    program = fragmented()
    objects = program.snapshot(keep_from=40)
    said = screen(explain(objects, settings=("expandable_segments:True",)))
    assert "without what was cached before the recording" in said


def test_whether_it_runs_on_a_smaller_gpu() -> None:
    objects = fragmented().snapshot()
    large = explain(objects, gpu_memory=2 * GIB).what_if
    assert large is not None and large.runs
    row = large.rows[0]
    assert row.smallest_gpu_bytes is not None
    fits = explain(objects, gpu_memory=row.smallest_gpu_bytes)
    assert fits.what_if is not None and fits.what_if.runs
    assert fits.what_if.rows[0].on_gpu is not None and fits.what_if.rows[0].on_gpu.num_retries > 0
    assert "runs, " in screen(fits)
    fails = explain(objects, gpu_memory=row.smallest_gpu_bytes - 2 * MIB)
    assert fails.what_if is not None and not fails.what_if.runs
    assert "out of memory" in screen(fails)
    assert "As recorded: a request for " in screen(fails)


def test_it_runs_if_one_of_the_settings_asked_about_lets_it() -> None:
    objects = fragmented().snapshot()
    needed = explain(objects, settings=("expandable_segments:True",), gpu_memory=2 * GIB).what_if
    assert needed is not None
    least, expandable = (row.smallest_gpu_bytes for row in needed.rows)
    assert least is not None and expandable is not None
    small = min(least, expandable)
    found = explain(objects, settings=("expandable_segments:True",), gpu_memory=small).what_if
    assert found is not None and found.runs == (small == expandable)


def test_settings_known_to_hurt_are_named_with_a_replay_that_shows_it() -> None:
    program = Program(0)
    for _ in range(3):  # segments of 66 become 96 MiB, and 100 become 128
        program.allocator.allocate(65 * MIB)
    program.allocator.free(program.allocator.allocate(100 * MIB))
    program.allocator.allocate(4 * MIB)  # which may not use what is free of the 100
    asked = ("expandable_segments:True,max_split_size_mb:32", "roundup_power2_divisions:2", "max_split_size_mb:32")
    found = explain(program.snapshot(), settings=asked).what_if
    assert found is not None
    both, rounded, split = found.rows[1:]
    assert "123548" in both.remarks[0] and "with expandable segments alone" in both.remarks[0]
    assert rounded.saved_bytes == -(3 * 30 + 28) * MIB and "larger than asked for" in rounded.remarks[0]
    assert split.saved_bytes == -20 * MIB and "leaves large free blocks" in split.remarks[0]


def test_garbage_collection_needs_a_limit() -> None:
    objects = fragmented().snapshot()
    conf = "garbage_collection_threshold:0.5"
    without = explain(objects, settings=(conf,)).what_if
    limited = explain(objects, settings=(f"{conf},per_process_memory_fraction:0.9",), gpu_memory=GIB).what_if
    assert without is not None and limited is not None
    assert "acts only under a memory limit" in without.rows[1].remarks[0]
    assert without.rows[1].saved_bytes == 0
    assert limited.rows[1].remarks == ()
    assert limited.rows[1].on_gpu is not None
    assert limited.rows[1].on_gpu.reserved_peak_bytes < GIB


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="20 or more"):
        explain(fragmented().snapshot(), settings=("max_split_size_mb:1",))


def test_what_is_worth_trying_can_be_tried() -> None:
    found = explain(fragmented().snapshot(), settings=WORTH_TRYING).what_if
    assert found is not None
    assert len(found.rows) == 1 + len(WORTH_TRYING)


def test_json_has_all_of_it() -> None:
    objects = fragmented().snapshot()
    replayed = replay_snapshot(snapshot_in_memory(objects))
    found = explain_allocator(replayed, settings=("expandable_segments:True",), gpu_memory=GIB)
    (device,) = json.loads(snapshot_json(explain_replayed(replayed), file="s", allocator=found))["devices"]
    allocator = device["allocator"]
    assert allocator["reproduced"]["is_exact"] is True
    assert allocator["reproduced"]["addresses"] == {"equal": 40, "recorded": 40}
    peak = allocator["reserved_at_peak"]
    assert sum(row["bytes"] for row in peak["rows"]) == peak["reserved_bytes"]
    assert peak["held_free_by"][0]["sites"][0]["frame"]
    rows = allocator["what_if"]["rows"]
    assert [row["settings"] for row in rows] == ["", "expandable_segments:True"]
    assert rows[1]["on_gpu"]["failure"] is None and rows[1]["smallest_gpu_bytes"] <= GIB
