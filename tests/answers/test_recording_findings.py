"""Findings of a cycle and of a run: curves by kind, phases, lines, graphs, failures, and the sentences on them."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from tests.allocator.recorded import MIB
from tests.blocks.from_recording.test_allocator_join import WatchedAllocator, joined
from tests.blocks.from_recording.test_attribution import profiled, recorded
from tests.blocks.from_snapshot.recorded_program import fragmented
from tests.exporters.recording_file.samples import on_cpu, on_cuda
from tests.histories import START_NS, Event, Key, known_of, levels_of, recording_of
from tests.training_steps import Recorded, build_workload, each_workload, record
from tracer.answers.caveats import (
    compiled_sentences,
    counted,
    graph_sentences,
    left_out,
    not_recorded,
    share_sentence,
    unseen,
)
from tracer.answers.failed_allocation import failed_allocation, held_at_failure, held_now
from tracer.answers.findings import CycleFindings, GraphPool, RunFindings
from tracer.answers.graph_pools import graph_pools
from tracer.answers.line_memory import line_memory
from tracer.answers.out_of_memory import OutOfMemory
from tracer.answers.peak import Peak
from tracer.answers.recording_findings import combine_cycles, counted_blocks, find_in_cycle
from tracer.answers.rows import Row, group_rows
from tracer.answers.run_history import RunHistory
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.answers.why.first_changes import first_changes
from tracer.blocks.from_recording.origins import CompiledOrigins, Origin
from tracer.blocks.from_recording.source_lines import line_of_frame
from tracer.blocks.from_snapshot.kind_finder import NOTHING_HELD
from tracer.blocks.kinds import Evidence, Kind
from tracer.blocks.table import Phase
from tracer.capture.device.device_blocks import PoolBytes
from tracer.capture.graph_captures import Capture, LivePool
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import Recording
from tracer.capture.sources.compiled_code import (
    CompiledCode,
    CompiledGraph,
    CompiledNode,
)
from tracer.capture.sources.source_line import SourceLine
from tracer.errors import RecordingError
from tracer.snapshot.load import snapshot_in_memory


# ---- Which device a cycle is about, which cycles are averaged, and which is the worst.
def test_a_device_without_allocations_is_an_error() -> None:
    for device in ("cuda:0", "cuda:7"):
        recording = recording_of([Event(500, 7, 2)], devices=("cpu", "cuda:0"))
        with pytest.raises(RecordingError, match=f"Nothing was allocated on {device}") as caught:
            find_in_cycle(recording, device=device)
        assert "profile_memory=True" in caught.value.hint


def test_only_the_first_and_the_last_of_several_devices_count_apart() -> None:
    events = [Event(0, 100, 1), Event(0, 4096, 2, device=1), Event(0, -100, 1)]
    recording = recording_of(events, devices=("cpu", "cuda:0"))
    assert find_in_cycle(recording).peak.device == "cuda:0"
    assert find_in_cycle(recording, device="cpu").peak.peak_bytes == 100


def cycle(peak_bytes: int, *, is_whole: bool = True) -> CycleFindings:
    return find_in_cycle(recording_of([Event(0, peak_bytes, 1)]), is_whole=is_whole)


def test_without_a_history_no_entry_is_joined() -> None:
    assert cycle(100).source.history is None


def test_means_are_of_whole_cycles_and_the_worst_is_any() -> None:
    cycles = [cycle(100), cycle(300), cycle(900, is_whole=False)]
    found = combine_cycles(cycles)
    assert found.averaged == tuple(cycles[:2])
    assert (found.breakdown.peak_bytes, found.breakdown.num_left_out) == (200, 1)
    assert found.worst is cycles[2]
    assert [peak.peak_bytes for peak in found.peaks] == [100, 300, 900]


def test_where_no_cycle_is_whole_all_are_averaged() -> None:
    found = combine_cycles([cycle(100, is_whole=False), cycle(300, is_whole=False)])
    assert (found.breakdown.peak_bytes, found.breakdown.num_left_out) == (200, 0)


def test_of_equal_peaks_the_first_cycle_is_the_worst() -> None:
    cycles = [cycle(100), cycle(300), cycle(300)]
    assert combine_cycles(cycles).worst is cycles[1]


def test_no_cycle_is_an_error() -> None:
    with pytest.raises(RecordingError, match="before a single step was profiled"):
        combine_cycles([])


# ---- Memory of each kind over time has the sizes that the rows of the peak have, and sums to the allocator's count.
def test_a_parameter_from_before_has_the_allocators_size() -> None:
    """It spans 900 bytes of a block of 2,048: all of these are the parameter's, at the peak and in the curve."""
    allocator = WatchedAllocator()
    allocator.start_recording()
    weight = allocator.alloc(2000)
    allocator.profiling = True
    allocator.free(allocator.alloc(512))
    known = known_of((-5, weight, 900, Role.PARAMETER, "w"), device="cuda:0")
    cycle = joined(allocator, known=known).worst
    levels = counted_blocks(cycle).levels(len(cycle.source.lifetimes.events))
    assert levels[Kind.PARAMETER].tolist() == [2048, 2048, 2048]
    assert {
        kind.name: int(level[cycle.peak.position + 1]) for kind, level in levels.items()
    } == cycle.peak.by_category()
    total = np.sum([level[1:] for level in levels.values()], axis=0)
    assert total.tolist() == cycle.source.lifetimes.allocator_bytes.tolist()


def test_an_example_by_hand() -> None:
    # A parameter of 100 from before, a block of 7 that is made, then freed; a batch of 5 beside it.
    events = [Event(500, 7, 2), Event(600, 5, 3), Event(500, -7, 2)]
    known = known_of((-5, 10, 100, Role.PARAMETER, "w"), (1, 600, 5, Role.INPUT, "batch"))
    found = find_in_cycle(recording_of(events, [Key(10, 100, 1)]), known=known)
    levels = counted_blocks(found).levels(len(found.source.lifetimes.events))
    assert [(kind, level.tolist()) for kind, level in levels.items()] == [
        (Kind.PARAMETER, [100, 100, 100, 100]),
        (Kind.INPUT, [0, 0, 5, 5]),
        (Kind.TEMPORARY, [0, 7, 7, 0]),
    ]


@each_workload
def test_a_plain_loop_agrees_and_kinds_add_up(name: str, recorded: Callable[[str], Recorded]) -> None:
    for found in recorded(name).cycles:
        lifetimes, kinds = found.source.lifetimes, found.blocks.kind.tolist()
        levels = counted_blocks(found).levels(len(found.source.lifetimes.events))
        assert set(levels) == set(kinds)
        total = [sum(values) for values in zip(*(level[1:].tolist() for level in levels.values()), strict=True)]
        assert total == levels_of(lifetimes) == lifetimes.allocator_bytes.tolist()
        last = len(lifetimes.events) - 1
        for position in (-1, 0, last // 2, last):
            alive = lifetimes.alive_at(position).tolist()
            for kind, level in levels.items():
                assert level[position + 1] == sum(int(lifetimes.size_bytes[row]) for row in alive if kinds[row] == kind)


# ---- Phases of steps: in order, without overlap, micro-batches as stretches of one phase, the peak in its own.
def stretches(findings: CycleFindings) -> list[tuple[int, int, str]]:
    return sorted((start, end, one.phase) for one in findings.source.step_phases for start, end in one.stretches_ns)


@pytest.mark.parametrize("name", ["lbfgs", "gradient_accumulation", "zero_grad_at_start", "convnet"])
def test_stretches_do_not_overlap_and_times_sum_to_no_more_than_the_step(name: str) -> None:
    findings = find_in_cycle(recorded(build_workload(name).step), device="cpu")
    laid_out = stretches(findings)
    for (_, end, _), (start, _, _) in pairwise(laid_out):
        assert end <= start
    spans = findings.source.recording.spans
    for step in findings.source.attribution.step_names:
        row = [findings.source.recording.strings[name] for name in spans.name.tolist()].index(step)
        total = sum(one.duration_ns for one in findings.source.step_phases if one.step == step)
        assert 0 < total <= spans.end_ns[row] - spans.start_ns[row]


def test_micro_batches_are_stretches_of_one_phase() -> None:
    findings = find_in_cycle(recorded(build_workload("gradient_accumulation").step), device="cpu")
    counts = {(one.step, one.phase): len(one.stretches_ns) for one in findings.source.step_phases}
    for step in findings.source.attribution.step_names:
        assert [counts[step, phase] for phase in ("forward", "backward", "optimizer")] == [3, 3, 1]
    order = [one.phase for one in findings.source.step_phases]
    assert order == ["forward", "backward", "optimizer"] * 2


def test_phases_of_a_step_come_in_order_and_the_peak_is_in_its_own() -> None:
    workload = build_workload("fno_2d_new_zeros")
    assert workload.model is not None
    findings = profiled(workload.model, workload.step, workload.optimizer)
    names = [phase.phase for phase in findings.source.step_phases]
    assert names == ["forward", "backward", "optimizer"] * 3
    for before, after in zip(findings.source.step_phases, findings.source.step_phases[1:], strict=False):
        assert before.end_ns <= after.start_ns
    peaks = {(phase.step, phase.phase): phase.peak_bytes for phase in findings.source.step_phases}
    assert peaks[findings.peak.step, findings.peak.phase] == findings.peak.peak_bytes  # type: ignore[index]


def test_a_phase_that_only_frees_has_what_is_in_use_when_it_begins() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)

    def step() -> None:
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    findings = profiled(model, step, optimizer)
    peaks = {(phase.step, phase.phase): phase.peak_bytes for phase in findings.source.step_phases}
    more = {peaks[step, "optimizer"] - peaks[step, "forward"] for step in findings.source.attribution.step_names}
    # Gradients, where forward has input, output and their sum.
    assert more == {(64 * 64 + 64) * 4 - (8 * 64 + 8 * 64 + 1) * 4}


# ---- Memory by line: at the peak what its rows say, and a slow count agrees on the most that a line ever had.
def test_lines_have_the_bytes_of_the_peaks_rows_and_backward_those_of_its_forward(
    recorded: Callable[[str], Recorded],
) -> None:
    cycle = recorded("transformer").cycles[-1]
    found = {one.at: one for one in line_memory(cycle)}
    expected, of_backward = Counter[SourceLine](), Counter[SourceLine]()
    for row in cycle.peak.rows:
        places = {(row.file, row.line), *([(row.caller_file, row.caller_line)] if row.caller_file != row.file else [])}
        for file, line in places:
            if file is not None and line is not None:
                expected[SourceLine(file, line)] += row.bytes
                of_backward[SourceLine(file, line)] += row.bytes if row.phase == "backward" else 0
    assert {at: one.peak_bytes for at, one in found.items() if one.peak_bytes} == {
        k: v for k, v in expected.items() if v
    }
    assert all(one.backward_bytes == of_backward[at] for at, one in found.items())
    assert any(of_backward.values())
    sizes = [one.peak_bytes for one in found.values()]
    assert sizes == sorted(sizes, reverse=True)


def test_a_slow_count_agrees_on_a_lines_own_peak_and_on_where_it_was_freed(
    recorded: Callable[[str], Recorded],
) -> None:
    """Block by block and event by event, for the largest lines."""
    cycle = recorded("transformer").cycles[-1]
    rows, group = group_rows(cycle.blocks, merged=("step",))
    lifetimes, sizes = cycle.source.lifetimes, cycle.blocks.size_bytes.tolist()
    made, freed, end = lifetimes.made_at.tolist(), lifetimes.freed_at.tolist(), len(lifetimes.events)

    def place(block: int) -> tuple[str | None, SourceLine | None]:
        if freed[block] == end:
            return None, None
        event = lifetimes.events[freed[block]]
        phase = Phase(int(cycle.source.attribution.allocation_phase[event])).name.lower()
        return phase, line_of_frame(cycle.source.recording, int(cycle.source.attribution.allocation_frame[event]))

    for one in line_memory(cycle)[:8]:
        mine = [at for at, number in enumerate(group.tolist()) if one.at in _lines(rows[number])]
        assert one.own_peak_bytes == max(
            sum(sizes[at] for at in mine if made[at] <= now < freed[at]) for now in range(-1, end)
        )
        at_peak = [at for at in mine if made[at] <= cycle.peak.position < freed[at]]
        of_places = Counter[tuple[str | None, SourceLine | None]]()
        for at in at_peak or mine:
            of_places[place(at)] += sizes[at]
        assert of_places[one.freed_in, one.freed_at] == max(of_places.values())


def _lines(row: Row) -> set[SourceLine]:
    places = ((row.file, row.line), (row.caller_file, row.caller_line))
    return {SourceLine(file, line) for file, line in places if file is not None and line is not None}


# ---- Memory of CUDA graphs, worked out by hand on other memory; captures are in tests/on_null_gpu/test_graphs.py.
KIB = 1 << 10
POOL = GraphPool(1, 4 * MIB, MIB, 0, True, 3 * MIB, ())


def made(size_kib: int) -> torch.Tensor:
    return torch.empty(size_kib * KIB, dtype=torch.uint8)


def captured() -> tuple[RunFindings, list[Capture]]:
    """Two captures in one recording: 100 and 200 KiB at once, of which 100 stay; then 400, freed before 250."""
    marks: list[int] = []
    kept: list[torch.Tensor] = []

    def work() -> None:  # which is called more than once
        marks.clear()
        kept.clear()
        before = made(1000)
        marks.append(time.time_ns())
        kept.append(made(100))
        freed = made(200)
        del freed
        marks.append(time.time_ns())
        kept.append(made(50))
        marks.append(time.time_ns())
        freed = made(400)
        del freed
        kept.append(made(250))
        marks.append(time.time_ns())
        del before

    (results,) = record(work)
    begins = [Capture(0, marks[0], marks[1], ((1, 0),)), Capture(0, marks[2], marks[3], ((1, 0),))]
    begins[1].in_use = frozenset({kept[0].data_ptr()})
    return combine_cycles([find_in_cycle(read_recording(results))]), begins


def explained(findings: RunFindings, *captures: Capture) -> GraphPool:
    pools = [LivePool(captures, PoolBytes(900 * KIB, 350 * KIB))]
    (pool,) = graph_pools(pools, findings, known=None, module_names={})
    assert pool.peak_bytes == sum(row.bytes for row in pool.rows)
    return pool


def test_a_capture_is_what_it_allocated_at_its_own_peak() -> None:
    findings, (first, second) = captured()
    assert explained(findings, first).peak_bytes == 300 * KIB
    assert explained(findings, second).peak_bytes == 400 * KIB
    assert explained(findings, first).uncounted_bytes == 550 * KIB


def test_of_a_shared_pool_counts_what_an_earlier_capture_had_left() -> None:
    findings, captures = captured()
    pool = explained(findings, *captures)
    assert (pool.num_graphs, pool.peak_bytes) == (2, 500 * KIB)


def test_a_capture_that_nobody_recorded_may_have_a_backward() -> None:
    findings, (first, _) = captured()
    assert not explained(findings, first).has_backward
    elsewhere = Capture(0, 1, 2, ((1, 0),))
    unknown = explained(findings, elsewhere)
    assert unknown.has_backward and unknown.rows == ()


def test_memory_that_was_there_at_the_peak_is_beside_it() -> None:
    findings, (first, second) = captured()
    peak_ns = findings.worst.peak.time_ns
    assert second.began_ns <= peak_ns <= second.ended_ns
    assert explained(findings, first).first_cycle == 0
    assert explained(findings, second).first_cycle == 1
    beside = replace(findings, graph_pools=(POOL,))
    assert beside.graph_bytes == 3 * MIB
    assert replace(findings, graph_pools=(replace(POOL, first_cycle=1),)).graph_bytes == 0


@pytest.mark.parametrize(
    ("first_cycle", "words"), [(0, "With it the step takes"), (1, "The recorded steps' peaks came before that.")]
)
def test_a_sentence_says_how_much_and_whether_the_peak_is_without_it(first_cycle: int, words: str) -> None:
    findings, _ = captured()
    assert graph_sentences(findings) == ()
    (sentence,) = graph_sentences(replace(findings, graph_pools=(replace(POOL, first_cycle=first_cycle),)))
    assert sentence.startswith("1 CUDA graph works in 3.00 MiB of private pools: ") and words in sentence


# ---- Out of memory with the kinds that the recording of the failing step knows, beside what the history knows alone.
def bytes_by_kind(found: OutOfMemory) -> dict[str, int]:
    sums: dict[str, int] = {}
    for group in found.groups:
        sums[group.kind.words] = sums.get(group.kind.words, 0) + group.bytes
    return sums


def test_the_recording_says_what_the_history_does_not_know() -> None:
    """Memory runs out where most is in use: the history has addresses, and in these lines of torch no stack of ours."""
    results = on_cuda()
    assert results.snapshot is not None
    trace = results.snapshot["device_traces"][0]
    change = {"alloc": 1, "free_completed": -1}
    in_use = np.cumsum([change.get(entry["action"], 0) * entry["size"] for entry in trace])
    peak = int(np.argmax(in_use))
    failed = {"action": "oom", "size": 1 << 40, "device_free": 5, "stream": 0, "frames": [], "time_us": 1}
    trace.insert(peak + 1, failed)
    history = RunHistory(results.snapshot)
    assert results.findings is not None and history.columns is not None
    findings = history.joined(results.findings, results.known)
    with_recording = history.failed_allocation(findings, results.known, "cuda:0")
    alone = failed_allocation(history.columns, None, results.known, device_type="cuda")
    assert with_recording is not None and alone is not None
    known, before = bytes_by_kind(with_recording.event), bytes_by_kind(alone.event)
    assert sum(known.values()) == sum(before.values()) == with_recording.event.requested_bytes
    assert before["not known"] > 0
    assert "not known" not in known
    assert with_recording.event.asked_bytes == alone.event.asked_bytes == 1 << 40
    found = with_recording.in_use
    assert found is not None and alone.in_use is None
    assert sum(row.bytes for row in found.rows) == with_recording.event.requested_bytes == found.allocator_peak_bytes
    assert found.rows == findings.worst.peak.rows, "memory ran out at the peak"
    rows_by_kind: dict[str, int] = {}
    for row in found.rows:
        words = Kind[row.category].words
        rows_by_kind[words] = rows_by_kind.get(words, 0) + (row.requested_bytes or 0)
    assert rows_by_kind == known


def test_without_a_failure_there_is_nothing_to_explain() -> None:
    results = on_cuda()
    assert results.snapshot is not None
    columns = snapshot_in_memory(results.snapshot)
    assert failed_allocation(columns, results.findings, results.known, device_type="cuda") is None


@pytest.mark.parametrize("role", Role)
def test_each_role_that_was_observed_is_told(role: Role) -> None:
    """What a walk finds is named by its role, or is at least known to be held; idle memory is neither."""
    now = held_now(known_of((0, 64, 8, role, "x")), "cpu")
    assert (64 in now.named or 64 in now.kept_by_graphs or 64 in now.reached) == (role != Role.IDLE)


def test_another_device_holds_nothing_of_it() -> None:
    assert held_now(known_of((0, 64, 8, Role.PARAMETER, "x"), device="cuda:1"), "cuda:0") == NOTHING_HELD


def with_walks(*times: int) -> KnownStorages:
    """A parameter at 64 that is seen at 0 and at 9, and what lies at 128: saved at 0, an optimizer's state at 9."""
    known = known_of(
        (0, 64, 8, Role.PARAMETER, "weight"),
        (0, 128, 8, Role.SAVED, ""),
        (9, 64, 8, Role.PARAMETER, "weight"),
        (9, 128, 8, Role.OPTIMIZER_STATE, "weight.exp_avg"),
    )
    return replace(known, walks_ns=np.array(times, np.int64) + START_NS)


def test_a_failure_is_told_by_the_last_walk_alone() -> None:
    now = held_at_failure(with_walks(0, 9), "cpu", None)
    assert now.named == {64: Kind.PARAMETER, 128: Kind.OPTIMIZER_STATE}
    assert not now.kept_by_graphs


def test_without_a_walk_nothing_is_told() -> None:
    assert held_at_failure(with_walks(), "cpu", None) == NOTHING_HELD


def test_a_walk_from_before_a_recorded_event_tells_nothing_of_the_failure() -> None:
    """An event at 5: the walk at 0 was before that cycle, and what lies at its addresses may be something else."""
    recording = recording_of([Event(0, 100, 1, at_ns=5)])
    findings = combine_cycles([find_in_cycle(recording)])
    assert held_at_failure(with_walks(0), "cpu", findings) == NOTHING_HELD
    assert held_at_failure(with_walks(0, 9), "cpu", findings).named


# ---- Sentences on what a recording does not show: each by hand, and none where there is nothing to say.
def findings_of(recording: Recording) -> CycleFindings:
    return find_in_cycle(recording)


def test_a_recording_that_shows_everything_needs_no_sentence() -> None:
    recording = recording_of([Event(0, 100, 1)])
    found = findings_of(recording)
    assert unseen(recording, found.source.lifetimes) == ()
    assert not_recorded(found.peak) is None
    assert left_out(combine_cycles([found])) == ()


def test_assumed_frees_and_reused_addresses_are_said_with_their_number() -> None:
    # 100 bytes from before lie where event 0 gets memory; event 1 is a free that was put in.
    recording = recording_of([Event(10, 100, 2), Event(10, -100, 2, assumed=True)], [Key(10, 100, 1)])
    lifetimes = findings_of(recording).source.lifetimes
    freed, before = unseen(recording, lifetimes)
    assert freed.startswith("1 block was freed by a thread that the profiler does not record")
    assert before.startswith("1 block from before the recording, freed without a record: each counts until its address")
    # Behind a walk it is known when each of them went: there is nothing to say, and nothing that anybody could do.
    walked = replace(lifetimes, count=replace(lifetimes.count, is_walked=True))
    assert unseen(recording, walked) == (freed,)


def test_what_was_counted_sums_to_the_count() -> None:
    known = known_of((-5, 10, 30, Role.PARAMETER, "w"))
    peak = find_in_cycle(recording_of([Event(500, 70, 1)], [Key(10, 30, 9)]), known=known).peak
    assert counted(peak) == (
        "The rows below sum to 100 bytes. An independent count gives the same: 70 by torch's CPU allocator since the "
        "recording began, 30 in tensors from before it that were used."
    )
    parts = replace(peak.counted, mapped_bytes=4, unseen_bytes=2, is_walked=True)
    assert counted(replace(peak, counted=parts, allocator_peak_bytes=106)) == (
        "The rows below sum to 100 bytes. An independent count gives 106: 70 by torch's CPU allocator since the "
        "recording began, 30 in tensors that were there before it, 4 in mapped files and shared memory, 2 made where "
        "the profiler does not record. Unexplained: 6 bytes, which no row shows."
    )
    fewer = counted(replace(peak, allocator_peak_bytes=94))
    assert fewer.endswith("Unexplained: 6 bytes, which rows show and the count has not.")


def test_on_a_gpu_the_allocator_counts() -> None:
    peak = find_in_cycle(recording_of([Event(0, 512, 1, total_bytes=10_000)], devices=("cuda:0",))).peak
    assert counted(peak) == "The rows below sum to 10,000 bytes. The allocator's own count is the same."


def test_other_threads_are_named_with_what_is_seen_of_theirs() -> None:
    peak = findings_of(recording_of([Event(0, 2048, 1)])).peak
    blocks = replace(peak.blocks, evidence=np.array([Evidence.UNSEEN]))
    alone = not_recorded(replace(peak, blocks=blocks))
    assert alone is not None
    assert alone.startswith("2.00 KiB of the peak were made where the profiler does not record")
    named = not_recorded(replace(peak, blocks=blocks, threads=("Thread-1", "Thread-2")))
    assert named is not None
    assert "Thread-1, Thread-2 called the model: 2.00 KiB of the peak" in named


def test_cycles_that_were_cut_are_said_and_whether_the_peak_is_in_one() -> None:
    whole, cut = (
        findings_of(recording_of([Event(0, 100, 1)])),
        findings_of(recording_of([Event(0, 50, 1)])),
    )
    larger = findings_of(recording_of([Event(0, 500, 1)]))
    cut, larger = (replace(one, source=replace(one.source, is_whole=False)) for one in (cut, larger))
    assert left_out(combine_cycles([whole, cut])) == (
        "1 cycle was cut short by the end of the run: means (max_mem.txt) leave that out.",
    )
    assert left_out(combine_cycles([whole, cut, larger])) == (
        "2 cycles were cut short by the end of the run: means (max_mem.txt) leave that out, and the peak shown is in "
        "one that was cut.",
    )


LINE = SourceLine("/home/somebody/net.py", 7)
GRAPHS = (CompiledGraph("a", ""), CompiledGraph("b", "", is_backward=True))


def found(code: CompiledCode, *, is_compiled: bool = True) -> RunFindings:
    """Findings in which everything is of a compiled region of which no more is known."""
    (results,) = record(lambda: torch.zeros(1024))
    recording = read_recording(results)
    num = len(recording.allocations.op)
    region = (Origin("region"),)
    origins = CompiledOrigins(region, np.zeros(num, np.int64), np.full(num, -1))
    cycle = find_in_cycle(recording)
    attribution = replace(cycle.source.attribution, origins=origins if is_compiled else None)
    blocks, none = cycle.peak.blocks, np.full(len(cycle.peak.blocks.frame), -1)
    blocks = replace(blocks, frame=none, origin=none + is_compiled, values=region)
    source = replace(cycle.source, attribution=attribution)
    changed = replace(cycle, source=source, peak=replace(cycle.peak, blocks=blocks))
    return combine_cycles([changed], compiled=code)


def test_a_program_that_compiles_nothing_has_no_sentence() -> None:
    assert compiled_sentences(found(CompiledCode(), is_compiled=False)) == ()


def test_graphs_are_told() -> None:
    first, *_ = compiled_sentences(found(CompiledCode(GRAPHS)))
    assert first == "Compiled code ran: 1 graph of forward and 1 of backward.", "nothing is known of their lines"
    unknown, *_ = compiled_sentences(found(CompiledCode()))
    assert unknown == "Compiled code ran, and torch recorded no call of its graphs."
    known = tuple(replace(graph, nodes=(CompiledNode("gelu", (), -1, ""),)) for graph in GRAPHS)
    with_lines, *_ = compiled_sentences(found(CompiledCode(known)))
    assert with_lines == f"{first} Their buffers have the lines of the operators that they stand for."


def test_what_cuda_graphs_have_reserved_is_told() -> None:
    reserved = compiled_sentences(found(CompiledCode(GRAPHS, cuda_graphs_bytes=3 << 20)))[1]
    assert reserved.startswith("3.00 MiB are reserved for CUDA graphs, which nothing else may use. ")


def test_what_came_too_late_says_how_to_get_it() -> None:
    *_, last = compiled_sentences(found(CompiledCode(GRAPHS)))
    assert last.startswith("4.00 KiB of the peak were allocated by compiled code and have no line. ")
    assert "torch.compiler.reset()" in last


# ---- A run says how much of its device it takes.
def peak(**sizes: int) -> Peak:
    findings = on_cpu().findings
    assert findings is not None
    rows = tuple(
        Row(size * MIB, 1, kind, None, "", "", None, "aten::mm", "train.py", 1) for kind, size in sizes.items()
    )
    size = sum(row.bytes for row in rows)
    report = findings.worst.peak
    return dataclasses.replace(report, rows=rows, peak_bytes=size, allocator_peak_bytes=size, reserved_bytes=size)


def test_the_share_of_the_device_that_is_taken_is_said() -> None:
    assert share_sentence(peak(ACTIVATION=100), 100 << 30) == (
        "100.00 MiB are reserved then, 0.1 % of the GPU's 100.00 GiB.",
    )


def causes(device_bytes: int | None) -> list[str]:
    replayed = replay_snapshot(snapshot_in_memory(fragmented().snapshot()))
    (device,) = replayed.devices
    found = first_changes(device, device_bytes=device_bytes)
    assert found is not None
    return [change.cause for change in found.changes]


def test_settings_of_the_allocator_are_no_advice_on_a_device_that_is_mostly_free() -> None:
    assert "fragmentation" in causes(None) and "fragmentation" in causes(1 << 30)
    assert "fragmentation" not in causes(80 << 30)
