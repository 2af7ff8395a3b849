"""Lines that made a model's parameters, of models built under watch and of models that exist."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.training_steps import recorded_workload
from tracer.capture.objects.parameter_origins import ParameterOrigins, describe_parameters
from tracer.capture.sources.source_files import project_root

ROOT = Path(__file__).resolve().parents[3]


def test_a_model_built_under_watch_knows_its_lines() -> None:
    with ParameterOrigins():
        model = nn.Sequential(
            nn.Linear(2, 3),
            nn.Linear(3, 1),
        )
        model[1].bias = model[0].bias
    parameters = describe_parameters(model)
    source = Path(__file__).read_text().splitlines()
    assert {p.name: source[p.lines[0].line - 1].strip() for p in parameters} == {
        "0.weight": "nn.Linear(2, 3),",
        "0.bias": "nn.Linear(2, 3),",  # shared: where it was made
        "1.weight": "nn.Linear(3, 1),",
    }
    weight = weakref.ref(model[0].weight)
    del model
    assert weight() is None


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(2, 2)])
        self.scale = nn.Parameter(torch.ones(1))
        self.register_parameter("hidden", nn.Parameter(torch.ones(1)))


def test_a_model_that_exists_is_searched_for_in_its_source() -> None:
    source = Path(__file__).read_text().splitlines()
    found = {p.name: [source[line.line - 1].strip() for line in p.lines] for p in describe_parameters(Net())}
    assert found["scale"] == ["self.scale = nn.Parameter(torch.ones(1))"]
    assert found["body.0.weight"] == ["self.body = nn.ModuleList([nn.Linear(2, 2)])"]
    assert found["hidden"] == ["class Net(nn.Module):"]


def test_the_root_is_the_folder_of_the_models_code() -> None:
    # This module is in `tests`, and `models.fno` was imported from the same folder.
    assert project_root(nn.Sequential(Net(), nn.ReLU())) == ROOT
    model = recorded_workload("fno_1d_new_zeros").workload.model
    assert model is not None
    assert project_root(model) == ROOT
    assert project_root(nn.Linear(1, 1)) == Path.cwd()


def test_watching_construction_changes_nothing() -> None:
    def made() -> tuple[Any, ...]:
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        loss: Callable[..., Any] = F.mse_loss
        return *map(float, model.weight.detach().flatten()), float(loss(model(torch.ones(1, 3)), torch.ones(1, 3)))

    plain = made()
    with ParameterOrigins():
        watched = made()
    assert plain == watched
