"""Loops with more than one model or optimizer: whose memory it is, and who received a gradient."""

from __future__ import annotations

import copy
import gc
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracer import profile_training
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import TrainingProfile

SHORT = Schedule(1, 1, 2, 1)

pytestmark = pytest.mark.usefixtures("alone")


def run(session: TrainingProfile, step: Callable[[], object]) -> None:
    with session:
        for _ in range(SHORT.num_steps):
            step()
            session.step()


def by_category(folder: Path, prefix: str) -> Counter[str]:
    """Bytes by category of the rows whose name begins so."""
    found: Counter[str] = Counter()
    for row in json.loads((folder / "peak.json").read_text())["rows"]:
        if (row["name"] or "").startswith(prefix):
            found[row["category"]] += row["bytes"]
    return found


def bytes_of(tensors: object) -> int:
    return sum(each.nbytes for each in tensors)  # type: ignore[attr-defined]


def test_a_student_and_its_teacher_stand_under_their_names(tmp_path: Path) -> None:
    gc.collect()
    student = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters())

    def step() -> None:
        x = torch.randn(64, 16)
        with torch.no_grad():
            wanted = teacher(x)
        F.mse_loss(student(x), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    session = profile_training({"student": student, "teacher": teacher}, optimizer, save_dir=tmp_path, schedule=SHORT)
    run(session, step)
    weights = bytes_of(student.parameters())
    assert by_category(tmp_path, "student.")["PARAMETER"] == weights
    assert by_category(tmp_path, "student.")["OPTIMIZER_STATE"] == 2 * weights + 4 * len(list(student.parameters()))
    assert by_category(tmp_path, "teacher.") == {"PARAMETER": weights}
    assert session.results.unused_parameters == ()
    assert [each.name for each in session.results.parameters] == [
        f"{model}.{layer}.{what}" for model in ("student", "teacher") for layer in (0, 2) for what in ("weight", "bias")
    ]
    modules = {row["module"] for row in json.loads((tmp_path / "peak.json").read_text())["rows"]}
    assert "student.0" in modules


@pytest.mark.parametrize("named", ["both", "one", "none"])
def test_of_two_optimizers_each_is_judged_at_its_own_step(tmp_path: Path, named: str) -> None:
    """Gradients of one model are let go of before the other's optimizer steps; `idle` takes part in nothing."""
    gc.collect()
    g, d, idle = nn.Linear(16, 64), nn.Linear(64, 1), nn.Linear(3, 3)
    of_g = torch.optim.Adam([*g.parameters(), *idle.parameters()])
    of_d = torch.optim.Adam(d.parameters())

    def step() -> None:
        fake = g(torch.randn(8, 16))
        (F.softplus(-d(torch.randn(8, 64))).mean() + F.softplus(d(fake.detach())).mean()).backward()
        of_d.step()
        of_d.zero_grad()
        d.requires_grad_(False)
        F.softplus(-d(fake)).mean().backward()
        of_g.step()
        of_g.zero_grad()
        d.requires_grad_(True)

    model = nn.ModuleDict({"g": g, "d": d, "idle": idle})
    optimizers = {"both": [of_g, of_d], "one": of_d, "none": None}[named]
    session = profile_training(model, optimizers, save_dir=tmp_path, schedule=SHORT)  # type: ignore[arg-type]
    run(session, step)
    assert session.results.unused_parameters == ("idle.weight", "idle.bias")
    trained = bytes_of([*g.parameters(), *d.parameters()])
    state = sum(by_category(tmp_path, prefix)["OPTIMIZER_STATE"] for prefix in ("g.", "d."))
    assert state == 2 * trained + 4 * 4


def test_optimizers_that_step_inside_backward_are_all_seen(tmp_path: Path) -> None:
    gc.collect()
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizers = {one: torch.optim.Adam([one]) for one in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    session = profile_training(model, next(iter(optimizers.values())), save_dir=tmp_path, schedule=SHORT)
    run(session, lambda: model(torch.randn(16, 8)).square().mean().backward())
    assert session.results.unused_parameters == ()
    state = sum(by_category(tmp_path, f"{layer}.")["OPTIMIZER_STATE"] for layer in (0, 2))
    assert state == 2 * bytes_of(model.parameters()) + 4 * 4
    known = session.known
    gradients = {known.names[name] for name, role in zip(known.name, known.role, strict=True) if role == 2}
    assert gradients == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_parameters_that_are_in_no_model_are_named_after_their_optimizer(tmp_path: Path) -> None:
    gc.collect()
    model, prompt = nn.Linear(16, 4), nn.Parameter(torch.randn(64, 16))
    optimizer = torch.optim.SGD([*model.parameters(), prompt], 0.1, momentum=0.9)

    def step() -> None:
        model(prompt).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    run(profile_training(model, save_dir=tmp_path, schedule=SHORT), step)
    assert by_category(tmp_path, "SGD.2") == dict.fromkeys(("PARAMETER", "GRADIENT", "OPTIMIZER_STATE"), prompt.nbytes)
