"""The allocator's history joined with the recording, and the labels that it gets."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.answer_screens import peak_screen
from tests.blocks.from_recording.test_block_lifetimes import KEYS, WALK, events, with_flow, with_steps
from tests.histories import Event, Key, known_of, levels_of, recording_of
from tests.snapshot.allocator_model import SEGMENT_BYTES, AllocatorModel, rounded
from tests.snapshot.explained import explain_snapshot
from tests.training_steps import Recorded, build_workload, each_small_workload
from tracer.answers.failed_allocation import failed_allocation
from tracer.answers.findings import CycleFindings, RunFindings
from tracer.answers.labels import Labels, label_snapshot, labels_of
from tracer.answers.recording_findings import combine_cycles, counted_blocks, find_in_cycle, with_allocator_history
from tracer.arrays import Int, PerBlock
from tracer.blocks.from_recording.allocator_join import join_entries, join_history, reserved_ranges
from tracer.blocks.from_recording.block_lifetimes import follow_blocks
from tracer.blocks.kinds import Kind
from tracer.capture.objects.known_storages import Role
from tracer.errors import SnapshotError
from tracer.exporters.memory_snapshot import snapshot_of_recording, write_memory_snapshot
from tracer.exporters.page.timeline_page import timeline_page
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.snapshot.load import load_snapshot, snapshot_in_memory


# ---- The allocator's history beside the recording: a model of the allocator is watched by both, and knows the truth.
@dataclass
class Truth:
    """The allocator's own books at one moment."""

    allocated: int
    requested: int
    pending: int
    reserved: int


class WatchedAllocator(AllocatorModel):
    """The model with a profiler beside it, which reports rounded sizes and the running total as torch's does."""

    def __init__(self) -> None:
        super().__init__()
        self.profiling = False
        self.events: list[Event] = []
        self.truths: list[Truth] = []
        self._number = 0
        self._numbers: dict[int, int] = {}

    def truth(self) -> Truth:
        live = self.live()
        return Truth(
            allocated=sum(size for size, _, pending in live if not pending),
            requested=sum(requested for _, requested, pending in live if not pending),
            pending=sum(size for size, _, pending in live if pending),
            reserved=sum(segment.size for segment in self.segments),
        )

    def alloc(self, size: int, *, tick: int = 0) -> int:
        address = super().alloc(size, tick=tick)
        self._number += 1
        self._numbers[address] = self._number
        self._report(address, rounded(size))
        return address

    def request_free(self, address: int, *, tick: int = 0) -> None:
        size = self._segment_of(address).blocks[address][0]
        super().request_free(address, tick=tick)
        self._report(address, -size)

    def free(self, address: int) -> None:
        self.request_free(address)
        self.complete_free(address)

    def _report(self, address: int, size: int) -> None:
        if self.profiling:
            truth = self.truth()
            self.events.append(Event(address, size, self._numbers[address], total_bytes=truth.allocated))
            self.truths.append(truth)

    def findings(self, keys: Iterable[Key] = (), **given: Any) -> RunFindings:
        """The recording's alone."""
        recording = recording_of(self.events, tuple(keys), devices=("cuda:0",))
        return combine_cycles([find_in_cycle(recording, **given)])


def joined(allocator: WatchedAllocator, *, keep: int | None = None, **given: Any) -> RunFindings:
    findings = allocator.findings(**given)
    known = given.get("known")
    return with_allocator_history(findings, snapshot_in_memory(allocator.dump(keep=keep)), known=known)


def recording_allocator() -> WatchedAllocator:
    """One whose history and profiler are on from its beginning."""
    allocator = WatchedAllocator()
    allocator.start_recording()
    allocator.profiling = True
    return allocator


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_a_peak_worked_by_hand() -> None:
    """Before: 1000 bytes nobody recorded, 700 in the history. Recorded: 3000, 100 (freed), 5000."""
    allocator = WatchedAllocator()
    allocator.alloc(1000)
    allocator.start_recording()
    allocator.alloc(700)
    allocator.profiling = True
    allocator.alloc(3000)
    gone = allocator.alloc(100)
    allocator.free(gone)
    allocator.alloc(5000)
    peak = joined(allocator).worst.peak
    assert peak.peak_bytes == peak.allocator_peak_bytes == 1024 + 1024 + 3072 + 5120
    assert peak.allocator is not None
    assert peak.allocator.requested_bytes == 1000 + 700 + 3000 + 5000
    assert (peak.allocator.reserved_bytes, peak.allocator.pending_bytes) == (65536, 0)
    assert peak.allocator.free_bytes == peak.allocator.largest_free_bytes == 65536 - 10240
    assert (peak.allocator.num_joined, peak.allocator.num_blocks) == (3, 3)
    assert sorted((row.bytes, row.requested_bytes, row.phase) for row in peak.rows) == [
        (1024, 700, "before recording"),
        (1024, 1000, "before recording"),
        (8192, 8000, "other"),
    ]
    assert [row.evidence for row in peak.rows[1:]] == ["allocated before the recording, in the allocator's history"] * 2


def test_where_memory_ran_out_behind_the_peak_the_count_is_of_that_moment() -> None:
    """700 bytes are in use where it ran out, and 5000 more were at the peak."""
    allocator = recording_allocator()
    allocator.alloc(700)
    allocator.free(allocator.alloc(5000))
    snapshot: Any = allocator.dump()
    failed = {"action": "oom", "size": 1 << 40, "device_free": 5, "stream": 0, "frames": [], "time_us": 1}
    snapshot["device_traces"][0].append(failed)
    cycle = with_allocator_history(allocator.findings(), snapshot_in_memory(snapshot)).parts[-1]
    assert cycle.at_failure is not None
    assert cycle.at_failure.allocator_peak_bytes == cycle.at_failure.counted.counter_bytes == 1024
    assert cycle.peak.allocator_peak_bytes == cycle.peak.counted.counter_bytes == 1024 + 5120


def test_the_page_shows_the_cycle_in_which_memory_ran_out() -> None:
    """An earlier cycle had 9728 bytes at its peak; this one failed with 1024."""
    earlier = recording_allocator()
    earlier.alloc(9700)
    failing = recording_allocator()
    failing.alloc(700)
    snapshot: Any = failing.dump()
    failed = {"action": "oom", "size": 1 << 40, "device_free": 5, "stream": 0, "frames": [], "time_us": 1}
    snapshot["device_traces"][0].append(failed)
    columns = snapshot_in_memory(snapshot)
    parts = (*earlier.findings().parts, *with_allocator_history(failing.findings(), columns).parts)
    findings = combine_cycles(tuple(replace(part, failures=()) for part in parts))
    assert findings.worst.peak.peak_bytes == 9728
    found = failed_allocation(columns, findings, known_of(), device_type="cuda")
    page = timeline_page(findings, run={}, failed=found)
    marks = {mark.kind: mark.bytes for mark in page.marks}
    assert marks["peak"] == marks["oom"] == 1024


def test_what_was_made_before_the_recording_has_its_line() -> None:
    allocator = WatchedAllocator()
    allocator.start_recording()
    allocator.alloc(700)  # the model's stack is `step`, line 700 % 7 + 1
    allocator.alloc(703)
    allocator.profiling = True
    allocator.alloc(512)
    rows = [row for row in joined(allocator).worst.peak.rows if row.phase == "before recording"]
    assert sorted((row.line, row.requested_bytes) for row in rows) == [(1, 700), (4, 703)]
    assert all(row.file for row in rows)


def test_without_history_it_stays_one_row_and_says_nothing_of_requests() -> None:
    allocator = WatchedAllocator()
    allocator.alloc(1000)
    allocator.alloc(700)
    allocator.profiling = True
    allocator.alloc(3000)
    peak = allocator.findings().worst.peak
    assert [(row.bytes, row.count, row.requested_bytes) for row in peak.rows] == [(3072, 1, None), (2048, 1, None)]
    assert peak.allocator is None


def test_a_tensor_from_before_takes_the_size_of_its_block() -> None:
    """A parameter that spans 900 of the 2000 bytes asked for: its block is the allocator's 2048."""
    allocator = WatchedAllocator()
    weight = allocator.alloc(2000)
    allocator.start_recording()
    allocator.profiling = True
    allocator.alloc(512)
    known = known_of((-1, weight, 900, Role.PARAMETER, "fc.weight"), device="cuda:0")
    row = next(row for row in joined(allocator, known=known).worst.peak.rows if row.category == "PARAMETER")
    assert (row.bytes, row.requested_bytes, row.name, row.count) == (2048, 2000, "fc.weight", 1)


def test_memory_of_somebody_elses_allocator_is_not_counted() -> None:
    allocator = recording_allocator()
    allocator.alloc(512)
    known = known_of((-1, 7, 4096, Role.BUFFER, "mapped"), device="cuda:0")
    peak = joined(allocator, known=known).worst.peak
    assert peak.peak_bytes == peak.allocator_peak_bytes == 512


def test_a_block_that_waits_for_another_stream_is_neither_allocated_nor_free() -> None:
    allocator = recording_allocator()
    waiting = allocator.alloc(1024)
    allocator.request_free(waiting)
    allocator.alloc(2048)
    allocator.complete_free(waiting)
    peak = joined(allocator).worst.peak
    assert peak.peak_bytes == peak.allocator_peak_bytes == 2048
    assert peak.allocator is not None
    assert (peak.allocator.pending_bytes, peak.allocator.free_bytes) == (1024, 65536 - 3072)


def test_a_history_that_lost_the_peak_leaves_the_findings_as_they_are() -> None:
    allocator = recording_allocator()
    first = allocator.alloc(4096)
    allocator.free(first)
    allocator.alloc(512)
    peak = joined(allocator, keep=1).worst.peak
    assert peak.peak_bytes == 4096
    assert peak.allocator is None


def test_a_snapshot_of_another_device_leaves_them_as_they_are() -> None:
    allocator = WatchedAllocator()
    allocator.profiling = True
    allocator.alloc(512)
    findings = allocator.findings()
    assert with_allocator_history(findings, snapshot_in_memory({"segments": [], "device_traces": []})) is findings


def test_a_pair_in_which_more_was_asked_for_than_the_block_holds_is_none() -> None:
    lifetimes = follow_blocks(recording_of([Event(4096, 512, 1), Event(8192, 512, 2)], devices=("cuda:0",)), None, 0)
    entry = join_entries(np.array([3, 7]), np.array([4096, 8192]), np.array([513, 512]), lifetimes)
    assert entry.tolist() == [-1, 7]


def test_memory_that_no_block_shows_is_in_the_timeline() -> None:
    """1024 bytes that nobody saw, and 512 that are freed while the profiler looks on."""
    allocator = WatchedAllocator()
    allocator.alloc(1000)
    gone = allocator.alloc(512)
    allocator.profiling = True
    allocator.alloc(2048)
    allocator.free(gone)
    cycle = allocator.findings().worst
    levels = counted_blocks(cycle).levels(len(cycle.source.lifetimes.events))
    assert levels[Kind.BEFORE_RECORDING].tolist() == [1536, 1536, 1024]
    total = np.sum([level[1:] for level in levels.values()], axis=0)
    assert total.tolist() == cycle.source.lifetimes.allocator_bytes.tolist()


def test_the_page_and_the_screen_have_the_three_sizes() -> None:
    allocator = recording_allocator()
    allocator.alloc(1000)
    findings = joined(allocator)
    (section,) = (section for section in timeline_page(findings, run={}).answer.sections if not section.is_drawn)
    assert section.sentences == (
        "Requested: 1000 B. Allocated, after rounding up each block: 1.00 KiB.",
        "Reserved from the driver: 64.00 KiB, of which 63.00 KiB free, in blocks of at most 63.00 KiB.",
    )
    assert all(sentence in peak_screen(findings) for sentence in section.sentences)


# ---- drawn -----------------------------------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["alloc", "alloc", "free", "request", "complete", "empty"]), st.integers(1, 40_000)),
    max_size=40,
)


def run(allocator: WatchedAllocator, actions: Iterable[tuple[str, int]]) -> None:
    for action, number in actions:
        used = [a for s in allocator.segments for a, (_, _, pending) in s.blocks.items() if not pending]
        waiting = [a for s in allocator.segments for a, (_, _, pending) in s.blocks.items() if pending]
        if action == "alloc":
            allocator.alloc(number)
        elif action == "empty":
            allocator.empty_cache()
        elif action == "complete" and waiting:
            allocator.complete_free(waiting[number % len(waiting)])
        elif action == "free" and used:
            allocator.free(used[number % len(used)])
        elif action == "request" and used:
            allocator.request_free(used[number % len(used)])


@given(ACTIONS, ACTIONS, ACTIONS, st.integers(1, 60))
def test_the_allocators_books_come_out_whatever_happens(
    before: list[tuple[str, int]], unprofiled: list[tuple[str, int]], profiled: list[tuple[str, int]], keep: int
) -> None:
    allocator = WatchedAllocator()
    run(allocator, before)
    allocator.start_recording()
    run(allocator, unprofiled)
    allocator.profiling = True
    run(allocator, profiled)
    if not any(event.size_bytes > 0 for event in allocator.events):
        return
    position = max(range(len(allocator.truths)), key=lambda at: allocator.truths[at].allocated)
    if allocator.events[position].size_bytes < 0:
        return  # the most was in use before the first event, which a recording calls its peak only from there on
    truth = allocator.truths[position]
    for kept in (None, keep):
        peak = joined(allocator, keep=kept).worst.peak
        assert peak.peak_bytes == peak.allocator_peak_bytes == truth.allocated
        assert sum(row.bytes for row in peak.rows) == truth.allocated
        if peak.allocator is None:
            assert kept is not None
            continue
        assert peak.allocator.requested_bytes == truth.requested == sum(row.requested_bytes or 0 for row in peak.rows)
        assert peak.allocator.pending_bytes == truth.pending
        assert peak.allocator.reserved_bytes == truth.reserved
        assert peak.allocator.free_bytes == truth.reserved - truth.allocated - truth.pending
        if kept is None:
            assert peak.allocator.num_joined == peak.allocator.num_blocks


@pytest.mark.parametrize("num_surplus", [0, 1, 5])
def test_the_historys_surplus_is_at_its_head(num_surplus: int) -> None:
    """One address, used again and again: each block is the one with as many after it."""
    events = [event for number in range(1, 4) for event in (Event(4096, 512, number), Event(4096, -512, number))]
    lifetimes = follow_blocks(recording_of(events, devices=("cuda:0",)), None, 0)
    entries = np.arange(num_surplus + 3) * 10
    same = np.full(len(entries), 4096)
    entry = join_entries(entries, same, np.full(len(entries), 300), lifetimes)
    assert entry.tolist() == entries[-3:].tolist()


def reserved_at(cycle: CycleFindings) -> tuple[list[int], int]:
    """Bytes reserved at each event, and the first event of which that is known."""
    history = cycle.source.history
    found = reserved_ranges(history, cycle.source.lifetimes) if history is not None else None
    num_events = len(cycle.source.lifetimes.events)
    if found is None:
        return [0] * num_events, num_events
    at = np.arange(num_events)[:, None]
    there = (found.begin <= at) & (found.end > at)
    return (there * found.size_bytes).sum(axis=1).tolist(), found.known_from


def test_worked_by_hand() -> None:
    """One segment from before; a second one from the third event on; the first one goes before the fifth."""
    allocator = WatchedAllocator()
    first = allocator.alloc(SEGMENT_BYTES // 2)
    allocator.start_recording()
    allocator.profiling = True
    second = allocator.alloc(SEGMENT_BYTES // 4)
    allocator.free(second)
    allocator.alloc(SEGMENT_BYTES)
    allocator.free(first)
    allocator.empty_cache()
    allocator.alloc(SEGMENT_BYTES)
    level, known_from = reserved_at(joined(allocator).worst)
    assert level == [SEGMENT_BYTES, SEGMENT_BYTES, 2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES]
    assert level == [truth.reserved for truth in allocator.truths]
    assert known_from == 0


def test_what_the_history_has_lost_is_not_known() -> None:
    allocator = WatchedAllocator()
    allocator.start_recording()
    allocator.profiling = True
    for _ in range(3):
        allocator.free(allocator.alloc(1024))
    allocator.alloc(2048)
    # The last entries: completed, alloc, requested, completed, alloc. The fifth event is the first that both have.
    cycle = joined(allocator, keep=5).worst
    assert reserved_at(cycle) == ([SEGMENT_BYTES] * 7, 4)
    space = timeline_page(joined(allocator, keep=5), run={}).space
    assert space is not None and space.ranges.known_from == 4
    assert space.homes == ("stream 0",)


def test_a_page_without_a_history_has_no_segments() -> None:
    allocator = WatchedAllocator()
    allocator.profiling = True
    allocator.alloc(512)
    page = timeline_page(allocator.findings(), run={})
    assert page.space is None
    assert page.blocks is not None and not page.has_addresses


def drawn(random: Random) -> list[tuple[str, int]]:
    """Actions in which segments come and go: a request that fills one, and an emptied cache, are not rare."""
    names = ["alloc", "alloc", "free", "free", "request", "complete", "empty", "empty"]
    sizes = [random.randrange(1, 40_000) if random.random() < 0.6 else SEGMENT_BYTES for _ in range(40)]
    return [(random.choice(names), size) for size in sizes[: random.randrange(40)]]


@pytest.mark.parametrize("seed", range(25))
def test_it_is_what_the_allocator_had_reserved_whatever_happens(seed: int) -> None:
    random = Random(seed)
    allocator = WatchedAllocator()
    run(allocator, drawn(random))
    allocator.start_recording()
    run(allocator, drawn(random))
    allocator.profiling = True
    allocator.alloc(512)
    run(allocator, drawn(random))
    truth = [one.reserved for one in allocator.truths]
    for kept in (None, random.randrange(1, 60)):
        level, known_from = reserved_at(joined(allocator, keep=kept).worst)
        assert level[known_from:] == truth[known_from:]
        assert kept is not None or known_from == 0


def profiled(name: str, schedule: Schedule) -> ProfileSession:
    workload = build_workload(name)
    assert workload.model is not None
    with ProfileSession(workload.model, workload.optimizer, schedule=schedule) as session:
        for _ in range(schedule.num_steps):
            workload.step()
            session.step()
    return session


@pytest.fixture(scope="module")
def cycle() -> CycleFindings:
    return profiled("fno_2d_torch_zeros", Schedule(0, 1, 2, 1)).findings.worst


@pytest.fixture(scope="module")
def labels(cycle: CycleFindings) -> Labels:
    return labels_of(cycle.source.recording, cycle.blocks)


def entries(snapshot: dict[str, Any], action: str) -> list[dict[str, Any]]:
    return [entry for entry in snapshot["device_traces"][0] if entry["action"] == action]


def unmade(cycle: CycleFindings) -> PerBlock[Int]:
    """[B] for a history that has made none of the blocks."""
    return np.full(len(cycle.source.lifetimes.address), -1)


def test_every_allocation_of_ours_has_a_category_and_a_line_of_text(cycle: CycleFindings, labels: Labels) -> None:
    snapshot = snapshot_of_recording(cycle.source.recording, cycle.source.lifetimes, labels=labels)
    allocations = entries(snapshot, "alloc")
    assert len(allocations) == (cycle.source.lifetimes.allocation >= 0).sum()
    assert {entry["category"] for entry in allocations} >= {"activation", "workspace", "gradient"}
    assert all(entry["frames"][0]["filename"].startswith("<explained as ") for entry in allocations)
    assert any("activation in forward, " in entry["frames"][0]["name"] for entry in allocations)
    # Without this word on some entry the viewer throws.
    assert "unknown" in {entry["category"] for entry in snapshot["device_traces"][0]}


def test_blocks_that_live_on_have_a_line_of_text_too(cycle: CycleFindings, labels: Labels) -> None:
    """It is all that the viewer has to show of a parameter, which no entry allocates."""
    snapshot = snapshot_of_recording(cycle.source.recording, cycle.source.lifetimes, labels=labels)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    living = [block for block in blocks if block["state"] == "active_allocated"]
    address = {
        int(cycle.source.lifetimes.address[row]): row
        for row in cycle.source.lifetimes.alive_at(len(cycle.source.lifetimes.events) - 1)
    }
    assert len(living) > 10
    for block in living:
        assert block["frames"][0]["filename"].startswith("<explained as ")
        assert block["frames"][0]["name"] == labels.frame[address[block["address"]]]["name"]
    names = {block["frames"][0]["name"] for block in living}
    assert any(name.startswith("parameter ") and name.endswith(", made before recording") for name in names)
    assert all(block["frames"] == [] for block in blocks if block["state"] != "active_allocated")


def joined_with(snapshot: dict[str, Any], cycle: CycleFindings) -> PerBlock[Int]:
    """Entry of device 1 of the history that made each block."""
    history = join_history(snapshot_in_memory(snapshot), "cuda:1", cycle.source.lifetimes)
    assert history is not None
    return history.entry


def test_labels_reach_the_allocators_own_entries_by_address_and_order(cycle: CycleFindings, labels: Labels) -> None:
    """The allocator's history as CUDA would write it: it began earlier, at addresses that are used again later.

    All entries share one microsecond, so a join by time could not tell them apart.
    """
    theirs = snapshot_of_recording(cycle.source.recording, cycle.source.lifetimes)
    earlier = [
        {"action": action, "addr": entry["addr"], "size": 512, "stream": 0, "time_us": 1, "frames": []}
        for entry in entries(theirs, "alloc")[:50]
        for action in ("alloc", "free_requested", "free_completed")
    ]
    trace = [*earlier, *({**entry, "time_us": 1} for entry in theirs["device_traces"][0])]
    theirs["device_traces"] = [[], trace]
    before = copy.deepcopy(theirs)
    entry_of = joined_with(theirs, cycle)
    labelled = label_snapshot(theirs, cycle.source.lifetimes, labels, entry_of, device_index=1)
    assert theirs == before, "the allocator's own snapshot is left as it is"
    assert (entry_of >= 0).sum() == (cycle.source.lifetimes.allocation >= 0).sum()
    with pytest.raises(SnapshotError, match="joined with another history"):
        label_snapshot(
            theirs, cycle.source.lifetimes, labels, np.where(entry_of >= 0, entry_of - 1, -1), device_index=1
        )
    named = [entry for entry in labelled["device_traces"][1] if entry["frames"][:1] and "category" in entry]
    expected = snapshot_of_recording(cycle.source.recording, cycle.source.lifetimes, labels=labels)
    assert Counter(entry["category"] for entry in named if entry["action"] == "alloc") == Counter(
        entry["category"] for entry in entries(expected, "alloc")
    )
    assert all(entry["category"] == "unknown" for entry in labelled["device_traces"][1][: len(earlier)])
    assert labelled["segments"] == theirs["segments"], "they are of device 0"
    assert [entry["addr"] for entry in labelled["device_traces"][1]] == [entry["addr"] for entry in trace]


def test_a_snapshot_of_other_devices_stays_as_it_is(cycle: CycleFindings, labels: Labels) -> None:
    other: dict[str, Any] = {"segments": [], "device_traces": [[]]}
    assert label_snapshot(other, cycle.source.lifetimes, labels, unmade(cycle), device_index=3) == other


def test_blocks_that_live_on_are_labelled_in_their_segments(cycle: CycleFindings, labels: Labels) -> None:
    theirs = snapshot_of_recording(cycle.source.recording, cycle.source.lifetimes)
    damaged = {**theirs, "segments": [*theirs["segments"], {"address": 0}]}  # By a segment without blocks
    labelled = label_snapshot(damaged, cycle.source.lifetimes, labels, unmade(cycle), device_index=0)
    expected = snapshot_of_recording(cycle.source.recording, cycle.source.lifetimes, labels=labels)
    assert labelled["segments"][:-1] == expected["segments"] != theirs["segments"]


def test_a_parameter_is_labelled_with_its_name() -> None:
    session = profiled("convnet", Schedule(0, 1, 1, 1))
    cycle = session.findings.worst
    blocks = cycle.blocks
    texts = [frame["name"] for frame in labels_of(cycle.source.recording, blocks).frame]
    names = [name for name, _ in build_workload("convnet").model.named_parameters()]
    assert names
    for name in names:
        assert f"parameter {name}, made before recording" in texts


def test_our_own_snapshot_is_read_back_with_what_it_says(tmp_path: Path) -> None:
    """What was there before the recording has no entry and no stack: its kind is in the label alone."""
    session = profiled("convnet", Schedule(0, 1, 1, 1))
    cycle = session.findings.worst
    blocks = cycle.blocks
    labels = labels_of(cycle.source.recording, blocks)
    path = tmp_path / "memory_snapshot.pkl"
    write_memory_snapshot(snapshot_of_recording(cycle.source.recording, cycle.source.lifetimes, labels=labels), path)
    (device,) = explain_snapshot(load_snapshot(path)).parts
    by_kind = {share.name: share.bytes for share in device.peak.by_kind}
    by_category = cycle.peak.by_category()
    for kind, category in (("parameter", "PARAMETER"), ("buffer", "BUFFER"), ("activation", "ACTIVATION")):
        assert by_kind[kind] == by_category[category] > 0
    before = [group for group in device.peak.rows if group.is_before_recording]
    assert {group.site.frame for group in before} == {"before recording"}
    # Tensors of other tests may be there, too, such as optimizers' states of more than one kind of program.
    own = [group.kind.words for group in before if group.kind in (Kind.PARAMETER, Kind.BUFFER)]
    assert len(own) == len(set(own)) == 2


@each_small_workload
def test_a_snapshot_of_ours_gives_the_same_bytes_by_kind(
    name: str, recorded: Callable[[str], Recorded], tmp_path: Path
) -> None:
    """Whoever reads it back is told what peak.json says, of every workload, to the byte."""
    cycle = recorded(name).cycles[0]
    labels = labels_of(cycle.source.recording, cycle.blocks)
    path = tmp_path / "memory_snapshot.pkl"
    write_memory_snapshot(snapshot_of_recording(cycle.source.recording, cycle.source.lifetimes, labels=labels), path)
    (device,) = explain_snapshot(load_snapshot(path)).parts
    assert dict(device.peak.by_category()) == cycle.peak.by_category()


def test_no_rule_of_the_reader_goes_against_a_label_that_says_only_since_when(
    recorded: Callable[[str], Recorded], tmp_path: Path
) -> None:
    """What the profiler found nothing out about has the sizes of parameters here, and is not taken for one."""
    cycle = recorded("lbfgs").cycles[0]
    labels = labels_of(cycle.source.recording, cycle.blocks)
    is_parameter = cycle.blocks.kind == Kind.PARAMETER
    unknown = [
        {**frame, "filename": f"<explained as {Kind.BEFORE_RECORDING.name.lower()}>"} if taken else frame
        for frame, taken in zip(labels.frame, is_parameter.tolist(), strict=True)
    ]
    category = [
        "unknown" if taken else word for word, taken in zip(labels.category, is_parameter.tolist(), strict=True)
    ]
    path = tmp_path / "memory_snapshot.pkl"
    snapshot = snapshot_of_recording(
        cycle.source.recording, cycle.source.lifetimes, labels=Labels(category, unknown, labels.line)
    )
    write_memory_snapshot(snapshot, path)
    (device,) = explain_snapshot(load_snapshot(path)).parts
    expected = cycle.peak.by_category()
    parameters_bytes = expected.pop("PARAMETER")
    expected["BEFORE_RECORDING"] = expected.get("BEFORE_RECORDING", 0) + parameters_bytes
    assert dict(device.peak.by_category()) == expected


def test_what_was_made_unseen_is_in_the_snapshot_from_where_it_counts(tmp_path: Path) -> None:
    recording = with_flow(with_steps(recording_of(events(8), KEYS), 0, 35), (12, 1), (22, 1), (28, 0), (52, 1), (62, 0))
    lifetimes = follow_blocks(recording, WALK, 0)
    path = tmp_path / "memory_snapshot.pkl"
    write_memory_snapshot(snapshot_of_recording(recording, lifetimes), path)
    (device,) = explain_snapshot(load_snapshot(path)).parts
    assert device.peak.peak_bytes == max(levels_of(lifetimes))
