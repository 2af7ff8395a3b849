"""A step that an optimizer calls back has the phases of any other, whoever's optimizer it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training_steps import build_workload, record
from tracer.analysis.profiles.attribution import Phase, attribute
from tracer.analysis.profiles.closures import backward_calls, closure_calls
from tracer.analysis.profiles.findings import find_in_cycle
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import Recording
from tracer.runs.session import ProfileSession, Schedule

ONE_CYCLE = Schedule(num_wait_steps=0, num_warmup_steps=1, num_active_steps=2, num_repeats=1)


class Descent(torch.optim.Optimizer):
    """Somebody's own: `step` is not torch's code."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.mul(0.1))
        return loss


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "AdamW": torch.optim.AdamW,
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, max_iter=2),
    "LBFGS, strong Wolfe": lambda parameters: torch.optim.LBFGS(parameters, max_iter=2, line_search_fn="strong_wolfe"),
    "somebody's own": Descent,
}


def model_and_step(optimizer_of: Callable[[Any], torch.optim.Optimizer]) -> tuple[nn.Module, Any, Callable[[], None]]:
    """A closure that prepares its batch, zeroes, and whose backward holds most."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, 4))
    optimizer = optimizer_of(model.parameters())

    def step() -> None:
        images, labels = torch.randn(32, 3, 8, 8), torch.randint(0, 4, (32,))

        def closure() -> Tensor:
            target = F.one_hot(labels, 4).float()
            loss = F.cross_entropy(model(images.clamp(-1, 1)), target)
            optimizer.zero_grad()
            loss.backward()
            return loss

        optimizer.step(torch.enable_grad()(closure))  # type: ignore[arg-type]

    return model, optimizer, step


def recorded(step: Callable[[], None]) -> Recording:
    torch.set_num_threads(1)
    return read_recording(record(step, n_active=2)[0])


def phases_of(recording: Recording, op: str) -> set[str]:
    found = attribute(recording)
    named = [row for row, name in enumerate(recording.ops.name.tolist()) if recording.strings[name] == op]
    return {Phase(found.op_phase[row]).name for row in named if recording.ops.parent[row] < 0}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_a_closure_does_is_not_the_optimizers_work(name: str) -> None:
    _, _, step = model_and_step(OPTIMIZERS[name])
    recording = recorded(step)
    for op in ("aten::clamp", "aten::one_hot"):
        assert phases_of(recording, op) == {"OTHER"}
    assert phases_of(recording, "aten::conv2d") == {"FORWARD"}
    assert phases_of(recording, "autograd::engine::evaluate_function: ConvolutionBackward0") <= {"BACKWARD"}
    findings = find_in_cycle(recording, device="cpu")
    assert findings.peak.phase in ("forward", "backward")  # oneDNN's own memory decides which
    assert all(row.phase != "optimizer" for row in findings.peak.rows if row.op in ("aten::clamp", "aten::one_hot"))


def test_the_optimizers_own_work_stays_its_own() -> None:
    _, _, step = model_and_step(OPTIMIZERS["somebody's own"])
    assert phases_of(recorded(step), "aten::sub_") == {"OPTIMIZER"}
    _, _, step = model_and_step(OPTIMIZERS["LBFGS"])
    assert "OPTIMIZER" in phases_of(recorded(step), "aten::neg")


def test_each_backward_pass_has_its_closure() -> None:
    """LBFGS of `tests.training_steps` evaluates several times in a step; each evaluation is a call of its closure."""
    recording = recorded(build_workload("lbfgs").step)
    calls, closures = recording.calls, closure_calls(recording)
    names = {recording.strings[recording.frames.function[calls.function[row]]] for row in closures.tolist()}
    assert names == {"closure"}
    assert len(closures) == len(backward_calls(recording)) > 2


@pytest.mark.parametrize("name", ["zero_grad_at_start", "gradient_accumulation", "inference_mode"])
def test_a_loop_without_closure_has_none(name: str) -> None:
    assert not len(closure_calls(recorded(build_workload(name).step)))


# ---- stretches -------------------------------------------------------------------------------------------------------


# ---- gradients that are made during the optimizer's step -------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_are_judged_after_the_closure_ran(name: str) -> None:
    """Gradients are let go of after each step, so before the next one there are none."""
    model, optimizer, step = model_and_step(OPTIMIZERS[name])
    model.register_parameter("idle", nn.Parameter(torch.zeros(3)))
    optimizer.param_groups[0]["params"].append(model.idle)
    with ProfileSession(model, optimizer, schedule=ONE_CYCLE) as session:
        for _ in range(ONE_CYCLE.num_steps):
            step()
            optimizer.zero_grad()
            session.step()
    assert session.unused_parameters == ("idle",)


def test_without_a_closure_they_are_judged_before_the_optimizer_lets_go_of_them() -> None:
    class Forgetful(Descent):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    model = nn.Linear(4, 2)
    optimizer = Forgetful(model.parameters())
    with ProfileSession(model, optimizer, schedule=ONE_CYCLE) as session:
        for _ in range(ONE_CYCLE.num_steps):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            session.step()
    assert session.unused_parameters == ()
