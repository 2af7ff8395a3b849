"""A program that has a profiler of its own: that one records as ever, and ours waits for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, schedule

from tests.skips import by_default
from tests.truth.isolate import value_in_fresh_process
from tracer.capture.torch_names import STEP_PREFIX
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule

PLAN = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=2, num_repeats=1)


def trained() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    return model, optimizer, step


def own_profiler(kind: str) -> AbstractContextManager[Any]:
    return profile(activities=[ProfilerActivity.CPU]) if kind == "torch" else torch.autograd.profiler.profile()


def beside(begins: int, kind: str) -> tuple[int, list[int]]:
    """Events of the program's own profiler around two of twelve steps; and the steps that ours recorded."""
    model, optimizer, step = trained()
    events = number = 0
    with ProfileSession(model, optimizer, schedule=PLAN, device="cpu") as session:
        while number < 12:
            with own_profiler(kind) if number == begins else nullcontext() as theirs:
                for _ in range(2 if number == begins else 1):
                    step()
                    session.step()
                    number += 1
            events += len(theirs.key_averages()) if theirs is not None else 0
    assert session.fault is None
    (cycle,) = session.findings.parts
    return events, [int(name.removeprefix(STEP_PREFIX)) for name in cycle.source.attribution.step_names]


def beside_each(kind: str) -> list[tuple[int, list[int]]]:
    return [beside(begins, kind) for begins in (0, 1, 2, 3, 6)]


@pytest.mark.parametrize("kind", by_default(["torch", "legacy"], {"torch"}))
def test_a_profiler_of_the_programs_own_goes_first(kind: str) -> None:
    """In front of ours, in its wait, in its warm-up, in its recording and behind it."""
    returned = value_in_fresh_process(beside_each, kind)
    assert all(events > 20 for events, _ in returned)
    assert [steps for _, steps in returned] == [[4, 5], [5, 6], [6, 7], [7, 8], [2, 3]]


def warming_up() -> tuple[int, list[int]]:
    """As `beside`, of a profiler of the program's own with a schedule, which warms up when ours would."""
    model, optimizer, step = trained()
    found: list[int] = []
    plan = schedule(wait=1, warmup=2, active=2, repeat=1)
    with (
        profile(schedule=plan, on_trace_ready=lambda theirs: found.append(len(theirs.key_averages()))) as theirs,
        ProfileSession(model, optimizer, schedule=PLAN, device="cpu") as session,
    ):
        for _ in range(12):
            step()
            theirs.step()
            session.step()
    assert session.fault is None
    (cycle,) = session.findings.parts
    return found[0], [int(name.removeprefix(STEP_PREFIX)) for name in cycle.source.attribution.step_names]


def test_one_that_warms_up_is_not_cancelled() -> None:
    events, steps = value_in_fresh_process(warming_up)
    assert events > 20
    assert steps


def fault_inside_a_step() -> int:
    """How many steps a loop makes where ours fails inside an optimizer's hook, as `run` calls it."""
    model, optimizer, step = trained()
    num_steps = 0
    with ProfileSession(model, optimizer, schedule=PLAN, device="cpu") as session:
        session.observed.look = _fails  # type: ignore[method-assign, assignment]
        register_optimizer_step_post_hook(lambda *_: session.step())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(5):
                step()
                num_steps += 1
    assert str(session.fault) == "a fault of ours"
    return num_steps


def _fails(*_: Any, **__: Any) -> None:
    raise ValueError("a fault of ours")


def test_a_fault_of_ours_inside_an_optimizers_step_is_not_the_loops() -> None:
    assert value_in_fresh_process(fault_inside_a_step) == 5
