"""Recording ends early where a step takes long to record or to read; on a clock that the test turns."""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.skips import by_default
from tracer.arrays import totals_by
from tracer.sessions import recording_cost, timeline_tracer
from tracer.sessions.schedule import Schedule
from tracer.sessions.script_run import ScriptProfile
from tracer.sessions.session import ScriptVoice
from tracer.sessions.training_profile import TrainingProfile, profile_training

ASKED = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=2, num_repeats=2)
PLAN = replace(ASKED, may_end_early=True)


class Clock:
    """The processor's time."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def few_modules_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_cost, "_MOST_MODULES", 10)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(time, "process_time", clock)
    yield clock


def train(
    folder: Path,
    in_step: Callable[[int, nn.Module], None],
    *,
    num_steps: int = PLAN.num_steps,
    plan: Schedule = PLAN,
) -> TrainingProfile:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    with profile_training(model, optimizer, save_dir=folder, schedule=plan, screen="none") as session:
        for step in range(num_steps):
            in_step(step, model)
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    assert session.fault is None
    assert session.results is not None
    assert session.results.findings is not None
    assert all(cycle.source.breakdown is not None for cycle in session.results.findings.parts)
    return session


def recorded(session: TrainingProfile) -> list[int]:
    """How many steps each cycle has."""
    assert session.results is not None
    assert session.results.findings is not None
    return [len(cycle.source.attribution.step_names) for cycle in session.results.findings.parts]


def takes(*seconds: float, clock: Clock) -> Callable[[int, nn.Module], None]:
    """Steps that take so long, the last of them for all that follow."""

    def in_step(step: int, model: nn.Module) -> None:
        clock.now_s += seconds[min(step, len(seconds) - 1)]

    return in_step


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        ((1.0, 0.2, 0.6), [2, 2]),  # not much is added
        ((1.0, 0.2, 0.8), [1]),
        ((1.0, 0.2, 0.6, 0.8), [2]),
        ((9.0, 9.0, 13.0), [2, 2]),  # steps of a processor's own work differ
    ],
)
def test_a_step_to_which_recording_adds_much_is_the_last(
    seconds: tuple[float, ...], steps: list[int], clock: Clock, tmp_path: Path
) -> None:
    session = train(tmp_path, takes(*seconds, clock=clock))
    assert recorded(session) == steps
    notes = [note for note in session.notes if note.startswith("Recording ended")]
    last, num_recorded = 2 + sum(steps), sum(steps)
    beginning = f"Recording ended with step {last}, with {num_recorded} of 4 steps recorded: "
    assert [note.startswith(beginning) for note in notes] == [True] * (steps != [2, 2])
    assert session.is_complete
    assert (tmp_path / "peak.json").exists()


def test_behind_a_cycle_that_took_long_to_read_there_is_no_other(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = timeline_tracer.read_recording  # type: ignore[attr-defined]

    def slowly(profiler: object) -> object:
        clock.now_s += 6
        return read(profiler)

    monkeypatch.setattr(timeline_tracer, "read_recording", slowly)
    session = train(tmp_path, takes(0.0, clock=clock))
    assert recorded(session) == [2]
    assert "Recording ended with step 4, with 2 of 4 steps recorded: reading them took 6 s" in "".join(session.notes)


@pytest.mark.parametrize(
    ("cycles", "steps"),
    [pytest.param(0.0, [2], marks=pytest.mark.slow), (1.7, [2, 1]), pytest.param(2.2, [2, 2], marks=pytest.mark.slow)],
)
def test_no_more_events_are_recorded_than_can_be_read_soon(
    cycles: float, steps: list[int], clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By how many a cycle of two steps has: one is always recorded."""
    whole = train(tmp_path / "whole", takes(0.0, clock=clock)).results
    assert whole is not None
    assert whole.findings is not None
    monkeypatch.setattr(
        recording_cost, "MOST_EVENTS", int(cycles * whole.findings.parts[0].source.recording.num_events)
    )
    session = train(tmp_path, takes(0.0, clock=clock))
    assert recorded(session) == steps
    assert ("in all would take long to read" in "".join(session.notes)) == (steps != [2, 2])


@pytest.mark.parametrize("kind", by_default(["takes", "events", "evaluates", "loads"], {"takes", "loads"}))
def test_a_schedule_that_was_asked_for_is_recorded_whole(
    kind: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it costs: `python main.py` makes no more steps than its options name."""
    monkeypatch.syspath_prepend(tmp_path)
    in_step = takes(1.0, 0.2, 9.0, clock=clock)
    if kind == "events":
        in_step = takes(0.0, clock=clock)
        monkeypatch.setattr(recording_cost, "MOST_EVENTS", 1)
    elif kind != "takes":
        in_step = evaluates(range(2, 9), clock) if kind == "evaluates" else loads(tmp_path, range(2, 9))
    session = train(tmp_path, in_step, plan=ASKED)
    assert recorded(session) == [2, 2]
    assert not any("ended" in note for note in session.notes)


@pytest.mark.parametrize(("at_step", "steps"), [(2, [2, 2]), (3, [2])])
def test_a_long_evaluation_ends_the_recording_behind_a_whole_step(
    at_step: int, steps: list[int], clock: Clock, tmp_path: Path
) -> None:
    """Where there is none, a short one is recorded: what trains comes behind it."""
    num_calls = 0

    def in_step(step: int, model: nn.Module) -> None:
        nonlocal num_calls
        if step == at_step:
            with torch.no_grad():
                for _ in range(9):
                    model(torch.randn(4, 8))
                    clock.now_s += 0.3 if at_step == 3 else 0.05
                    num_calls += 1

    session = train(tmp_path, in_step)
    assert (num_calls, recorded(session)) == (9, steps)
    assert ("calls models without gradients" in "".join(session.notes)) == (at_step == 3)


def evaluates(at: range, clock: Clock) -> Callable[[int, nn.Module], None]:
    def in_step(step: int, model: nn.Module) -> None:
        if step in at:
            with torch.no_grad():
                for _ in range(9):
                    model(torch.randn(4, 8))
                    clock.now_s += 0.3

    return in_step


def loads(folder: Path, at: range) -> Callable[[int, nn.Module], None]:
    """Steps that load a package of 20 modules."""
    name = f"package_of_{folder.name}_{at.start}"
    for module in range(20):
        (folder / f"{name}_{module}.py").touch()

    def in_step(step: int, model: nn.Module) -> None:
        if step in at:
            for module in range(20):
                sys.modules.pop(f"{name}_{module}", None)
                importlib.import_module(f"{name}_{module}")

    return in_step


@pytest.mark.parametrize(
    ("kind", "at", "cycles"),
    [
        ("evaluates", range(2, 3), [2, 2]),  # the first step that is to be recorded
        pytest.param("loads", range(2, 3), [2, 2], marks=pytest.mark.slow),
        pytest.param("evaluates", range(3, 4), [1], marks=pytest.mark.slow),  # behind a whole one
        ("loads", range(99), [2]),  # all: dropped three times, then recorded to where it ends behind a whole step
    ],
)
def test_what_costs_much_in_the_first_recorded_step_has_later_ones_recorded(
    kind: str, at: range, cycles: list[int], clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation behind the first step, or a package that is first needed there, is not what trains."""
    monkeypatch.syspath_prepend(tmp_path)
    in_step = evaluates(at, clock) if kind == "evaluates" else loads(tmp_path, at)
    before = list(sys.meta_path)
    session = train(tmp_path, in_step, num_steps=24)
    assert sys.meta_path == before
    assert len(recorded(session)) == len(cycles) and session.is_complete
    # The wait and the warmup of the schedule come anew: 2, 5 and 8 are dropped.
    first = session.findings.parts[0].source.attribution.step_names[0]
    assert int(first.removeprefix("ProfilerStep#")) == {2: 5, 3: 2, 0: 11}[at.start]
    does = "loads more than 10 Python modules" if kind == "loads" else "calls models without gradients"
    assert (does in "".join(session.notes)) == (at.start != 2)


def test_a_recording_that_was_dropped_is_used_where_no_other_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a script that only makes an inference engine: its last step ends with it, and nothing begins there."""
    monkeypatch.syspath_prepend(tmp_path)
    load, model = loads(tmp_path, range(1)), nn.Linear(64, 8)
    steps = Schedule(0, 0, 3, 1, may_end_early=True)
    make = partial(TrainingProfile, voice=ScriptVoice(), save_dir=tmp_path, schedule=steps, screen=False)
    profile = ScriptProfile(make, is_inference=True)
    with profile, torch.no_grad():
        model(torch.ones(1, 64))
        model.register_buffer("cache", torch.zeros(1 << 18))
        load(0, model)
        model(torch.ones(1, 64))
    session = profile.session
    assert isinstance(session, TrainingProfile) and session.num_steps_done == 2
    (cycle,) = session.findings.parts
    assert not cycle.source.is_whole
    assert (cycle.peak.rows[0].bytes, cycle.peak.rows[0].name) == (1 << 20, "cache")
    assert any("was recorded loads more than 10 Python modules" in note for note in session.notes)


@pytest.mark.parametrize("how", ["steps", "one step", "closure"])
def test_of_an_optimizer_with_many_parameters_allocations_alone_are_recorded(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step says the same of the peak as one that is recorded whole; a step without a second says less.

    An optimizer with a closure trains within its step, which is recorded whole.
    """

    def profiled(most: int) -> TrainingProfile:
        gc.collect()  # else the model of the other session is there until Python collects it
        monkeypatch.setattr(recording_cost, "MOST_UPDATES", most)
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
        optimizer = torch.optim.AdamW(model.parameters())

        def train() -> float:
            optimizer.zero_grad()
            model(torch.ones(8, 32)).sum().backward()
            return 0.0

        plan = Schedule(0, 1, 1, 1, may_end_early=True)
        make = partial(TrainingProfile, voice=ScriptVoice(), save_dir=tmp_path, schedule=plan, screen=False)
        with ScriptProfile(make) as profile:
            for _ in range(1 if how == "one step" else 4):
                if how == "closure":
                    optimizer.step(train)
                else:
                    train()
                    optimizer.step()
        assert isinstance(profile.session, TrainingProfile)
        return profile.session

    whole, few = (profiled(most) for most in (8, 7))
    of_whole, of_few = (session.findings.parts[0] for session in (whole, few))
    assert few.peak_bytes == whole.peak_bytes
    if how != "one step":
        told = [
            totals_by(session.rows, lambda row: (row.kind, row.module, row.file, row.line, row.phase))
            for session in (whole, few)
        ]
        assert told[0] == told[1] and whole.notes == ()
    share = of_few.source.recording.num_events / of_whole.source.recording.num_events
    assert (share < 0.7) == (how != "closure")
    assert ["allocations alone are recorded" in note for note in few.notes] == [True] * (how != "closure")
    with torch.profiler.profile() as profiler:
        torch.ones(1)
    assert any(event.key == "aten::ones" for event in profiler.key_averages())
