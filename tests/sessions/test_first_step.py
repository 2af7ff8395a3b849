"""Programs of one step, as `run` sees them: their only step is recorded, and where there is a second it is not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad

from tests.skips import by_default
from tests.truth.isolate import value_in_fresh_process
from tracer.sessions.output_files import OUTPUTS
from tracer.sessions.schedule import Schedule
from tracer.sessions.script_run import ScriptProfile
from tracer.sessions.session import ScriptVoice
from tracer.sessions.training_profile import TrainingProfile

WIDTH = 64
Step = Callable[[nn.Module, torch.optim.Optimizer], object]


def usual_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(8, WIDTH)).square().mean().backward()
    optimizer.step()


def functional_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    gradients = grad(lambda given, x: functional_call(model, given, (x,)).square().mean())(
        weights, torch.ones(8, WIDTH)
    )
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]
    optimizer.step()


def compiled_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    usual_step(torch.compile(model, backend="eager"), optimizer)  # type: ignore[arg-type]


def step_that_fails(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(8, WIDTH)).square().mean().backward()
    raise ValueError("the data ran out")


def step_in_a_region(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.profiler.record_function("a step"):
        usual_step(model, optimizer)


OPEN: list[Any] = []


def step_that_leaves_a_region_open(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss = model(torch.ones(8, WIDTH)).square().mean()
    if not OPEN:
        OPEN.append(torch.profiler.record_function("from the first step on"))
        OPEN[0].__enter__()
    loss.backward()
    optimizer.step()


def steps_found(step: Step, num_steps: int, folder: str, schedule: Schedule) -> dict[str, Any]:
    """Which steps the cycles have, and phases of the peak's; also which regions were open when a recording began."""
    sessions: list[TrainingProfile] = []

    def make_session(models: Any, optimizers: Any) -> TrainingProfile:
        leave_out = [output.name for output in OUTPUTS]
        sessions.append(
            TrainingProfile(
                models,
                optimizers,
                voice=ScriptVoice(),
                save_dir=folder,
                schedule=schedule,
                screen=False,
                leave_out=leave_out,
            )
        )
        return sessions[0]

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.Adam(model.parameters())
    happened = recorded_regions()
    with suppress(ValueError), ScriptProfile(make_session):
        for _ in range(num_steps):
            step(model, optimizer)
    for region in OPEN:
        region.__exit__(None, None, None)
    (session,) = sessions
    findings = session.results.findings if session.results is not None else None
    cycles = [part.source for part in findings.parts] if findings is not None else []
    return {
        "steps": [sorted({int(phase.step.partition("#")[2]) + 1 for phase in cycle.step_phases}) for cycle in cycles],
        "peak": cycles and findings is not None and (findings.worst.peak.step, findings.worst.peak.phase),
        "sum": cycles and findings is not None and findings.worst.peak.unexplained_bytes,
        "fault": repr(session.fault),
        "open": open_at_beginnings(happened),
        "patched": torch.autograd.profiler.record_function.__enter__.__module__,
    }


def recorded_regions() -> list[str]:
    """What is opened, `(name`, and closed, `)name`, and where a recording begins, `+`, and ends, `-`."""
    happened: list[str] = []

    def noted(owner: type, name: str, word: str) -> None:
        does = getattr(owner, name)

        def note(self: Any, *args: Any, **kwargs: Any) -> Any:
            happened.append(word + getattr(self, "name", ""))
            return does(self, *args, **kwargs)

        note.__module__ = "seen"
        setattr(owner, name, note)

    noted(torch.autograd.profiler.record_function, "__enter__", "(")
    noted(torch.autograd.profiler.record_function, "__exit__", ")")
    noted(torch.profiler.profile, "start_trace", "+")
    noted(torch.profiler.profile, "stop_trace", "-")
    return happened


def open_at_beginnings(happened: list[str]) -> list[str]:
    """Regions that were open, recorded, when a recording ended, and still open when the next one began."""
    opened: list[str] = []
    left_open: list[str] = []
    found: list[str] = []
    is_recording = False
    for word in happened:
        if word[0] == "+":
            found += left_open
            opened, is_recording = [], True
        elif word[0] == "-":
            left_open, is_recording = opened, False
        elif word[0] == "(" and is_recording:
            opened.append(word[1:])
        elif word[0] == ")":
            for names in (opened, left_open):
                if word[1:] in names:
                    names.remove(word[1:])
    return found


DEFAULT, WAITS = Schedule(0, 1, 3, 2), Schedule(2, 1, 1, 1)
CASES: dict[str, tuple[Step, int, Schedule, list[list[int]]]] = {
    "one step": (usual_step, 1, DEFAULT, [[1]]),
    "two steps": (usual_step, 2, DEFAULT, [[2]]),
    "all of it": (usual_step, 9, DEFAULT, [[2, 3, 4], [6, 7, 8]]),
    "a step in a region": (step_in_a_region, 3, DEFAULT, [[2, 3]]),
    "a region that stays open": (step_that_leaves_a_region_open, 5, DEFAULT, [[4, 5]]),
    "a region that stays open, and few steps": (step_that_leaves_a_region_open, 2, DEFAULT, [[1]]),
    "a schedule that waits": (usual_step, 2, WAITS, [[1]]),
    "a schedule that waits, and long enough": (usual_step, 5, WAITS, [[4]]),
    "a step that fails": (step_that_fails, 1, DEFAULT, [[1]]),
    "what a profiler would keep": (functional_step, 1, DEFAULT, []),
    "what a profiler would keep, and another step": (functional_step, 3, DEFAULT, [[2, 3]]),
    "compiled": (compiled_step, 1, DEFAULT, []),
    "compiled, and another step": (compiled_step, 3, DEFAULT, [[2, 3]]),
}


QUICK = {"one step", "all of it", "a region that stays open", "what a profiler would keep, and another step"}


@pytest.mark.parametrize("case", by_default(CASES, QUICK))
def test_the_first_step_is_recorded_until_another_one_has_been(case: str, tmp_path: Path) -> None:
    step, num_steps, schedule, steps = CASES[case]
    found = value_in_fresh_process(steps_found, step, num_steps, str(tmp_path), schedule)
    assert [of_cycle for of_cycle in found["steps"] if of_cycle] == steps
    assert (found["fault"], found["patched"]) == ("None", "seen")
    assert found["open"] == ["from the first step on"] * (step is step_that_leaves_a_region_open)
    if steps:
        name, phase = found["peak"]
        assert name in [f"ProfilerStep#{number - 1}" for number in itertools.chain(*steps)]
        assert phase == "optimizer" or num_steps > 2 or case == "a step that fails"
        assert not found["sum"]
