"""A program that has a profiler of its own: that one records as ever, and ours ends."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


def beside(begins: int, kind: str) -> tuple[int, list[int], str]:
    """Events of the program's own profiler around two of twelve steps; the steps that ours recorded, and its note."""
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
    return events, steps_of(session), session.stages.ended_by


def steps_of(session: ProfileSession) -> list[int]:
    assert session.fault is None
    cycles = session.findings.parts if session.cycles.number else ()
    return [int(name.removeprefix(STEP_PREFIX)) for cycle in cycles for name in cycle.source.attribution.step_names]


def beside_each(kind: str) -> list[tuple[int, list[int], str]]:
    return [beside(begins, kind) for begins in (0, 1, 3, 6)]


@pytest.mark.parametrize("kind", by_default(["torch", "legacy"], {"torch"}))
def test_a_profiler_of_the_programs_own_goes_first(kind: str) -> None:
    """In the wait of ours, in its warm-up, in its second recorded step and behind it."""
    returned = value_in_fresh_process(beside_each, kind)
    assert all(events > 20 for events, _, _ in returned)
    assert [steps for _, steps, _ in returned] == [[], [], [2, 3], [2, 3]]
    assert ["only one can at a time" in note for _, _, note in returned] == [True, True, True, False]


def warming_up(begins_first: bool) -> tuple[int, str]:
    """As `beside`, of a profiler of the program's own with a schedule, which warms up when ours would."""
    model, optimizer, step = trained()
    found: list[int] = []
    plan = schedule(wait=0 if begins_first else 1, warmup=2, active=2, repeat=1)
    with (
        profile(schedule=plan, on_trace_ready=lambda theirs: found.append(len(theirs.key_averages()))) as theirs,
        ProfileSession(model, optimizer, schedule=PLAN, device="cpu") as session,
    ):
        for _ in range(12):
            step()
            theirs.step()
            session.step()
    assert session.fault is None
    return found[0], session.stages.ended_by


@pytest.mark.parametrize("begins_first", [True, False])
def test_one_that_warms_up_is_not_cancelled(begins_first: bool) -> None:
    events, note = value_in_fresh_process(warming_up, begins_first)
    assert events > 20
    assert "only one can at a time" in note


def in_two_threads() -> tuple[list[int], str]:
    """A loop that goes on in another thread while it is recorded."""
    model, optimizer, step = trained()
    with ProfileSession(model, optimizer, schedule=PLAN, device="cpu") as session:
        for _ in range(3):
            step()
            session.step()
        with ThreadPoolExecutor(1) as pool:
            for _ in range(4):
                pool.submit(step).result()
                pool.submit(session.step).result()
    return steps_of(session), session.stages.ended_by


def test_a_loop_that_goes_on_in_another_thread_is_recorded_no_further() -> None:
    steps, note = value_in_fresh_process(in_two_threads)
    assert steps == [] and note.startswith("The loop went on, or ended, in another thread.")


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
