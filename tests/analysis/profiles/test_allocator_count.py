"""The count that knows no blocks: by hand where torch's counter is silent or wrong; a block that is lost shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.histories import Event, known_of, levels_of, recording_of
from tests.programs import Node, Program, Storage
from tests.training_steps import WORKLOADS, Recorded
from tracer.analysis.profiles import block_lifetimes as storages_module
from tracer.analysis.profiles.allocator_count import default_device, match_counter_to_events, most_held_bytes
from tracer.analysis.profiles.attribution import attribute
from tracer.analysis.profiles.block_lifetimes import follow_blocks
from tracer.analysis.profiles.classify_blocks import Cycle, classify_blocks
from tracer.analysis.profiles.observed_storages import DeviceRecording
from tracer.analysis.profiles.peak import peak_report
from tracer.analysis.profiles.torch_categories import categorize
from tracer.analysis.profiles.unrecorded_storages import unrecorded_storages
from tracer.capture.objects.known_storages import Role
from tracer.capture.recording import Recording


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
    peak = peak_report(Cycle(*parts, classify_blocks(*parts, time_ns=0)))
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
