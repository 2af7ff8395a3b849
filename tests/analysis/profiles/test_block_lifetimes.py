"""Lives of blocks: examples by hand, a plain loop over drawn histories, and what the allocator counted itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import START_NS, Event, History, Key, histories, known_of, levels_of, recording_of
from tracer.analysis.profiles.block_lifetimes import AsleepPieces, follow_blocks
from tracer.analysis.profiles.caveats import asleep_sentences
from tracer.analysis.profiles.findings import CycleFindings, counted_blocks, find_in_cycle
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.recording import Recording


def lives(recording: Recording, **options: object) -> list[tuple[int, int, int]]:
    """Bytes, made at, freed at of every block."""
    lifetimes = follow_blocks(recording, options.get("known"), options.get("device", 0))  # type: ignore[arg-type]
    columns = (lifetimes.size_bytes, lifetimes.made_at, lifetimes.freed_at)
    return list(zip(*(column.tolist() for column in columns), strict=True))


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_what_was_there_before_may_be_freed_with_or_without_a_tensor() -> None:
    recording = recording_of([Event(10, -100, 1, key=0), Event(300, -40, 2)], [Key(10, 100, 1)], first_total=140)
    lifetimes = follow_blocks(recording, None, 0)
    assert lives(recording) == [(100, -1, 0), (40, -1, 1)]
    assert levels_of(lifetimes) == lifetimes.allocator_bytes.tolist() == [40, 0]
    assert not lifetimes.died_unseen.any()


def test_a_block_from_before_died_unseen_when_its_address_is_handed_out_again() -> None:
    # 100 bytes at 10..110 are there before; at event 1 somebody gets 20 bytes in the middle of them.
    recording = recording_of([Event(500, 7, 2), Event(60, 20, 3), Event(500, -7, 2)], [Key(10, 100, 1)])
    lifetimes = follow_blocks(recording, None, 0)
    assert lives(recording) == [(100, -1, 1), (7, 0, 2), (20, 1, 3)]
    assert lifetimes.died_unseen.tolist() == [True, False, False]
    assert levels_of(lifetimes) == lifetimes.allocator_bytes.tolist() == [107, 27, 20]


def test_the_counter_may_have_started_anywhere() -> None:
    recording = recording_of([Event(10, 100, 1), Event(10, -100, 1)], first_total=-5000)
    assert follow_blocks(recording, None, 0).allocator_bytes.tolist() == [100, 0]


def test_devices_are_apart_even_where_their_addresses_are_equal() -> None:
    events = [Event(10, 100, 1), Event(10, 512, 2, device=1), Event(10, -100, 1), Event(900, 1024, 3, device=1)]
    recording = recording_of(events, [Key(900, 8, 7)], devices=("cpu", "cuda:0"))
    assert lives(recording, device=0) == [(8, -1, 2), (100, 0, 1)]
    assert lives(recording, device=1) == [(512, 0, 2), (1024, 1, 2)]
    assert follow_blocks(recording, None, 1).events.tolist() == [1, 3]


def test_cuda_counts_in_absolute_terms_and_rounds() -> None:
    recording = recording_of([Event(4096, 512, 2, total_bytes=99_512)], [Key(0, 1, 1)], devices=("cuda:0",))
    lifetimes = follow_blocks(recording, None, 0)
    assert lifetimes.allocator_bytes.tolist() == [99_512]
    # The tensor, rounded up; the rest of what the counter had when the recording began; the allocation.
    assert lifetimes.size_bytes.tolist() == [512, 98_488, 512]
    assert levels_of(lifetimes) == [99_512]


def test_a_device_without_events() -> None:
    recording = recording_of([], [Key(10, 100, 1)])
    lifetimes = follow_blocks(recording, None, 0)
    assert lives(recording) == [(100, -1, 0)]
    assert levels_of(lifetimes) == lifetimes.allocator_bytes.tolist() == []


# ---- observations ----------------------------------------------------------------------------------------------------


def test_what_was_held_before_was_there_before_though_no_operator_saw_it() -> None:
    recording = recording_of([Event(10, 100, 1)])
    known = known_of((-50, 700, 32, Role.PARAMETER, "w"))
    lifetimes = follow_blocks(recording, known, 0)
    assert lives(recording, known=known) == [(32, -1, 1), (100, 0, 1)]
    assert lifetimes.observed_as.tolist() == [0, -1]
    assert levels_of(lifetimes) == lifetimes.allocator_bytes.tolist() == [132]


def test_only_the_last_look_before_the_recording_counts() -> None:
    """At an earlier one other things were there, which may be gone."""
    recording = recording_of([Event(10, 100, 1)])
    known = known_of((-90, 700, 32, Role.GRADIENT, "gone"), (-50, 800, 16, Role.PARAMETER, "w"))
    assert lives(recording, known=known) == [(16, -1, 1), (100, 0, 1)]


def test_a_tensor_and_its_observation_are_one_block_of_the_larger_size() -> None:
    recording = recording_of([Event(10, 100, 2)], [Key(700, 8, 1)])
    known = known_of((-50, 700, 32, Role.BUFFER, "running_mean"))
    assert lives(recording, known=known) == [(32, -1, 1), (100, 0, 1)]


def test_an_observation_belongs_to_the_block_that_was_there_at_the_time() -> None:
    events = [Event(10, 100, 1), Event(10, -100, 1), Event(10, 100, 2), Event(10, -100, 2)]
    recording = recording_of([Event(e.address, e.size_bytes, e.number, at_ns=10 * i) for i, e in enumerate(events)])
    known = known_of((25, 10, 100, Role.GRADIENT, "w"), (15, 10, 100, Role.INPUT, "nothing is there now"))
    assert follow_blocks(recording, known, 0).observed_as.tolist() == [-1, 0]


def test_the_strongest_role_wins() -> None:
    recording = recording_of([Event(10, 100, 1, at_ns=0), Event(500, 1, 2, at_ns=9)])
    known = known_of((1, 10, 100, Role.INPUT, "x"), (2, 10, 100, Role.PARAMETER, "w"), (3, 10, 100, Role.GRADIENT, "g"))
    assert follow_blocks(recording, known, 0).observed_as.tolist() == [1, -1]


def test_observations_of_another_device_say_nothing() -> None:
    recording = recording_of([Event(10, 100, 1)])
    known = known_of((-50, 700, 32, Role.PARAMETER, "w"), (1, 10, 100, Role.INPUT, "x"), device="cuda:0")
    lifetimes = follow_blocks(recording, known, 0)
    assert lifetimes.observed_as.tolist() == [-1]


# ---- a plain loop over drawn histories -------------------------------------------------------------------------------


@given(histories())
def test_levels_equal_a_plain_loop(history: History) -> None:
    lifetimes = follow_blocks(history.recording(), None, 0)
    assert levels_of(lifetimes) == history.levels()


@given(histories())
def test_every_block_is_alive_where_the_loop_says(history: History) -> None:
    lifetimes = follow_blocks(history.recording(), None, 0)
    assert len(lifetimes.size_bytes) == len(history.lives)
    for position in range(-1, len(history.events)):
        alive = lifetimes.alive_at(position)
        found = sorted(zip(lifetimes.address[alive].tolist(), lifetimes.size_bytes[alive].tolist(), strict=True))
        wanted = sorted((x.address, x.size_bytes) for x in history.lives if x.made <= position < x.gone)
        assert found == wanted


@given(histories())
def test_the_clock_does_not_matter(history: History) -> None:
    """All in one nanosecond, and each in its own second: the same lives."""
    spread = [
        recording_of([replace(event, at_ns=step * at) for at, event in enumerate(history.events)], history.keys)
        for step in (0, 10**9)
    ]
    assert lives(spread[0]) == lives(spread[1])


# ---- what an engine unmaps while it sleeps --------------------------------------------------------------------------


MIB = 1 << 20
CACHE = 100 * MIB


def asleep(begin_ns: int, end_ns: int, *, address: int = CACHE, size_bytes: int = 64 * MIB) -> KnownStorages:
    """A piece that is unmapped between two times since the start."""
    columns = {
        "asleep_address": address,
        "asleep_size_bytes": size_bytes,
        "asleep_device": 0,
        "asleep_ns": START_NS + begin_ns,
        "awake_ns": START_NS + end_ns,
    }
    arrays: dict[str, Any] = {name: np.array([value]) for name, value in columns.items()}
    return replace(known_of(device="cuda:0"), **arrays)


def colocated(known: KnownStorages) -> CycleFindings:
    """A KV cache of 64 MiB, weights of 8, a training step of 48 and, behind it, a rollout of 4."""
    events = [
        Event(CACHE, 64 * MIB, 1),
        Event(10 * MIB, 8 * MIB, 2),
        Event(30 * MIB, 48 * MIB, 3),
        Event(30 * MIB, -48 * MIB, 3),
        Event(30 * MIB, 4 * MIB, 4),
    ]
    recording = recording_of(events, devices=("cuda:0",))
    return find_in_cycle(recording, known=known, device="cuda:0")


def test_the_peak_is_of_what_is_on_the_device() -> None:
    """It sleeps in the training step, so that the rollout behind it is the peak."""
    cycle = colocated(asleep(1, 3))
    on_device = [size // MIB for size in cycle.lifetimes.allocator_bytes.tolist()]
    assert on_device == [64, 72, 56, 8, 76]
    alive = [int(cycle.lifetimes.size_bytes[cycle.lifetimes.alive_at(at)].sum()) // MIB for at in range(5)]
    assert alive == on_device
    assert (cycle.peak.position, cycle.peak.peak_bytes, cycle.peak.unexplained_bytes) == (4, 76 * MIB, 0)
    assert asleep_sentences(cycle.peak) == ()
    by_kind = sum(counted_blocks(cycle).by_kind.values())
    assert [size // MIB for size in np.asarray(by_kind).tolist()] == [0, *on_device]
    awake = colocated(known_of(device="cuda:0"))
    assert (awake.peak.position, awake.peak.peak_bytes) == (2, 120 * MIB)


def test_where_it_sleeps_at_the_peak_no_row_has_it_and_a_sentence_says_so() -> None:
    cycle = colocated(asleep(0, 9))
    assert cycle.peak.peak_bytes == 64 * MIB  # before it went to sleep
    cycle = colocated(asleep(-1, 9))
    assert (cycle.peak.position, cycle.peak.peak_bytes, cycle.peak.unexplained_bytes) == (2, 56 * MIB, 0)
    assert cycle.peak.counted.counter_bytes - cycle.peak.counted.asleep_bytes == 56 * MIB
    assert asleep_sentences(cycle.peak) == (
        "By torch's count 64.00 MiB more were allocated. They were not on the device: an engine slept, and had "
        "unmapped them.",
    )


NUM_EVENTS = 12
SLOT = 10
cuts = st.lists(st.integers(0, NUM_EVENTS), max_size=6).map(lambda drawn: sorted(set(drawn)))
spans = st.tuples(st.integers(-1, NUM_EVENTS - 1), st.integers(1, NUM_EVENTS)).map(
    lambda pair: (pair[0], max(pair[0] + 1, pair[1]))
)


@given(st.lists(cuts, min_size=1, max_size=4), st.lists(st.tuples(st.integers(0, 5 * SLOT), spans), max_size=8))
def test_a_block_is_there_in_its_spans_and_nowhere_else(
    of_slots: list[list[int]], blocks: list[tuple[int, tuple[int, int]]]
) -> None:
    """Of each slot of addresses some stretches of events are asleep; every position is looked at by itself."""
    pieces = [(slot * SLOT, *span) for slot, cut in enumerate(of_slots) for span in list(pairwise(cut))[::2]]
    address, begins, ends = np.array(pieces, np.int64).reshape(-1, 3).T
    table = AsleepPieces(address, np.full(len(address), SLOT), begins, ends)
    at = np.array([place for place, _ in blocks], np.int64)
    made, freed = np.array([span for _, span in blocks], np.int64).reshape(-1, 2).T
    row, begin, end = table.awake(at, made, freed)
    for position in range(-1, NUM_EVENTS):
        alive = np.flatnonzero((made <= position) & (freed > position))
        expected = alive[~table.have(at[alive], position)].tolist()
        assert sorted(row[(begin <= position) & (end > position)].tolist()) == expected
