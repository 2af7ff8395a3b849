"""Recording ends early where it would have very many events; a schedule that was asked for is recorded whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tracer.sessions import recording_cost
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import TrainingProfile, profile_training

ASKED = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=2, num_repeats=2)
PLAN = replace(ASKED, may_end_early=True)


def train(
    folder: Path,
    in_step: Callable[[int, nn.Module], None] = lambda step, model: None,
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


@pytest.mark.parametrize(("cycles", "plan", "steps"), [(0.9, PLAN, [2]), (1.1, PLAN, [2, 2]), (0.9, ASKED, [2, 2])])
def test_behind_a_cycle_of_many_events_there_is_no_other_unless_it_was_asked_for(
    cycles: float, plan: Schedule, steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By how many a cycle of two steps has."""
    num_events = train(tmp_path / "whole", plan=ASKED).findings.parts[0].source.recording.num_events
    monkeypatch.setattr(recording_cost, "MOST_EVENTS", int(cycles * num_events))
    session = train(tmp_path, plan=plan)
    assert recorded(session) == steps and session.is_complete
    notes = [note for note in session.notes if note.startswith("Recording ended")]
    assert [
        note.startswith("Recording ended with step 4, with 2 of 4 steps recorded: those have") for note in notes
    ] == [True] * (steps == [2])


def evaluates(at: range, num_calls: int) -> Callable[[int, nn.Module], None]:
    """Steps that call the model so often without gradients."""

    def in_step(step: int, model: nn.Module) -> None:
        if step in at:
            with torch.no_grad():
                for _ in range(num_calls):
                    model(torch.randn(4, 8))

    return in_step


@pytest.mark.parametrize(
    ("at", "num_calls", "plan", "first", "cycles"),
    [
        (range(2, 3), 50, PLAN, 2, [2, 2]),
        (range(2, 3), 51, PLAN, 5, [2, 2]),  # in the first step that is to be recorded: later ones are
        (range(3, 4), 51, PLAN, 2, [2]),  # behind a whole one: recording ends within it
        (range(99), 51, PLAN, 11, [2]),  # in all: dropped three times, then one is recorded whole
        (range(99), 51, ASKED, 2, [2, 2]),  # `python main.py` makes no more steps than its options name
    ],
)
def test_a_step_with_a_long_evaluation_is_not_recorded_whole(
    at: range, num_calls: int, plan: Schedule, first: int, cycles: list[int], tmp_path: Path
) -> None:
    """An evaluation behind the first step is not what trains; wait and warmup of the schedule come anew."""
    session = train(tmp_path, evaluates(at, num_calls), num_steps=24, plan=plan)
    assert (recorded(session), session.is_complete) == (cycles, True)
    name = session.findings.parts[0].source.attribution.step_names[0]
    assert int(name.removeprefix("ProfilerStep#")) == first
    assert ("calls models without gradients" in "".join(session.notes)) == (cycles == [2])
