"""Blocks from their allocation to their free, what was not recorded, and the count beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cpu_reporter import Cycle as ReportedCycle
from tests.cpu_reporter import Machine, machines, run
from tests.histories import START_NS, Event, History, Key, histories, known_of, levels_of, recording_of
from tests.programs import Node, Program, Storage
from tests.training_steps import WORKLOADS, Recorded
from tracer.answers.caveats import asleep_sentences
from tracer.answers.findings import CycleFindings
from tracer.answers.peak import peak_of_cycle
from tracer.answers.recording_findings import counted_blocks, find_in_cycle
from tracer.blocks.from_recording import block_lifetimes as storages_module
from tracer.blocks.from_recording.allocator_count import default_device, match_counter_to_events, most_held_bytes
from tracer.blocks.from_recording.attribution import attribute
from tracer.blocks.from_recording.block_lifetimes import AsleepPieces, BlockLifetimes, follow_blocks
from tracer.blocks.from_recording.blocks import blocks_of_recording
from tracer.blocks.from_recording.cycle import Cycle
from tracer.blocks.from_recording.observed_storages import DeviceRecording
from tracer.blocks.from_recording.torch_categories import categorize
from tracer.blocks.from_recording.unrecorded_storages import own_bytes, unrecorded_storages, unseen_keys
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.recording import DataFlow, Recording, Spans
from tracer.capture.torch_names import STEP_PREFIX


# ---- Lives of blocks: examples by hand, a plain loop over drawn histories, and what the allocator counted itself.
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
    lifetimes = cycle.source.lifetimes
    on_device = [size // MIB for size in lifetimes.allocator_bytes.tolist()]
    assert on_device == [64, 72, 56, 8, 76]
    alive = [
        int(cycle.source.lifetimes.size_bytes[cycle.source.lifetimes.alive_at(at)].sum()) // MIB for at in range(5)
    ]
    assert alive == on_device
    assert (cycle.peak.position, cycle.peak.peak_bytes, cycle.peak.unexplained_bytes) == (4, 76 * MIB, 0)
    assert asleep_sentences(cycle.peak) == ()
    by_kind = sum(counted_blocks(cycle).levels(5).values())
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


# ---- Rows, count and names beside what really happened, on programs that a model of torch's CPU reporter reports.
G, P, H = Role.GRADIENT, Role.PARAMETER, Role.HELD


def followed(machine: Machine) -> list[tuple[ReportedCycle, KnownStorages, BlockLifetimes]]:
    """Each cycle in which something was reported."""
    known = machine.known()
    return [(cycle, known, follow_blocks(cycle.recording(), known, 0)) for cycle in machine.cycles if cycle.events]


def check(machine: Machine) -> None:
    """The blocks are those that are there, and the rows' sum and the count are their bytes, after each event."""
    for cycle, known, lifetimes in followed(machine):
        for position, alive in enumerate(cycle.alive):
            rows = lifetimes.alive_at(position)
            found = sorted(zip(lifetimes.address[rows].tolist(), lifetimes.size_bytes[rows].tolist(), strict=True))
            assert found == sorted((storage.address, storage.size_bytes) for storage in alive)
            name_of = {storage.address: storage.name for storage in alive}
            seen = rows[lifetimes.observed_as[rows] >= 0]
            for address, row in zip(
                lifetimes.address[seen].tolist(), lifetimes.observed_as[seen].tolist(), strict=True
            ):
                assert known.names[known.name[row]] == name_of[address]
        assert levels_of(lifetimes) == cycle.levels
        assert lifetimes.allocator_bytes.tolist() == cycle.levels
        assert (lifetimes.count.counter_bytes >= 0).all()


@given(machines())
def test_rows_and_count_are_what_is_really_there(machine: Machine) -> None:
    check(machine)


# The first recording leaves 10 bytes for the reporter to remember at address 20; then others take the address unseen.
STALE = [("toggle",), ("allocate", 20, 10, H), ("allocate", 40, 1, H), ("toggle",), ("free", 0)]


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("size_bytes", [4, 10, 15])
def test_a_gradient_from_before_has_its_own_size_whatever_the_reporter_remembers(
    size_bytes: int, is_used: bool
) -> None:
    machine = Machine()
    used = [("use", 2)] if is_used else []
    steps = [*STALE, ("allocate", 20, size_bytes, G), ("toggle",), *used, ("allocate", 60, 3, H), ("free", 1)]
    run(machine, [*steps, ("allocate", 50, 2, H)])
    check(machine)
    last = machine.cycles[-1]
    assert [event.size_bytes for event in last.events] == [3, -10, 2]
    assert last.levels == [1 + 1 + size_bytes + 3, 1 + 1 + 3, 1 + 1 + 3 + 2]


def test_a_free_that_python_saw_at_another_time_is_unexplained() -> None:
    """Rows go by what operators and frees say, and the count by what Python saw, so that an error of one side shows."""
    machine = Machine()
    run(machine, [*STALE, ("allocate", 20, 4, G), ("toggle",), ("allocate", 60, 3, H), ("free", 1), ("look",)])
    ((cycle, known, lifetimes),) = followed(machine)[-1:]
    assert lifetimes.allocator_bytes.tolist() == cycle.levels == [9, 5]
    known.ends_ns[-1] -= 20
    lifetimes = follow_blocks(cycle.recording(), known, 0)
    assert levels_of(lifetimes) == [9, 5]
    assert lifetimes.allocator_bytes.tolist() == [5, 5]


def test_a_storage_is_as_large_as_python_saw_it_whatever_its_tensors_span() -> None:
    machine = Machine()
    run(machine, [("allocate", 20, 4, G), ("toggle",), ("use", 1), ("allocate", 60, 3, H)])
    ((cycle, known, _),) = followed(machine)
    known.size_bytes[known.address == 20] = 2
    lifetimes = follow_blocks(cycle.recording(), known, 0)
    assert levels_of(lifetimes) == [6] and cycle.levels == [8]
    assert lifetimes.allocator_bytes.tolist() == [6]


# ---- What was there before, and what was made where the profiler does not record, are told apart by a walk; by hand.
def walked(known: KnownStorages, *at_ns: int) -> KnownStorages:
    return replace(known, walks_ns=START_NS + np.array(at_ns, np.int64))


def with_flow(recording: Recording, *uses: tuple[int, int]) -> Recording:
    """Nodes at some times, in order, each of which reads one key."""
    times = np.array([START_NS + at for at, _ in uses], np.int64)
    none = np.zeros(len(uses), bool)
    keys = np.array([key for _, key in uses], np.int64)
    return replace(recording, flow=DataFlow(times, none, np.arange(len(uses)), keys, none, none, none))


def with_steps(recording: Recording, *starts: int) -> Recording:
    strings = tuple(f"{STEP_PREFIX}{index}" for index in range(len(starts)))
    begin = START_NS + np.array(starts, np.int64)
    spans = Spans(np.arange(len(starts)), begin, begin + 1, np.zeros(len(starts), np.int64))
    return replace(recording, strings=strings, spans=spans)


def unseen_lives(lifetimes: BlockLifetimes) -> list[tuple[int, int, int, int]]:
    """Address, bytes, made at and freed at."""
    rows = np.flatnonzero(lifetimes.made_unseen)
    columns = (lifetimes.address, lifetimes.size_bytes, lifetimes.made_at, lifetimes.freed_at)
    return sorted(zip(*(column[rows].tolist() for column in columns), strict=True))


def events(num: int) -> list[Event]:
    """Allocations of one byte each, far away, 10 ns apart."""
    return [Event(10_000 + at, 1, 100 + at, at_ns=10 * at) for at in range(num)]


# Key 0 is there when Python is asked, key 1 is not: operators use both, and no allocation of either was recorded.
KEYS = [Key(100, 40, 1), Key(500, 60, 2)]
WALK = walked(known_of((-5, 100, 40, Role.HELD, "")), -5)


def test_what_a_walk_did_not_find_was_made_since() -> None:
    recording = recording_of(events(3), KEYS)
    assert unseen_keys(DeviceRecording(recording, WALK, 0)).tolist() == [1]
    assert unseen_keys(DeviceRecording(recording, None, 0)).tolist() == [], "without a walk nobody can say"
    assert unseen_keys(DeviceRecording(recording, replace(WALK, walks_ns=WALK.walks_ns + 1000), 0)).tolist() == []


def test_what_lies_in_idle_memory_was_not_made() -> None:
    """Key 1, at 500, is in the piece that begins at 480; pieces of an earlier look say nothing."""
    recording = recording_of(events(3), KEYS)

    def unseen(*looks: tuple[int, int, int, Role, str]) -> list[int]:
        return unseen_keys(DeviceRecording(recording, walked(known_of(*looks), -5), 0)).tolist()

    held = (-5, 100, 40, Role.HELD, "")
    assert unseen(held, (-5, 480, 30, Role.IDLE, ""), (-2, 900, 1, Role.INPUT, "x")) == []
    assert unseen(held, (-5, 480, 20, Role.IDLE, "")) == [1]
    assert unseen((-9, 480, 30, Role.IDLE, ""), held) == [1]
    assert unseen(held, (-5, 480, 30, Role.IDLE, ""), (-3, 501, 30, Role.IDLE, "")) == [1]


def test_idle_memory_is_no_block() -> None:
    known = walked(known_of((-5, 100, 40, Role.HELD, ""), (-5, 480, 30, Role.IDLE, "")), -5)
    recording = recording_of(events(3), KEYS)
    assert DeviceRecording(recording, known, 0).observed_before == {100: 40}
    assert sorted(follow_blocks(recording, known, 0).address.tolist()) == [100, 10_000, 10_001, 10_002]


def test_it_counts_from_the_beginning_of_its_step_until_its_last_use_there() -> None:
    # Steps begin at 0 and 35. Key 1 is used at 12 and 22 in the first, at 52 in the second; key 0 at 62.
    recording = with_steps(recording_of(events(8), KEYS), 0, 35)
    recording = with_flow(recording, (12, 1), (22, 1), (28, 0), (52, 1), (62, 0))
    lifetimes = follow_blocks(recording, WALK, 0)
    # From event 0 until the node at 28, which is before event 3 (at 30); from event 4 (at 40) until the one at 62.
    assert unseen_lives(lifetimes) == [(500, 60, 0, 3), (500, 60, 4, 7)]
    before = 40
    made = [before + 60, before + 60, before + 60, before, before + 60, before + 60, before + 60, before]
    assert levels_of(lifetimes) == [level + at + 1 for at, level in enumerate(made)]
    assert lifetimes.allocator_bytes.tolist() == levels_of(lifetimes)
    assert lifetimes.count.unseen_bytes.tolist() == [60, 60, 60, 0, 60, 60, 60, 0]


def test_the_last_use_of_all_lasts_to_the_end() -> None:
    recording = with_flow(with_steps(recording_of(events(3), KEYS), 0), (12, 1))
    assert unseen_lives(follow_blocks(recording, WALK, 0)) == [(500, 60, 0, 3)]


def test_an_input_counts_until_it_was_seen_to_be_let_go() -> None:
    """Key 1 is used at 12 and 52; the batch of the first step is let go at 38, that of the second never."""
    recording = with_steps(recording_of(events(8), KEYS), 0, 35)
    recording = with_flow(recording, (12, 1), (22, 0), (52, 1), (62, 0))
    known = known_of((-5, 100, 40, Role.HELD, ""), (11, 500, 60, Role.INPUT, "x"), (51, 500, 60, Role.INPUT, "x"))
    lifetimes = follow_blocks(recording, walked(release(known, (38, 500)), -5), 0)
    # Event 4 is the first behind 38.
    assert unseen_lives(lifetimes) == [(500, 60, 0, 4), (500, 60, 4, 8)]


def test_an_address_that_is_handed_out_ends_it() -> None:
    some = [*events(3), Event(520, 8, 50, at_ns=30), *[replace(one, at_ns=40, number=7) for one in events(1)]]
    recording = with_flow(with_steps(recording_of(some, KEYS), 0), (12, 1), (45, 1))
    assert unseen_lives(follow_blocks(recording, WALK, 0)) == [(500, 60, 0, 3)]


def test_a_free_that_the_cpus_allocator_reports_is_of_an_earlier_cycle() -> None:
    recording = recording_of([*events(2), Event(500, -60, 2, key=1, at_ns=30)], KEYS)
    lifetimes = follow_blocks(recording, WALK, 0)
    assert not lifetimes.made_unseen.any()
    assert levels_of(lifetimes) == [101, 102, 42]
    assert lifetimes.allocator_bytes.tolist() == [101, 102, 42]


def test_what_is_looked_at_after_the_walk_was_there_too() -> None:
    """A batch that the model is called with before anything is allocated."""
    known = known_of((-5, 100, 40, Role.HELD, ""), (-2, 500, 60, Role.INPUT, "batch"))
    recording = recording_of(events(2), KEYS)
    assert DeviceRecording(recording, walked(known, -5), 0).observed_before == {100: 40, 500: 60}
    lifetimes = follow_blocks(recording, walked(known, -5), 0)
    assert levels_of(lifetimes) == [101, 102]


def release(known: KnownStorages, *ends: tuple[int, int]) -> KnownStorages:
    """Storages at these addresses were let go at these times."""
    ends_ns = START_NS + np.array([at for at, _ in ends], np.int64)
    address = np.array([place for _, place in ends], np.int64)
    return replace(known, ends_ns=ends_ns, ends_address=address, ends_device=np.zeros(len(ends), np.int64))


@pytest.mark.parametrize(
    ("at_ns", "levels"),
    [(-1, [1, 2, 3]), (12, [41, 42, 3]), (20, [41, 42, 3]), (99, [41, 42, 43]), (-9, [41, 42, 43])],
    ids=["before the first event", "before the third", "with the third", "after the last", "before the walk"],
)
def test_what_is_seen_to_be_let_go_is_gone(at_ns: int, levels: list[int]) -> None:
    """Of an earlier tenant of the address, from before the walk, it says nothing."""
    known = release(WALK, (at_ns, 100), (at_ns, 777))
    lifetimes = follow_blocks(recording_of(events(3), KEYS[:1]), known, 0)
    assert levels_of(lifetimes) == lifetimes.allocator_bytes.tolist() == levels
    assert lifetimes.died_unseen.tolist()[0] == (levels[-1] < 43)


def test_rows_go_by_the_reported_free_and_the_count_by_when_it_was_let_go() -> None:
    """A reference is called right before the memory is freed. What contradicts that is no longer explained."""
    recording = recording_of([*events(2), Event(100, -40, 1, key=0, at_ns=30), Event(9, 1, 70, at_ns=40)], KEYS[:1])
    right, wrong = (follow_blocks(recording, release(WALK, (at_ns, 100)), 0) for at_ns in (29, 5))
    assert levels_of(right) == right.allocator_bytes.tolist() == levels_of(wrong) == [41, 42, 2, 3]
    assert wrong.allocator_bytes.tolist() == [41, 2, 2, 3]


def test_a_free_of_an_earlier_size_that_spans_another_storage_counts_no_byte_twice() -> None:
    """The CPU's reporter says what lay there in an earlier recording: 60 bytes, of which 20 are key 0's now."""
    recording = recording_of([*events(2), Event(80, -60, 9, at_ns=30)], [Key(120, 20, 1)])
    lifetimes = follow_blocks(recording, None, 0)
    assert levels_of(lifetimes) == lifetimes.allocator_bytes.tolist() == [61, 62, 22]


def test_a_free_of_an_earlier_size_ends_where_it_is_reported_whatever_is_made_inside_of_it() -> None:
    recording = recording_of([*events(1), Event(120, 8, 50, at_ns=20), Event(80, -60, 9, at_ns=30)], [])
    lifetimes = follow_blocks(recording, None, 0)
    assert levels_of(lifetimes) == lifetimes.allocator_bytes.tolist() == [61, 69, 9]


@pytest.mark.parametrize("walks", [(-9, -5), (-5, 999)])
def test_the_last_walk_before_the_recording_counts(walks: tuple[int, ...]) -> None:
    known = walked(known_of((-9, 900, 7, Role.HELD, ""), (-5, 100, 40, Role.HELD, "")), *walks)
    recording = recording_of(events(2), [])
    assert DeviceRecording(recording, known, 0).observed_before == {100: 40}


def test_that_python_holds_it_says_not_what_it_is() -> None:
    known = walked(known_of((-5, 100, 40, Role.HELD, ""), (5, 100, 40, Role.BUFFER, "mean")), -5)
    lifetimes = follow_blocks(recording_of(events(2), KEYS[:1]), known, 0)
    assert lifetimes.observed_as.tolist() == [1, -1, -1]


def counter(*totals: int) -> Any:
    return recording_of([Event(0, 512, 1, total_bytes=totals[0])], [], devices=("cuda:0",))


@pytest.mark.parametrize(("total", "rest"), [(512, 0), (99_512, 99_000)])
def test_what_an_absolute_counter_had_at_the_beginning_is_a_block_of_its_own(total: int, rest: int) -> None:
    lifetimes = follow_blocks(counter(total), None, 0)
    before = lifetimes.size_bytes[lifetimes.made_at < 0]
    assert before.tolist() == ([rest] if rest else [])
    assert levels_of(lifetimes) == lifetimes.allocator_bytes.tolist() == [total]


@pytest.mark.parametrize(("rise_bytes", "unseen"), [(0, []), (59, []), (60, [1])])
def test_what_a_running_total_does_not_rise_with_was_there_before(rise_bytes: int, unseen: list[int]) -> None:
    """Key 1 has 60 bytes, and is out of Python's reach; between the two events the total rises by some."""
    some = [Event(10_000, 1, 100, total_bytes=1000), Event(10_001, 1, 101, total_bytes=1001 + rise_bytes)]
    recording = with_flow(recording_of(some, KEYS, devices=("cuda:0",)), (5, 1))
    known = walked(known_of((-5, 100, 40, Role.HELD, ""), device="cuda:0"), -5)
    assert unseen_keys(DeviceRecording(recording, known, 0)).tolist() == unseen
    assert unseen or levels_of(follow_blocks(recording, known, 0))[0] == 1000


@pytest.mark.parametrize(("device", "first", "levels"), [("cuda:0", 9216, [9728, 512]), ("cpu", 9216, [8704, 512])])
def test_a_free_says_how_large_a_caching_allocators_block_was(device: str, first: int, levels: list[int]) -> None:
    """A gradient of 8,192 bytes from before the recording, in a block of 9,216: the rest was too little to split off.

    The CPU's reporter says what lay there in an earlier recording; there the tensor is believed.
    """
    some = [Event(50_000, 512, 2), Event(4096, -9216, 1)]
    recording = recording_of(some, devices=(device,), first_total=first)
    known = walked(known_of((-5, 4096, 8192, Role.GRADIENT, "w"), device=device), -5)
    lifetimes = follow_blocks(recording, known, 0)
    assert lifetimes.size_bytes.tolist() == [levels[0] - 512, 512], "no second block for the rest"
    assert levels_of(lifetimes) == lifetimes.allocator_bytes.tolist() == levels


def by_hand(address: list[int], size_bytes: list[int]) -> list[int]:
    """Each byte belongs to the piece that begins last, or is the shorter one."""
    owner: dict[int, int] = {}
    for row in sorted(range(len(address)), key=lambda row: (address[row], -size_bytes[row])):
        owner |= dict.fromkeys(range(address[row], address[row] + size_bytes[row]), row)
    return [list(owner.values()).count(row) for row in range(len(address))]


@pytest.mark.parametrize("seed", range(20))
def test_each_byte_counts_once(seed: int) -> None:
    chance = np.random.default_rng(seed)
    for _ in range(50):
        address, size_bytes = chance.integers(0, 30, 7), chance.integers(0, 15, 7)
        own = own_bytes(address, size_bytes)
        assert own.tolist() == by_hand(address.tolist(), size_bytes.tolist())


# ---- The count that knows no blocks: by hand where torch's counter is silent or wrong; a block that is lost shows.
def check_counts(events: list[Event], counter: list[int], mapped: list[int], levels: list[int]) -> Any:
    lifetimes = follow_blocks(recording_of(events), None, 0)
    assert lifetimes.count.counter_bytes.tolist() == counter
    assert lifetimes.count.mapped_bytes.tolist() == mapped
    assert lifetimes.allocator_bytes.tolist() == levels_of(lifetimes) == levels
    return lifetimes.count.before_bytes.tolist()


def test_mapped_memory_reports_no_total_and_counts() -> None:
    """Two batches that workers of a loader left in shared memory: 100 bytes each, with a total of 0."""
    events = [
        Event(10, 50, 1, total_bytes=50),
        Event(1000, 100, 2, total_bytes=0),
        Event(20, 30, 3, total_bytes=80),
        Event(2000, 100, 4, total_bytes=0),
        Event(1000, -100, 2, total_bytes=0),
        Event(10, -50, 1, total_bytes=30),
        Event(20, -30, 3, total_bytes=0),  # the last of what the allocator has: this 0 is its own
        Event(2000, -100, 4, total_bytes=0),
    ]
    mapped = [0, 100, 100, 200, 100, 100, 100, 0]
    check_counts(events, [50, 50, 80, 80, 80, 30, 0, 0], mapped, [50, 150, 180, 280, 180, 130, 100, 0])


def test_memory_that_was_mapped_before_may_go_in_the_recording() -> None:
    events = [Event(10, 50, 1, total_bytes=50), Event(1000, -100, 9, total_bytes=0), Event(20, 5, 2, total_bytes=55)]
    assert check_counts(events, [50, 50, 55], [0, 0, 0], [150, 50, 55]) == [100, 0, 0]


@pytest.mark.parametrize("is_mapped", [True, False])
def test_a_free_of_as_many_bytes_as_the_counter_has_is_of_mapped_memory_if_the_counter_goes_on(is_mapped: bool) -> None:
    """A batch of a loader's worker, as large as the one output that is left: both report 0, and one is the counter's.

    Where it is the counter's, the counter goes on from 0.
    """
    events = [
        Event(10, 50, 1, total_bytes=50),
        Event(1000, -50, 9, total_bytes=0),
        Event(2000, 70, 3, total_bytes=0),
        Event(10, -50, 1, total_bytes=0 if is_mapped else -50),
        Event(20, 5, 4, total_bytes=5 if is_mapped else -45),
    ]
    levels = [100, 50, 120, 70, 75]
    assert check_counts(events, [50, 50, 50, 0, 5], [0, 0, 70, 70, 70], levels) == [50, 0, 0, 0, 0]


EVENTS = st.builds(
    # What is assumed is always a free: no allocation is made up.
    lambda address, size, total, assumed: Event(
        address, -abs(size) if assumed else size, 1, total_bytes=total, assumed=assumed
    ),
    st.integers(1, 3),
    st.sampled_from([-20, -10, 0, 10, 20]),
    st.sampled_from([0, 0, 10, 20]),
    st.sampled_from([False, False, False, True]),
)


@given(st.lists(EVENTS, max_size=25))
@example(  # what is ahead of the second event is not the allocator's any more behind the third, which is assumed
    [
        Event(1, 20, 1, total_bytes=20),
        Event(2, -20, 1, total_bytes=0),
        Event(1, -20, 1, assumed=True),
        Event(3, -20, 1, total_bytes=0),
        Event(1, -20, 1, total_bytes=0),
        Event(5, 10, 1, total_bytes=10),
    ]
)
@example(  # the third, which is assumed, was drawn as an allocation of 20 bytes: there the two differed
    [
        Event(1, -20, 1, total_bytes=20),
        Event(2, -20, 1, total_bytes=0),
        Event(1, -20, 1, total_bytes=10, assumed=True),
        Event(2, 0, 1, total_bytes=0),
        Event(1, -20, 1, total_bytes=0),
        Event(2, 20, 1, total_bytes=20),
    ]
)
def test_what_is_mapped_is_that_of_a_plain_loop(events: list[Event]) -> None:
    """One that looks through all that comes whenever a free may be either's."""
    recording = recording_of(events)
    found = match_counter_to_events(recording, np.arange(len(events)))
    assert [column.tolist() for column in found] == naively_matched(events)


def naively_matched(events: list[Event]) -> list[list[bool]]:
    mapped, foreign = [False] * len(events), [False] * len(events)
    there: dict[int, bool] = {}
    counted = 0
    for at, event in enumerate(events):
        total = -1 if event.assumed else event.total_bytes
        if event.size_bytes > 0:
            there[event.address] = mapped[at] = total == 0
        else:
            foreign[at] = event.address not in there
            may_be = total == 0 and (counted + event.size_bytes != 0 or before_next(events, at, there) == counted)
            mapped[at] = there.pop(event.address, may_be)
        if not mapped[at] and not event.assumed:
            counted = event.total_bytes or 0
    return [mapped, foreign]


def before_next(events: list[Event], at: int, there: dict[int, bool]) -> int | None:
    """The counter before the next event that is the allocator's."""
    is_mapped = dict(there)
    for event in events[at + 1 :]:
        is_own = event.size_bytes < 0 and is_mapped.get(event.address) is False
        if not event.assumed and (event.total_bytes != 0 or is_own):
            return (event.total_bytes or 0) - event.size_bytes
        if not event.assumed and event.size_bytes > 0:
            is_mapped[event.address] = True
    return None


def test_an_assumed_free_of_mapped_memory_is_counted_once() -> None:
    events = [
        Event(10, 50, 1, total_bytes=50),
        Event(1000, 100, 2, total_bytes=0),
        Event(1000, -100, 2, assumed=True),
        Event(1000, 80, 3, total_bytes=0),
    ]
    check_counts(events, [50, 50, 50, 50], [0, 100, 0, 80], [50, 150, 50, 130])


def test_a_free_with_a_stale_size_is_put_right() -> None:
    """The CPU's allocator reports the size that the address had in an earlier recording: 70, where 40 were there."""
    events = [Event(10, 50, 1, total_bytes=1050), Event(100, -70, 9, total_bytes=980), Event(20, 5, 2, total_bytes=985)]
    known = replace(
        known_of((-5, 100, 40, Role.HELD, "")), walks_ns=np.array([known_of((-5, 0, 0, Role.HELD, "")).time_ns[0]])
    )
    lifetimes = follow_blocks(recording_of(events), known, 0)
    assert lifetimes.allocator_bytes.tolist() == levels_of(lifetimes) == [90, 50, 55]
    assert lifetimes.count.counter_bytes.tolist() == [50, 50, 55], (
        "the counter fell by what is none of this recording's"
    )


def test_an_assumed_free_leaves_an_absolute_counter_as_it_was() -> None:
    events = [Event(0, 512, 1), Event(0, -512, 1, assumed=True), Event(0, 1024, 2, total_bytes=1024)]
    lifetimes = follow_blocks(recording_of(events, devices=("cuda:0",)), None, 0)
    assert lifetimes.allocator_bytes.tolist() == [512, 512, 1024]


@pytest.mark.parametrize("name", list(WORKLOADS)[:3])
@pytest.mark.parametrize("loses", ["before", "made"])
def test_a_lost_block_is_unexplained(
    name: str, loses: str, recorded: Callable[[str], Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law that rows sum to the count can fail: the two share no table of blocks."""
    recording = recorded(name).recordings[0]
    lost: list[int] = []

    def losing(*args: object) -> object:
        table = unrecorded_storages(*args)  # type: ignore[arg-type]
        lost.append(int(table.size_bytes[0]))
        return replace(table, size_bytes=np.append(0, table.size_bytes[1:]))

    if loses == "before":
        monkeypatch.setattr(storages_module, "unrecorded_storages", losing)
    lifetimes = follow_blocks(recording, None, 0)
    if loses == "made":
        alive = lifetimes.alive_at(int(np.argmax(lifetimes.allocator_bytes)))
        block = alive[lifetimes.allocation[alive] >= 0][0]
        lost.append(int(lifetimes.size_bytes[block]))
        lifetimes = replace(
            lifetimes, freed_at=np.where(np.arange(len(lifetimes.freed_at)) == block, -1, lifetimes.freed_at)
        )
    attribution = attribute(recording)
    parts = (recording, categorize(recording), attribution, lifetimes)
    peak = peak_of_cycle(Cycle(*parts, blocks_of_recording(*parts, time_ns=0)))
    assert peak.unexplained_bytes == lost[0] > 0
    assert peak.allocator_peak_bytes == peak.peak_bytes + lost[0]


def test_several_threads_are_merged_by_their_nanoseconds_and_ties_stay_as_they_came() -> None:
    # Rows 0 to 2 are one thread's, 3 to 5 another's; row 4 is another device's.
    times = [10, 20, 30, 5, 15, 20]
    events = [Event(row * 8, 8, row, at_ns=time_ns, device=int(row == 4)) for row, time_ns in enumerate(times)]
    recording = recording_of(events, devices=("cpu", "cuda:0"))
    assert DeviceRecording(recording, None, 0).events.tolist() == [3, 0, 1, 5, 2]
    assert DeviceRecording(recording, None, 1).events.tolist() == [4]


def test_within_a_nanosecond_the_order_is_that_of_the_tree() -> None:
    """Many, because a sort that is not stable keeps the order of few."""
    times = [row % 2 for row in range(200)]
    recording = recording_of([Event(row * 8, 8, row, at_ns=time_ns) for row, time_ns in enumerate(times)])
    assert DeviceRecording(recording, None, 0).events.tolist() == [*range(0, 200, 2), *range(1, 200, 2)]


DEVICES = ("cpu", "cuda:0", "cuda:1")


def recording(*totals: int) -> Recording:
    """One allocation on each device, after which its allocator has this much in use."""
    blocks = [(index, 5000, 100 * (index + 1)) for index in range(3)]
    made = Program([Storage(index, 8, device=index) for index in range(3)], [Node(blocks=blocks)], devices=DEVICES)
    found = made.recording()
    total = np.array(totals, np.int64)[found.allocations.device]
    return replace(found, allocations=replace(found.allocations, total_allocated_bytes=total))


def test_the_accelerator_that_held_most_in_any_cycle_is_meant() -> None:
    """Whatever moved: the CPU's counter begins with the recording and says nothing."""
    cycles = [recording(9000, 70, 40), recording(9000, 10, 80)]
    assert most_held_bytes(cycles) == {"cuda:1": 80, "cuda:0": 70}
    assert list(most_held_bytes(cycles)) == ["cuda:1", "cuda:0"]
    assert default_device(cycles) == "cuda:1"
    assert default_device(cycles[:1]) == "cuda:0"


def test_without_an_accelerator_it_is_the_cpu() -> None:
    assert default_device([]) == "cpu"
    assert default_device([replace(recording(1, 0, 0), devices=("cpu",) * 3)]) == "cpu"
