"""The allocator's history replayed by the model, and what a replay is made of."""

from __future__ import annotations

from typing import Any

import pytest

from tests.allocator.recorded import MIB, Program, device_of, parts, requests_of
from tests.snapshot.dumps import Row, block, entry, freed, segment, snapshot
from tracer.allocator.history import BEFORE_THE_RECORDING, Op
from tracer.allocator.replay import replay
from tracer.allocator.settings import AllocatorSettings, parse_settings

DEFAULT = AllocatorSettings()


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_replay_is_the_program_run_again(conf: str, seed: int) -> None:
    """Recorded under the defaults, replayed under others: the peak of a program that really ran under these."""
    settings = parse_settings(conf)
    really = Program(seed, settings, empties=0.0).run(1200).allocator
    outcome = replay(requests_of(Program(seed, empties=0.0).run(1200)), settings)
    assert outcome.reserved_peak_bytes == really.peak_reserved_bytes
    assert outcome.allocated_peak_bytes == really.peak_allocated_bytes
    assert outcome.num_driver_calls == really.num_driver_calls
    assert outcome.failure is None


def test_waits_are_replayed() -> None:
    options: dict[str, Any] = {"waits": True, "streams": 2, "empties": 0.0}
    really = Program(3, AllocatorSettings(expandable_segments=True), **options).run(1200).allocator
    outcome = replay(requests_of(Program(3, **options).run(1200)), really.settings)
    assert outcome.reserved_peak_bytes == really.peak_reserved_bytes


def test_retries_of_the_recorded_device_are_left_out() -> None:
    """On a device with room, the program empties its cache only where it says so."""
    large = Program(5, empties=0.0).run(900)
    needed = requests_of(large)
    least = replay(needed, DEFAULT).reserved_peak_bytes - 2 * MIB
    small = Program(5, capacity=least, empties=0.0).run(900)
    assert (small.allocator.num_retries > 0, small.allocator.num_ooms) == (True, 0)
    requests = requests_of(small)
    assert Op.RELEASE not in requests.code
    assert replay(requests, DEFAULT).reserved_peak_bytes == large.allocator.peak_reserved_bytes
    again = replay(requests, DEFAULT, capacity=least)
    assert (again.num_retries, again.failure) == (small.allocator.num_retries, None)


def test_where_it_fails_and_with_what() -> None:
    """By hand: 60 and 60 MiB on a device of 100, the second at entry 2."""
    program = Program(0)
    for size in (60, 60):
        program.allocator.allocate(size * MIB)
    outcome = replay(requests_of(program), DEFAULT, capacity=100 * MIB)
    assert outcome.failure is not None
    assert (outcome.failure.entry, outcome.failure.size) == (3, 60 * MIB)
    assert (outcome.failure.reserved_bytes, outcome.failure.allocated_bytes) == (60 * MIB, 60 * MIB)
    assert outcome.num_retries == 1


def test_what_was_there_before_may_be_too_much_already() -> None:
    program = Program(0)
    blocks = [program.allocator.allocate(60 * MIB), program.allocator.allocate(60 * MIB)]
    program.allocator.history = []
    program.allocator.free(blocks[0])
    outcome = replay(requests_of(program), DEFAULT, capacity=100 * MIB)
    assert outcome.failure is not None
    assert outcome.failure.entry == BEFORE_THE_RECORDING


def test_a_request_that_failed_is_made_again() -> None:
    """On a larger device it is served; what became of it there is not known, so that it is freed at once."""
    program = Program(0, capacity=100 * MIB)
    program.allocator.allocate(60 * MIB)
    with pytest.raises(Exception, match="out of reach"):
        program.allocator.allocate(50 * MIB)
    requests = requests_of(program)
    assert replay(requests, DEFAULT).reserved_peak_bytes == 110 * MIB
    assert replay(requests, DEFAULT, capacity=100 * MIB).failure is not None
    assert replay(requests, DEFAULT, capacity=110 * MIB).failure is None


def test_a_block_that_an_emptied_cache_waited_for_is_not_finished_twice() -> None:
    """By hand: its memory serves another waiting block by the time its own completion comes."""
    program = Program(0)
    allocator = program.allocator
    allocator.free(allocator.allocate(512))
    first = allocator.allocate(30 * MIB)
    allocator.record_stream(first, 5)
    allocator.free(first)
    keeper = allocator.allocate(30 * MIB)
    requests = requests_of(program)
    del keeper
    small = replay(requests, DEFAULT, capacity=40 * MIB)
    assert (small.failure, small.num_retries) == (None, 1)


def test_a_memory_fraction_is_of_the_device() -> None:
    requests = requests_of(Program(7).run(300))
    peak = replay(requests, DEFAULT).reserved_peak_bytes
    half = AllocatorSettings(per_process_memory_fraction=0.5)
    assert replay(requests, half, capacity=2 * peak).failure is None
    assert replay(requests, half, capacity=peak // 2).failure is not None


BASE = 1 << 32


def test_a_block_whose_allocation_is_not_recorded_begins_behind_the_free_of_the_one_before() -> None:
    """The address was freed and is in use at the end: both are told by one entry, and the free comes first."""
    trace = [entry("alloc", BASE, MIB), *freed(BASE, MIB)]
    loaded = device_of(snapshot(trace, [segment(BASE, 2 * MIB, [block(BASE, MIB)])]))
    _, history, _ = parts(*loaded)
    codes = [Op(code).name for code in history.code]
    assert codes == ["ALLOC", "FREE", "ALLOC"]
    assert history.entry[1] == history.entry[2]
    assert history.operand[0] == history.operand[1] != history.operand[2]


def test_entries_without_a_pool_have_that_of_their_segment_since_it_was_taken() -> None:
    """The address was the default pool's, was given back, and then became a private pool's; another one always was."""

    def used(address: int) -> list[Row]:
        return [entry("alloc", address, MIB), *freed(address, MIB)]

    other = BASE + 64 * MIB
    trace = [
        entry("segment_alloc", BASE, 2 * MIB), *used(BASE), entry("segment_free", BASE, 2 * MIB),
        entry("segment_alloc", BASE, 2 * MIB), *used(BASE), *used(other),
    ]  # fmt: skip
    private = {**segment(BASE, 2 * MIB, []), "segment_pool_id": (0, 1)}
    _, history, _ = parts(*device_of(snapshot(trace, [private, segment(other, 2 * MIB, [])])))
    assert [history.pools[at] for at in history.pool.tolist()] == [(0, 0), (0, 1), (0, 0)]
    taken = [event.pool for event in history.segment_events if not event.is_release]
    assert taken == [(0, 0), (0, 1)]
