"""In inference each call of a model is a step: which calls count, what ends one, and that nothing is left behind."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tracer.answers.run_results import RunResults
from tracer.sessions.schedule import Schedule
from tracer.sessions.script_facts import NO_CALL, NO_MODEL
from tracer.sessions.script_run import ScriptProfile
from tracer.sessions.session import ScriptVoice
from tracer.sessions.step_finders import StepsOfCalls
from tracer.sessions.training_profile import TrainingProfile


class Caller(nn.Module):
    """Calls a model that is none of its children, and fails when it is told to."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.others = [other]

    def forward(self, x: Tensor, *, fails: bool = False) -> Tensor:
        y: Tensor = self.others[0](x * self.weight)
        if fails:
            raise ValueError("no memory")
        return y


def test_each_outermost_call_is_a_step() -> None:
    inner = nn.Linear(2, 2)
    outer, ended = Caller(inner), list[int]()
    steps = StepsOfCalls([inner, outer], outer, lambda: ended.append(1))
    x = torch.ones(1, 2)
    outer(x)
    assert len(ended) == 1, "the call that was running when it began is over"
    inner(x)
    assert len(ended) == 2
    outer(x)
    assert len(ended) == 3, "what it calls is part of it"
    with suppress(ValueError):
        outer(x, fails=True)
    outer(x)
    assert len(ended) == 5, "one that failed ends where the next one begins"
    steps.stop()
    outer(x)
    assert len(ended) == 5 and not outer._forward_pre_hooks and not outer._forward_hooks


def recorded(folder: Path, calls: Any, **options: Any) -> tuple[ScriptProfile, RunResults | None]:
    plan = Schedule(0, 0, 5, 1)
    make_session = partial(TrainingProfile, voice=ScriptVoice(), save_dir=folder, schedule=plan, screen=False)
    profile = ScriptProfile(make_session, **options)
    with profile:
        calls()
    return profile, profile.session.results if isinstance(profile.session, TrainingProfile) else None


def test_a_program_without_training_is_explained(tmp_path: Path) -> None:
    model, other = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)), nn.Linear(64, 8)

    @torch.no_grad()
    def calls() -> None:
        other(torch.ones(1, 64))
        model(torch.ones(32, 64))

    profile, results = recorded(tmp_path, calls, is_inference=True)
    assert profile.notes == () and results is not None and results.findings is not None
    peak = results.findings.worst.peak
    categories = peak.by_category()
    assert {"PARAMETER", "EVALUATION", "INPUT"} <= set(categories) <= {"PARAMETER", "EVALUATION", "INPUT", "HELD"}
    assert categories["EVALUATION"] == 32 * 256 * 4 * 2, "what the first layer made, and what the second"
    assert peak.step == "ProfilerStep#1"
    assert {row.module for row in peak.rows if row.name} >= {"Sequential.0", "Linear"}


def test_the_step_that_is_running_at_the_end_counts(tmp_path: Path) -> None:
    _, results = recorded(tmp_path, lambda: nn.Linear(64, 8)(torch.ones(1, 64)), is_inference=True)
    assert results is not None and results.findings is not None
    assert results.findings.worst.peak.peak_bytes > 0


def test_without_the_option_it_is_named_where_a_model_was_called(tmp_path: Path) -> None:
    @torch.no_grad()
    def calls() -> None:
        nn.Linear(4, 4)(torch.ones(1, 4))

    profile, results = recorded(tmp_path, calls)
    assert results is None
    assert profile.notes == (
        f"{NO_MODEL} It called a model without training it: with --inference, `run` explains such calls.",
    )
    name_it = "Name the script that trains, or one that only calls models behind --inference."
    assert recorded(tmp_path, lambda: None)[0].notes == (f"{NO_MODEL} {name_it}",)
    assert recorded(tmp_path, lambda: None, is_inference=True)[0].notes == (NO_CALL,)


@pytest.mark.parametrize("is_inference", [False, True])
def test_a_training_is_not_taken_for_inference(tmp_path: Path, is_inference: bool) -> None:
    """With the option its calls are steps; without it those of the optimizer are, whatever was called before."""
    model = nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters())

    def calls() -> None:
        with torch.no_grad():
            model(torch.ones(1, 64))
        for _ in range(3):
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()

    profile, results = recorded(tmp_path, calls, is_inference=is_inference)
    assert results is not None and profile.session is not None
    assert profile.session.num_steps_done == (4 if is_inference else 3)
