"""Why so much is reserved: each byte has one reason."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.allocator.recorded import MIB, Program
from tests.analysis.snapshots.allocator_samples import SMALL_STACK, by_reason, explain, screen
from tracer.allocator.settings import AllocatorSettings
from tracer.analysis.snapshots.reserved import ASKED, HELD, IDLE, REUSED, ROUNDING, UNSPLIT, WAITING


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
    assert "make_small  ~/model.py:5" in screen(explain(objects))


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
