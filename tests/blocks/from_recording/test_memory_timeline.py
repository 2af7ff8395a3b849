"""The timeline: an example by hand, one event at a time, what the allocator counted, and torch, number for number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.histories import START_NS, Event, Key, recording_of
from tests.programs import NODE_NS, Node, Program, Storage, programs
from tests.torch_rules import TorchRules
from tests.training_steps import Recorded, build_workload, each_small_workload, each_workload, record, torch_timeline
from tracer.answers.findings import CycleFindings
from tracer.answers.recording_findings import combine_cycles, find_in_cycle
from tracer.blocks.from_recording.memory_timeline import (
    TAGGED,
    Breakdown,
    CycleBreakdown,
    MemoryTimeline,
    memory_timeline,
    torch_microseconds,
)
from tracer.blocks.from_recording.torch_categories import Category, categorize
from tracer.capture.recording import Recording
from tracer.errors import RecordingError

UNTAGGED = int(Category.UNTAGGED)


def timeline_of(recording: Recording, device: str | None = None) -> MemoryTimeline:
    return memory_timeline(recording, categorize(recording), device=device)


def assert_equals_torch(results: Any, device: str = "cpu", *, theirs: Any = None) -> None:
    """Both ways to state the contract: our own merging, and the last row of each microsecond of `times_ns`."""
    times, sizes = (theirs or torch_timeline(results))._coalesce_timeline(device)
    ours = MemoryTimeline.from_profiler(results, device)
    our_times, our_sizes = ours.coalesce()
    assert our_times.tolist() == times
    assert our_sizes.tolist() == sizes
    last_of_ours = dict(zip((_whole_us(t) for t in ours.times_ns.tolist()), ours.sizes_bytes.tolist(), strict=True))
    assert last_of_ours == {time: row[1:] for time, row in zip(times, sizes, strict=True)}


def _whole_us(time_ns: int) -> int:
    return int(time_ns / 1000)


def last_total_at(timeline: MemoryTimeline, times_ns: Any) -> Any:
    """Bytes of all categories after the last event at or before each time."""
    totals = timeline.sizes_bytes.sum(axis=1)
    return totals[np.searchsorted(timeline.times_ns, times_ns, side="right") - 1]


def held_before(timeline: MemoryTimeline) -> int:
    """Bytes that were there before the recording, as far as it shows them."""
    return int(timeline.sizes_bytes.sum(axis=1)[timeline.num_preexisting - 1]) if timeline.num_preexisting else 0


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_a_training_step_worked_by_hand() -> None:
    x, weight, y, gradient, scratch = range(5)
    program = Program(
        [Storage(0, 10), Storage(1, 200), Storage(2, 3000), Storage(3, 40000), Storage(4, 500000)],
        [
            Node(reads={x, weight}, allocates={y, scratch}, frees={scratch}),
            Node(reads={y}, allocates={gradient}, frees={y}, backward=True),
            Node(reads={gradient}, writes={weight}, frees={gradient}, blocks=[(0, 7, 6000000), (0, 7, -6000000)]),
        ],
        gradients={gradient},
        parameters={weight},
    )
    timeline = timeline_of(program.recording())
    # What is there before comes in the order of the storages and with the time of the first event.
    # A node's events follow its start by 25 ns each: what it makes, then what it frees, then blocks without a tensor.
    first, second, third = (program.node_time_ns(i) for i in range(3))
    wanted = [
        (first + 25, "INPUT", 10),  # x was there before
        (first + 25, "PARAMETER", 200),  # and so was the weight
        (first + 25, "ACTIVATION", 3000),  # y
        (first + 50, "TEMPORARY", 500000),  # scratch is made
        (first + 75, "TEMPORARY", -500000),  # and freed
        (second + 25, "GRADIENT", 40000),
        (second + 50, "ACTIVATION", -3000),  # y is freed
        (third, "PARAMETER", 0),  # a new version of the weight, of the same category
        (third + 25, "GRADIENT", -40000),
        (third + 50, "UNTAGGED", 6000000),
        (third + 75, "UNTAGGED", -6000000),
    ]
    assert timeline.times_ns.tolist() == [time_ns for time_ns, _, _ in wanted]
    assert timeline.num_preexisting == 2
    steps = np.diff(timeline.sizes_bytes, axis=0, prepend=0)
    for step, (_, category, delta) in zip(steps, wanted, strict=True):
        assert step[Category[category]] == delta
        assert step.sum() == delta
    assert timeline.sizes_bytes.sum(axis=1).tolist() == np.cumsum([delta for _, _, delta in wanted]).tolist()
    assert timeline.sizes_bytes.sum(axis=1).max() == 10 + 200 + 6_000_000


def test_a_device_without_events_has_an_empty_timeline() -> None:
    timeline = timeline_of(Program([Storage(0)], [Node(allocates={0})]).recording(), "cuda:7")
    assert timeline.device == "cuda:7"
    assert timeline.sizes_bytes.shape == (0, 8)
    times, sizes = timeline.coalesce()
    assert times.shape == (0,)
    assert sizes.shape == (0, 9)


def test_lengths_are_checked() -> None:
    with pytest.raises(ValueError, match="2 times"):
        MemoryTimeline("cpu", np.zeros(2, np.int64), np.zeros((3, 8), np.int64), 0)


# ---- one event at a time ---------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(programs())
def test_counted_one_event_at_a_time(program: Program) -> None:
    recording, rules = program.recording(), TorchRules(program)
    for index, device in enumerate(program.devices):
        times, rows = rules.timeline(index)
        ours = timeline_of(recording, device)
        assert ours.times_ns.tolist() == times
        assert ours.sizes_bytes.tolist() == rows
        last_of_microsecond = {_whole_us(time_ns): row for time_ns, row in zip(times, rows, strict=True)}
        microseconds, sizes = ours.coalesce()
        merged = dict(zip(microseconds.tolist(), sizes[:, 1:].tolist(), strict=True))
        assert merged == last_of_microsecond
        assert not sizes[:, 0].any()


@settings(max_examples=100)
@given(programs(blocks=False))
def test_what_is_held_is_conserved(program: Program) -> None:
    """The curve follows the allocator from what was there before, and no category is ever below zero."""
    recording = program.recording()
    for index, device in enumerate(program.devices):
        timeline = timeline_of(recording, device)
        assert (timeline.sizes_bytes >= 0).all()
        here = recording.allocations.device == index
        if here.any():
            allocator = recording.allocations.total_allocated_bytes[here]
            rest = last_total_at(timeline, recording.allocations.time_ns[here]) - allocator
            assert set(rest.tolist()) == {held_before(timeline)}


# ---- microseconds ----------------------------------------------------------------------------------------------------


@given(st.integers(1_577_836_800_000_000_000, 2_208_988_800_000_000_000))
def test_torchs_microseconds_from_2020_to_2039(time_ns: int) -> None:
    """Torch divides in floating point, and 875 ns and more round up."""
    assert torch_microseconds(np.array([time_ns])).tolist() == [int(time_ns / 1000)]


def test_rows_of_one_microsecond_keep_their_own_peak() -> None:
    """Torch's merging loses what is made and freed within a microsecond; the rows by event do not."""
    program = Program([Storage(0, 100), Storage(1, 50)], [Node(allocates={0}, frees={0}), Node(allocates={1})])
    assert NODE_NS + 25 < 875
    timeline = timeline_of(program.recording())
    assert timeline.sizes_bytes.sum(axis=1).max() == 100
    assert timeline.coalesce()[1].sum(axis=1).max() == 50


# ---- torch -----------------------------------------------------------------------------------------------------------


@each_small_workload
def test_equals_torch(name: str, recorded: Callable[[str], Recorded]) -> None:
    """The second of two cycles of one profiler, read after it is gone."""
    run = recorded(name)
    assert len(run.results) == 2
    assert_equals_torch(run.results[1], theirs=run.oracle)


@pytest.mark.parametrize("name", ["sgd_momentum", "growing_list"])
def test_the_first_of_two_cycles_equals_torch(name: str, recorded: Callable[[str], Recorded]) -> None:
    assert_equals_torch(recorded(name).results[0])


@each_small_workload
def test_every_row_of_torchs_timeline(name: str, recorded: Callable[[str], Recorded]) -> None:
    """Before torch merges them: rows of one nanosecond may swap, all else is equal."""
    run = recorded(name)
    times, totals, total = [], [], 0
    for time_ns, action, _, size in run.oracle.timeline:
        total += {"PREEXISTING": size, "CREATE": size, "INCREMENT_VERSION": 0, "DESTROY": -size}[action.name]
        times.append(time_ns)
        totals.append(total)
    ours = timeline_of(run.recordings[-1])
    assert ours.num_preexisting == times.count(-1)
    assert ours.times_ns[ours.num_preexisting :].tolist() == times[ours.num_preexisting :]
    assert dict(zip(ours.times_ns.tolist(), ours.sizes_bytes.sum(axis=1).tolist(), strict=True)) == dict(
        zip([ours.times_ns[0] if t < 0 else t for t in times], totals, strict=True)
    )


@pytest.mark.parametrize("options", [{"record_shapes": False}, {"with_stack": False}, {"with_modules": True}])
def test_equals_torch_with_less_recorded(options: dict[str, Any]) -> None:
    """Torch's `_memory_profile()` refuses these, its `MemoryProfile` does not."""
    for name in ("convnet", "sgd_momentum"):
        workload = build_workload(name)
        (results,) = record(workload.step, **options)
        assert_equals_torch(results)


def test_equals_torch_where_nothing_is_allocated() -> None:
    """Only what was there before: torch has no time for it."""
    x = torch.zeros(10)
    (results,) = record(lambda: x.view(2, 5))
    assert_equals_torch(results)
    timeline = MemoryTimeline.from_profiler(results)
    assert timeline.sizes_bytes.sum(axis=1).tolist() == [40]


def test_equals_torch_where_nothing_happens() -> None:
    (results,) = record(lambda: None)
    times, sizes = torch_timeline(results)._coalesce_timeline("cpu")
    ours = MemoryTimeline.from_profiler(results)
    assert times == ours.times_ns.tolist() == []
    assert sizes == ours.sizes_bytes.tolist() == []
    assert ours.sizes_bytes.shape == (0, 8)


def test_a_tensor_freed_inside_that_was_made_before() -> None:
    """The CPU allocator does not report such a free: the tensor stays to the end, in torch's timeline and in ours."""
    kept = [torch.zeros(2**20)]  # mapped on its own: its address is not handed out again at once

    def step() -> None:
        if kept:
            kept[0].add_(1.0)
            if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
                kept.clear()
        torch.zeros(10).add_(1.0)

    (results,) = record(step, n_active=2)
    assert not kept
    assert_equals_torch(results)


def test_the_profiler_itself_may_be_given() -> None:
    found = []
    x = torch.zeros(10)

    def ready(prof: Any) -> None:
        found.append(MemoryTimeline.from_profiler(prof).sizes_bytes)
        found.append(MemoryTimeline.from_profiler(prof.profiler.kineto_results).sizes_bytes)

    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True, on_trace_ready=ready) as prof:
        x.add(1.0)
    found.append(MemoryTimeline.from_profiler(prof).sizes_bytes)
    assert len(found) == 3
    assert all((sizes == found[0]).all() for sizes in found)


def test_a_profiler_without_a_recording_is_a_clear_error() -> None:
    with pytest.raises(RecordingError, match="no finished recording"):
        MemoryTimeline.from_profiler(torch.profiler.profile(profile_memory=True))


# ---- the allocator ---------------------------------------------------------------------------------------------------


@each_workload
def test_the_total_is_the_allocators(name: str, recorded: Callable[[str], Recorded]) -> None:
    """Law 2: at every event, the allocator's own counter less what it held at the start."""
    for recording in recorded(name).recordings:
        allocations = recording.allocations
        totals = allocations.total_allocated_bytes
        # Every event changes the counter by its size, so the first one tells what it was before.
        assert (np.diff(totals) == allocations.size_bytes[1:]).all()
        before_recording = totals[0] - allocations.size_bytes[0]
        timeline = timeline_of(recording, "cpu")
        rise = last_total_at(timeline, allocations.time_ns) - held_before(timeline)
        assert (rise == totals - before_recording).all()


# ---- CUDA ------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_equals_torch_on_cuda() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)).cuda()
    model(torch.randn(2, 3, 16, 16, device="cuda"))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(2, 3, 16, 16).cuda()).square().sum().backward()
        optimizer.step()

    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    (results,) = record(step, n_active=2, activities=activities)
    assert_equals_torch(results, "cuda:0")
    assert_equals_torch(results, "cpu")
    assert MemoryTimeline.from_profiler(results).device == "cuda:0"


def timeline_of_breakdown(found: CycleFindings) -> MemoryTimeline:
    return memory_timeline(found.source.recording, found.source.categories, device=found.peak.device)


def cycle(true_peak_bytes: int, *at_tagged_peak: int) -> CycleBreakdown:
    rows = (*at_tagged_peak, *(0,) * (len(TAGGED) - len(at_tagged_peak)))
    return CycleBreakdown(true_peak_bytes, rows, 0)


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_intermediate_is_true_peak_less_tagged_peak() -> None:
    # The tagged peak holds 60 + 30 bytes; the true one, at another instant, 100.
    one = cycle(100, 60, 30)
    assert one.tagged_peak_bytes == 90
    rows = Breakdown("cpu", (one,)).rows_bytes
    assert list(rows) == [*(category.name for category in TAGGED), "INTERMEDIATE"]
    assert (rows["PARAMETER"], rows["OPTIMIZER_STATE"], rows["INTERMEDIATE"]) == (60, 30, 10)


def test_rows_are_means_and_so_is_the_peak() -> None:
    """The guide's file had the last cycle's peak beside the means of the rows, which do not sum to it."""
    both = Breakdown(
        "cpu",
        (
            cycle(100, 60, 30),
            cycle(300, 80, 50),
        ),
    )
    assert both.peak_bytes == 200
    assert both.rows_bytes["PARAMETER"] == 70
    assert both.rows_bytes["OPTIMIZER_STATE"] == 40
    assert both.rows_bytes["INTERMEDIATE"] == (10 + 170) // 2


def test_fractions_of_a_byte_go_to_intermediate() -> None:
    # Means 1.5 and 2.5 of a peak of 5 are 1 and 2, and 2 remain, of which 1 is fractions.
    both = Breakdown(
        "cpu",
        (
            cycle(5, 1, 2),
            cycle(5, 2, 3),
        ),
    )
    assert both.rows_bytes["INTERMEDIATE"] == 2
    assert sum(both.rows_bytes.values()) == both.peak_bytes == 5


def test_memory_whose_address_was_handed_out_again_is_not_counted_twice() -> None:
    # 100 bytes from before lie at 10; event 0 gets 100 bytes there: 100 are in use, where torch's timeline has 200.
    found = find_in_cycle(recording_of([Event(10, 100, 2), Event(500, 1, 3)], [Key(10, 100, 1)]))
    assert timeline_of_breakdown(found).sizes_bytes.sum(axis=1).max() == 201
    assert found.source.breakdown.true_peak_bytes == 101
    assert found.peak.time_ns == START_NS + 1


# ---- the law ---------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 10**12), min_size=7, max_size=7), st.integers(0, 10**12)), min_size=1)
)
def test_rows_sum_to_the_peak_in_whole_bytes(cycles: list[tuple[list[int], int]]) -> None:
    drawn = Breakdown("cpu", tuple(cycle(sum(rows) + more, *rows) for rows, more in cycles))
    rows = drawn.rows_bytes
    assert sum(rows.values()) == drawn.peak_bytes
    assert all(isinstance(size, int) and size >= 0 for size in rows.values())
    exact = sum(sum(rows) + more for rows, more in cycles) / len(cycles)
    assert drawn.peak_bytes == pytest.approx(exact, abs=1)


@each_workload
def test_on_every_workload_rows_sum_to_the_peak(name: str, recorded: Callable[[str], Recorded]) -> None:
    findings = combine_cycles(recorded(name).cycles)
    drawn = findings.breakdown
    assert sum(drawn.rows_bytes.values()) == drawn.peak_bytes > 0
    assert drawn.peak_bytes == sum(peak.peak_bytes for peak in findings.peaks) // len(findings.peaks)
    assert min(drawn.rows_bytes.values()) >= 0
    for one in drawn.cycles:
        assert one.tagged_peak_bytes <= one.true_peak_bytes


@each_workload
def test_on_every_workload_a_plain_loop_agrees(name: str, recorded: Callable[[str], Recorded]) -> None:
    """The tagged peak: the first row in which the seven categories hold most, less what is known to be dead."""
    for found in recorded(name).cycles:
        if found.source.lifetimes.died_unseen.any():
            continue
        best: list[int] = [0] * len(TAGGED)
        timeline = timeline_of_breakdown(found)
        best_ns = int(timeline.times_ns[0])
        for time_ns, row in zip(timeline.times_ns.tolist(), timeline.sizes_bytes.tolist(), strict=True):
            if sum(row[: len(TAGGED)]) > sum(best):
                best, best_ns = row[: len(TAGGED)], time_ns
        assert list(found.source.breakdown.at_tagged_peak_bytes) == best
        assert found.source.breakdown.tagged_peak_ns == best_ns
        assert np.max(timeline.sizes_bytes.sum(axis=1)) == found.source.breakdown.true_peak_bytes


def test_some_workload_has_cycles_of_different_peaks(recorded: Callable[[str], Recorded]) -> None:
    """Else the means over cycles above were of equal numbers."""
    findings = combine_cycles(recorded("lbfgs").cycles)
    assert len({cycle.true_peak_bytes for cycle in findings.breakdown.cycles}) == 2
    assert findings.worst.peak.peak_bytes == max(peak.peak_bytes for peak in findings.peaks)
