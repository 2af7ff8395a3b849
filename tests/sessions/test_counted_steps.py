"""A script's steps counted without a recording: when it ends, and what is known then."""

from __future__ import annotations

import torch
from torch import nn

from tracer.sessions.counted_steps import CountedSteps
from tracer.sessions.script_run import FirstStepsDone, ScriptProfile


def test_steps_are_counted_until_it_is_enough() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    asked: list[None] = []
    profile = ScriptProfile(CountedSteps.of, is_enough=lambda: len(asked) == 3)
    num_made = 0
    with profile:
        try:
            for _ in range(10):
                model(torch.ones(1, 2)).sum().backward()
                asked.append(None)
                num_made += 1
                optimizer.step()
        except FirstStepsDone:
            pass
    session = profile.session
    assert isinstance(session, CountedSteps) and session.device == torch.device("cpu")
    assert session.num_steps_done == num_made == 3


def test_without_parameters_nothing_is_on_a_gpu() -> None:
    assert CountedSteps.of({}, []).device == torch.device("cpu")
    weight = nn.Parameter(torch.empty(2, device="meta"))
    assert CountedSteps.of({}, [torch.optim.SGD([weight], lr=0.1)]).device.type == "meta"
