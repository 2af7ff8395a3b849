"""TimelineTracer alone, as in the guide's minimal example: whatever the loop does, the file is there afterwards."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from tests.exporters.test_text_files import MAX_KEYS, parse_max_mem
from tests.skips import by_default
from tests.training_steps import build_workload
from tracer.errors import RecordingError
from tracer.sessions import timeline_tracer
from tracer.sessions.timeline_tracer import TimelineTracer, _Cycle
from tracer.units import format_bytes

N_WAIT_STEPS, N_WARMUP_STEPS, N_ACTIVE_STEPS, N_REPEATS = 1, 1, 3, 2

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*Profiler clears events", "ignore:.*CUDA is not available", "ignore:Profiler won't be using warmup"
)


def train(
    on_trace_ready: Callable[[Any], None],
    num_batches: int,
    *,
    step: Callable[[int], object] | None = None,
    activities: tuple[ProfilerActivity, ...] = (ProfilerActivity.CPU,),
    wait: int = N_WAIT_STEPS,
    warmup: int = N_WARMUP_STEPS,
    active: int = N_ACTIVE_STEPS,
    repeat: int = N_REPEATS,
    scheduled: bool = True,
    **options: bool,
) -> Any:
    """The guide's loop. Returns the profiler."""
    built = build_workload("sgd_momentum")
    work = step or (lambda _: built.step())
    with profile(
        activities=list(activities),
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=repeat) if scheduled else None,
        on_trace_ready=on_trace_ready,
        **{"record_shapes": True, "profile_memory": True, "with_stack": True, **options},  # type: ignore[arg-type]
    ) as prof:
        for index in range(num_batches):
            work(index)
            prof.step()
    return prof


def num_cycles(path: Path) -> int:
    """How many cycles the file is about, cut ones too, after checking that its readers can read it."""
    text = path.read_text()
    found = parse_max_mem(text)
    assert list(found) == [*MAX_KEYS, "Peak_Total"]
    assert found["Peak_Total"] > 0
    averaged = int(re.search(r"Means over (\d+) cycle", text).group(1))  # type: ignore[union-attr]
    cut = re.search(r"left out: (\d+) cycle", text)
    return averaged + (int(cut.group(1)) if cut else 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "max_mem.txt"


# ---- what is averaged ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_batches", "averaged", "left_out"), [(5, 1, 0), (8, 1, 1), (9, 1, 1), (10, 2, 0), (11, 2, 0), (3, 1, 0)]
)
def test_only_whole_cycles_are_averaged_unless_none_is_whole(
    num_batches: int, averaged: int, left_out: int, file: Path
) -> None:
    """Cycles end with batches 5 and 10. Step sizes grow, so that a mean over others would be another number."""
    sizes = [(index + 1) * 1000 for index in range(num_batches)]
    tracer = TimelineTracer(file)
    train(tracer, num_batches, step=lambda index: torch.zeros(sizes[index]).add(1))
    whole = [cycle.source.is_whole for cycle in tracer.findings.parts]
    assert whole == [True] * (averaged - (num_batches == 3)) + [False] * (left_out + (num_batches == 3))
    text = file.read_text()
    assert f"Means over {averaged} cycle" in text
    assert ("left out: 1 cycle" in text) == (left_out == 1)
    # Two tensors of 4 bytes an element; the last active step of a cycle has the largest.
    last = {3: [3], 5: [5], 8: [5], 9: [5], 10: [5, 10], 11: [5, 10]}[num_batches]
    peak_bytes = sum(2 * 4 * 1000 * step for step in last) // len(last)
    assert tracer.findings.breakdown.peak_bytes == pytest.approx(peak_bytes, rel=0.01)
    assert f"At the true peak of {format_bytes(tracer.findings.breakdown.peak_bytes)}" in text


# ---- whatever the loop does ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_batches", by_default([9, 10, 11], {10}))
def test_the_guides_minimal_example(num_batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given nothing but a file name. With 9 batches the last step of cycle 2 is cut: torch's own export fails there."""
    monkeypatch.chdir(tmp_path)
    tracer = TimelineTracer("max_mem.txt")
    train(tracer, num_batches, activities=(ProfilerActivity.CPU, ProfilerActivity.CUDA))
    assert num_cycles(Path("max_mem.txt")) == 2
    assert Path("max_mem.txt").read_text().startswith("Memory Breakdown at Peak for cpu\n---------\nMax PARAMETER (GB)")
    assert [path.name for path in tmp_path.iterdir()] == ["max_mem.txt"]
    assert tracer.num_cycles == 2


@pytest.mark.parametrize(
    ("num_batches", "cycles"),
    [(5, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((6, 1), (13, 3))), (16, 3)],
)
def test_a_schedule_without_an_end(num_batches: int, cycles: int, file: Path) -> None:
    train(TimelineTracer(file), num_batches, repeat=0)
    assert num_cycles(file) == cycles


@pytest.mark.parametrize(
    ("last", "cycles"), [(2, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((6, 1), (10, 2))), (7, 2)]
)
def test_a_loop_that_raises(last: int, cycles: int, file: Path) -> None:
    """The exception goes its way, and what was recorded until then is in the file."""
    built = build_workload("sgd_momentum")

    def step(index: int) -> None:
        built.step()
        if index == last:
            raise KeyError("somebody's bug")

    with pytest.raises(KeyError, match="somebody's bug") as caught:
        train(TimelineTracer(file), 11, step=step)
    assert num_cycles(file) == cycles
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("raises", [False, True])
def test_a_profiler_without_a_schedule(raises: bool, file: Path) -> None:
    """Its one cycle ends when the profiler stops."""
    built = build_workload("sgd_momentum")

    def step(index: int) -> None:
        built.step()
        if raises and index == 1:
            raise KeyError

    if raises:
        with pytest.raises(KeyError):
            train(TimelineTracer(file), 3, scheduled=False, step=step)
    else:
        train(TimelineTracer(file), 3, scheduled=False)
    assert num_cycles(file) == 1


def test_without_shapes_and_stacks_there_is_less_to_say_and_still_a_file(file: Path) -> None:
    train(TimelineTracer(file), 11, record_shapes=False, with_stack=False)
    assert num_cycles(file) == 2


def test_a_profiler_that_runs_twice_writes_twice(file: Path) -> None:
    built = build_workload("sgd_momentum")
    prof = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=1),
        profile_memory=True,
        record_shapes=True,
        with_stack=True,
        on_trace_ready=TimelineTracer(file),
    )
    for cycles in (2, 4):
        with prof:
            for _ in range(4):
                built.step()
                prof.step()
        assert num_cycles(file) == cycles


# ---- what cannot be --------------------------------------------------------------------------------------------------


def test_nothing_recorded_is_an_error_and_no_file(file: Path) -> None:
    with pytest.raises(RecordingError, match="Nothing was allocated"):
        train(TimelineTracer(file), 2)
    assert not file.exists()


def test_a_profiler_without_memory_says_what_to_do(file: Path) -> None:
    with pytest.raises(RecordingError) as caught:
        train(TimelineTracer(file), 11, profile_memory=False)
    assert "profile_memory=True" in caught.value.hint


def test_the_loops_own_exception_is_never_hidden(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    built = build_workload("sgd_momentum")

    def step(index: int) -> None:
        built.step()
        if index == 3:
            raise KeyError("somebody's bug")

    with pytest.raises(KeyError, match="somebody's bug") as caught:
        train(TimelineTracer(tmp_path / "file" / "max_mem.txt"), 11, step=step)
    assert "was not written" in caught.value.__notes__[0]


def test_before_anything_was_recorded_there_are_no_findings() -> None:
    with pytest.raises(RecordingError, match="before a single step was profiled"):
        _ = TimelineTracer().findings


def test_a_device_that_saw_nothing_is_an_error(file: Path) -> None:
    with pytest.raises(RecordingError, match="Nothing was allocated on cuda:3"):
        train(TimelineTracer(file, device="cuda:3"), 11)


# ---- what the callback costs -----------------------------------------------------------------------------------------


def test_a_cycle_is_read_when_it_has_ended_and_analysed_at_the_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept unread, every cycle would be in memory as the profiler has it, at ten times the size."""
    log: list[str] = []
    read, find = timeline_tracer.read_recording, timeline_tracer.find_in_cycle  # type: ignore[attr-defined]
    monkeypatch.setattr(timeline_tracer, "read_recording", lambda one: log.append("read") or read(one))
    monkeypatch.setattr(timeline_tracer, "find_in_cycle", lambda *a, **k: log.append("analysis") or find(*a, **k))
    tracer = TimelineTracer(file)

    def on_trace_ready(prof: Any) -> None:
        tracer(prof)
        log.append(f"cycle {tracer.num_cycles}")

    train(on_trace_ready, 9, wait=0, warmup=1, active=1, repeat=4)
    cycles = [word for number in range(1, 5) for word in ("read", f"cycle {number}")]
    assert log == [*cycles, *["analysis"] * 4]
    assert num_cycles(file) == 4


def test_findings_may_be_asked_for_between_cycles(file: Path) -> None:
    tracer = TimelineTracer()
    seen: list[int] = []

    def on_trace_ready(prof: Any) -> None:
        tracer(prof)
        seen.append(len(tracer.findings.parts))

    train(on_trace_ready, 11)
    assert seen == [1, 2]
    assert not file.exists()


def test_a_cycle_without_results_is_left_out() -> None:
    """A signal may end the reading of the last one."""
    tracer = TimelineTracer()
    train(tracer, 11)
    tracer._add(_Cycle(None, was_cut=True, reading=None))
    assert len(tracer.findings.parts) == tracer.num_cycles == 2


def test_torchs_results_are_let_go_once_read(file: Path) -> None:
    """They hold about 5 KB an event."""
    tracer = TimelineTracer(file)
    refs: list[weakref.ref[Any]] = []

    class Results:
        """Kineto's own cannot be referred to weakly."""

        def __init__(self, results: Any) -> None:
            self.experimental_event_tree = results.experimental_event_tree

    def on_trace_ready(prof: Any) -> None:
        results = Results(prof.profiler.kineto_results)
        refs.append(weakref.ref(results))
        tracer(results)

    train(on_trace_ready, 11)
    assert tracer.findings.parts
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
