"""trace.json.gz: torch's own trace, unchanged, with counters that are the timeline's, at the times of the ops."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from tests.exporters.trace_format import check_nesting, read_trace
from tests.training_steps import WORKLOADS, record_workload
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.findings import CycleFindings, find_in_cycle
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.profiler.trace_store import TraceStore
from tracer.capture.recording import ProfilerTrace
from tracer.errors import OutputError, RecordingError
from tracer.exporters.trace import memory_events, write_trace
from tracer.timeline_tracer import TimelineTracer

NAMES = ["fno_2d_new_zeros", "checkpointing", "gradient_accumulation", "no_optimizer"]
assert set(NAMES) <= set(WORKLOADS)
HOSTILE = "</script><script>alert(1)</script> & <b>x</b>"


@dataclass(frozen=True, eq=False)
class Traced:
    cycle: CycleFindings
    trace: ProfilerTrace
    store: TraceStore

    @property
    def torchs(self) -> dict[str, Any]:
        return json.loads(b"".join(self.trace.chunks()))


def traced(results: Any) -> Traced:
    store = TraceStore()
    store.add(results)
    cycle = find_in_cycle(read_recording(results))
    return Traced(cycle, store.trace(0), store)


@cache
def workload(name: str) -> Traced:
    return traced(record_workload(name, n_cycles=1).results[0])


def written(one: Traced, folder: Path) -> dict[str, Any]:
    write_trace(one.trace, one.cycle, folder / "trace.json.gz")
    assert [path.name for path in folder.iterdir()] == ["trace.json.gz"]
    return read_trace(folder / "trace.json.gz")


def ns_of(trace: dict[str, Any], microseconds: Any) -> int:
    """Nanoseconds of the profiler's clock; exact, and a whole number."""
    ns = microseconds * 1000
    assert ns == int(ns)
    return int(ns) + trace["baseTimeNanoseconds"]


def counters(trace: dict[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """Time and value of every counter's events, in the order of the file."""
    found: dict[str, list[tuple[int, int]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "C":
            assert list(event["args"]) == ["bytes"]
            found.setdefault(event["name"], []).append((ns_of(trace, event["ts"]), event["args"]["bytes"]))
    return found


def changes(before: int, times: list[int], values: list[int]) -> list[tuple[int, int]]:
    """The events of a counter whose value may stay the same, without its first."""
    levels = [before, *values]
    return [(time, now) for time, last, now in zip(times, levels, values, strict=False) if now != last]


# ------------------------------------------------------------------------------------------------- torch's own trace
@pytest.mark.parametrize("name", NAMES)
def test_torchs_own_events_are_all_there_and_unchanged(name: str, tmp_path: Path) -> None:
    one = workload(name)
    trace = written(one, tmp_path)
    rest = [event for event in trace["traceEvents"] if event.get("cat") != "memory"]
    theirs = one.torchs
    assert len(rest) > 500
    assert json.loads(json.dumps(rest, default=float)) == theirs["traceEvents"]
    assert {**trace, "traceEvents": []} == {**theirs, "traceEvents": []}
    assert trace["traceName"] == "trace.json"


@pytest.mark.parametrize("name", NAMES)
def test_ours_lie_where_torchs_lie(name: str, tmp_path: Path) -> None:
    """Ops as we read them are ops as torch exports them, to the nanosecond, and so are allocations."""
    one = workload(name)
    trace = written(one, tmp_path)
    strings, ops = one.cycle.recording.strings, one.cycle.recording.ops
    read = Counter(
        zip([strings[n] for n in ops.name.tolist()], ops.start_ns.tolist(), ops.end_ns.tolist(), strict=True)
    )
    shown = Counter(
        (event["name"], start := ns_of(trace, event["ts"]), start + int(event["dur"] * 1000))
        for event in trace["traceEvents"]
        if event.get("cat") == "cpu_op"
    )
    assert len(read) > 50
    assert not read - shown
    steps = [event for event in trace["traceEvents"] if event.get("cat") == "memory" and event["ph"] in "Xi"]
    ours = {event["pid"] for event in trace["traceEvents"] if event["ph"] == "C"} | {event["pid"] for event in steps}
    assert ours == {event["pid"] for event in trace["traceEvents"] if event.get("cat") == "cpu_op"}


@pytest.mark.parametrize("name", NAMES)
def test_the_total_is_torchs_count_at_every_allocation(name: str, tmp_path: Path) -> None:
    """Torch has an instant with the bytes at every allocation: ours changes there, by these, and nowhere else."""
    trace = written(workload(name), tmp_path)
    total = counters(trace)["memory total"]
    ours = Counter((time, now - last) for (_, last), (time, now) in pairwise(total))
    theirs = Counter(
        (ns_of(trace, event["ts"]), event["args"]["Bytes"])
        for event in trace["traceEvents"]
        if event["name"] == "[memory]"
    )
    assert ours == theirs


# ---------------------------------------------------------------------------------------------------------- counters
def test_an_example_by_hand(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as prof:
        a = torch.empty(1000, dtype=torch.uint8)
        b = torch.empty(2000, dtype=torch.uint8)
        del a
        c = torch.empty(300, dtype=torch.uint8)
        del b, c
    trace = written(traced(prof.profiler.kineto_results), tmp_path)
    (start, *rest) = counters(trace)["memory total"]
    # torch's CPU allocator counts what was asked for.
    assert [value - start[1] for _, value in rest] == [1000, 3000, 2000, 2300, 300, 0]
    (peak,) = [event for event in trace["traceEvents"] if event["name"].startswith("peak ")]
    assert ns_of(trace, peak["ts"]) == rest[1][0]
    assert peak["args"]["bytes"] == start[1] + 3000


@pytest.mark.parametrize("name", NAMES)
def test_counters_are_the_blocks_alive_counted_one_by_one(name: str, tmp_path: Path) -> None:
    one = workload(name)
    found = counters(written(one, tmp_path))
    lifetimes, blocks = one.cycle.lifetimes, one.cycle.blocks
    times = one.cycle.recording.allocations.time_ns[lifetimes.events].tolist()
    assert times == sorted(times)
    levels: list[dict[str, int]] = []
    for position in range(-1, len(times)):
        level = dict.fromkeys({Kind(kind).name for kind in blocks.kind.tolist()}, 0)
        for row in lifetimes.alive_at(position).tolist():
            level[Kind(int(blocks.kind[row])).name] += int(lifetimes.size_bytes[row])
        levels.append(level)
    assert set(found) == {"memory total", *(f"memory {kind}" for kind in levels[0])}
    for kind in levels[0]:
        (_, before), *rest = found[f"memory {kind}"]
        assert before == levels[0][kind]
        assert rest == changes(before, times, [level[kind] for level in levels[1:]])
    (start, before), *rest = found["memory total"]
    assert before == sum(levels[0].values())
    assert rest == changes(before, times, [sum(level.values()) for level in levels[1:]])
    assert start <= times[0]
    assert {events[0][0] for events in found.values()} == {start}


def test_a_clock_that_steps_back_stands_still() -> None:
    one = workload("no_optimizer")
    times = one.cycle.recording.allocations.time_ns
    kept = times.copy()
    row = int(one.cycle.lifetimes.events[10])
    try:
        times[row] = times[one.cycle.lifetimes.events[9]] - 5
        events = json.loads(b"[" + b",".join(memory_events(one.cycle, base_ns=int(times.min()) - 1_000_000)) + b"]")
    finally:
        times[:] = kept
    by_name: dict[str, list[float]] = {}
    for event in events:
        if event["ph"] == "C":
            by_name.setdefault(event["name"], []).append(event["ts"])
    assert all(found == sorted(found) for found in by_name.values())


# ------------------------------------------------------------------------------------------------------------- lanes
@pytest.mark.parametrize("name", NAMES)
def test_phases_have_lanes_of_their_own(name: str, tmp_path: Path) -> None:
    one = workload(name)
    trace = written(one, tmp_path)
    ours = [event for event in trace["traceEvents"] if event.get("cat") == "memory" and event["ph"] == "X"]
    check_nesting(ours)
    assert [
        (event["args"]["step"], event["name"], ns_of(trace, event["ts"]), int(event["dur"] * 1000)) for event in ours
    ] == [(phase.step, phase.phase, phase.start_ns, phase.duration_ns) for phase in one.cycle.step_phases]
    assert {event["tid"] for event in ours} == {f"phase {event['name']}" for event in ours}


# ------------------------------------------------------------------------------------------------------------- text
def profiled(name: str, note: str) -> Any:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as prof:
        prof.add_metadata("note", note)
        with record_function(name):
            torch.empty(1000).add_(1)
    return prof.profiler.kineto_results


def test_names_are_text(tmp_path: Path) -> None:
    trace = written(traced(profiled(HOSTILE, HOSTILE)), tmp_path)
    assert trace["note"] == HOSTILE
    assert HOSTILE in {event["name"] for event in trace["traceEvents"]}


def test_metadata_that_torch_writes_wrong_is_one_sentence(tmp_path: Path) -> None:
    """Torch 2.15 does not escape quotes in it, so that the whole trace is no JSON."""
    one = traced(profiled("x", 'a "word"'))
    with pytest.raises(RecordingError, match="not JSON"):
        write_trace(one.trace, one.cycle, tmp_path / "trace.json.gz")
    assert not list(tmp_path.iterdir())


def given(text: bytes, size: int) -> ProfilerTrace:
    """A trace in pieces of this size."""

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(text), size):
            yield text[start : start + size]

    return ProfilerTrace(7, chunks)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_the_list_is_found_wherever_the_text_is_cut(size: int, tmp_path: Path) -> None:
    one = workload("no_optimizer")
    theirs = {
        "é": '{"traceEvents": [',
        "meta": {"traceEvents": [1, {"baseTimeNanoseconds": 3}], "\\": "\\"},
        "baseTimeNanoseconds": 1_000_000_000,
        "traceEvents": [{"ph": "i", "s": "g", "name": "x", "pid": 1, "ts": 0.5}],
        "traceName": "y",
    }
    for ensure_ascii in (True, False):
        text = json.dumps(theirs, ensure_ascii=ensure_ascii).encode()
        write_trace(given(text, size), one.cycle, tmp_path / "trace.json.gz")
        trace = read_trace(tmp_path / "trace.json.gz")
        assert trace["meta"] == theirs["meta"]
        assert trace["traceEvents"][-1]["name"] == "x"
        first = counters(trace)["memory total"][1][0]
        assert first == int(one.cycle.recording.allocations.time_ns[one.cycle.lifetimes.events[0]])


@pytest.mark.parametrize("text", ['{"traceEvents": []}', ' { "a" : 1 ,\n "traceEvents" :\n [ \n ] , "b": 2 }'])
def test_a_trace_without_events_gets_ours(text: str, tmp_path: Path) -> None:
    one = workload("no_optimizer")
    write_trace(given(text.encode(), 100), one.cycle, tmp_path / "trace.json.gz")
    events = read_trace(tmp_path / "trace.json.gz")["traceEvents"]
    assert {event["ph"] for event in events} == {"C", "X", "i"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": 1', '{"baseTimeNanoseconds": "x", "traceEvents": [{}]}'])
def test_another_shape_is_one_sentence(text: str, tmp_path: Path) -> None:
    one = workload("no_optimizer")
    with pytest.raises(RecordingError, match="not JSON"):
        write_trace(given(text.encode(), 100), one.cycle, tmp_path / "trace.json.gz")
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------------- keeping and memory


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    one = workload("no_optimizer")
    event = json.dumps({"ph": "i", "s": "g", "name": "x", "pid": 1, "ts": 1}).encode()

    def chunks() -> Iterator[bytes]:
        yield b'{"traceEvents": ['
        for _ in range(64):
            yield (event + b",\n") * (1 << 14)
        yield event + b"]}"

    tracemalloc.start()
    try:
        write_trace(ProfilerTrace(7, chunks), one.cycle, tmp_path / "trace.json.gz")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 12 << 20 < 64 * (1 << 14) * len(event)


def test_traces_of_several_cycles_are_kept_apart() -> None:
    recorded = record_workload("no_optimizer", n_cycles=3)
    store = TraceStore()
    for results in recorded.results:
        store.add(results)
    for number, results in enumerate(recorded.results):
        events = json.loads(b"".join(store.trace(number).chunks()))["traceEvents"]
        mine = {event["name"] for event in events if event["name"].startswith("ProfilerStep#")}
        strings, spans = read_recording(results).strings, read_recording(results).spans
        assert mine == {strings[name] for name in spans.name.tolist() if strings[name].startswith("ProfilerStep#")}


def test_a_trace_that_somebody_else_took_is_told_when_it_is_wanted(tmp_path: Path) -> None:
    (results,) = record_workload("no_optimizer", n_cycles=1).results
    results.save(str(tmp_path / "theirs.json"))
    one = traced(results)
    with pytest.raises(RecordingError, match="already saved") as caught:
        write_trace(one.trace, one.cycle, tmp_path / "trace.json.gz")
    assert "export_chrome_trace" in caught.value.hint
    assert not (tmp_path / "trace.json.gz").exists()


def test_no_room_for_it_is_told_when_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tracer.capture.profiler.trace_store.tempfile.TemporaryFile", refuse)
    one = traced(record_workload("no_optimizer", n_cycles=1).results[0])
    with pytest.raises(OutputError, match="No space left on device"):
        write_trace(one.trace, one.cycle, tmp_path / "trace.json.gz")


def test_the_callback_writes_the_worst_cycles_trace(tmp_path: Path) -> None:
    """The first of four is the worst, and no longer held by the time that the others have been."""
    sizes = iter([9000] * 4 + [100] * 30)
    path = tmp_path / "trace.json.gz"
    tracer = TimelineTracer(trace_file=path)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=4),
        profile_memory=True,
        record_shapes=True,
        with_stack=True,
        on_trace_ready=tracer,
    ) as prof:
        for _ in range(13):
            torch.empty(next(sizes)).mul(2)
            prof.step()
        assert not path.exists()
    trace = read_trace(path)
    steps = {event["name"] for event in trace["traceEvents"] if event["name"].startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#2"}
    assert max(value for _, value in counters(trace)["memory total"]) == tracer.findings.worst.peak.peak_bytes
    assert tracer.num_cycles == 4


def test_without_a_file_no_trace_is_taken(tmp_path: Path) -> None:
    (results,) = record_workload("no_optimizer", n_cycles=1).results
    tracer = TimelineTracer(tmp_path / "max_mem.txt")
    tracer(results)
    tracer.finish()
    assert tracer.trace is None
    results.save(str(tmp_path / "theirs.json"))
    assert (tmp_path / "theirs.json").stat().st_size
