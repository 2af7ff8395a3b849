"""What was there before, and what was made where the profiler does not record, are told apart by a walk; by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.histories import START_NS, Event, Key, known_of, levels_of, recording_of
from tracer.analysis.profiles.block_lifetimes import BlockLifetimes, follow_blocks
from tracer.analysis.profiles.observed_storages import DeviceRecording
from tracer.analysis.profiles.unrecorded_storages import own_bytes, unseen_keys
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.recording import DataFlow, Recording, Spans
from tracer.capture.torch_names import STEP_PREFIX


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
    lifetimes = follow_blocks(recording, walked(let_go(known, (38, 500)), -5), 0)
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


def let_go(known: KnownStorages, *ends: tuple[int, int]) -> KnownStorages:
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
    known = let_go(WALK, (at_ns, 100), (at_ns, 777))
    lifetimes = follow_blocks(recording_of(events(3), KEYS[:1]), known, 0)
    assert levels_of(lifetimes) == lifetimes.allocator_bytes.tolist() == levels
    assert lifetimes.died_unseen.tolist()[0] == (levels[-1] < 43)


def test_rows_go_by_the_reported_free_and_the_count_by_when_it_was_let_go() -> None:
    """A reference is called right before the memory is freed. What contradicts that is no longer explained."""
    recording = recording_of([*events(2), Event(100, -40, 1, key=0, at_ns=30), Event(9, 1, 70, at_ns=40)], KEYS[:1])
    right, wrong = (follow_blocks(recording, let_go(WALK, (at_ns, 100)), 0) for at_ns in (29, 5))
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
