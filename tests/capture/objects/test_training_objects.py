"""The models and optimizers of a session, and where their parameters come from."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training_steps import recorded_workload
from tracer.capture.objects.parameter_origins import ParameterOrigins, describe_parameters, lines_of
from tracer.capture.objects.training_objects import TrainingObjects
from tracer.capture.sources.source_files import project_root
from tracer.errors import TracerError

# ---- Models by name and optimizers that were named or seen: what they hold, under which names, and that nothing stays.


def named(objects: TrainingObjects) -> set[tuple[str, str]]:
    return {(role.name, name) for role, name, _ in objects.tensors()}


def test_a_single_models_names_are_its_own_and_several_begin_with_theirs() -> None:
    one, other = nn.Sequential(nn.Linear(2, 2)), nn.BatchNorm1d(2)
    assert [name for name, _ in TrainingObjects(one).parameters()] == ["0.weight", "0.bias"]
    objects = TrainingObjects({"student": one, "teacher": other})
    assert [name for name, _ in objects.parameters()] == [
        "student.0.weight",
        "student.0.bias",
        "teacher.weight",
        "teacher.bias",
    ]
    assert ("BUFFER", "teacher.running_mean") in named(objects)
    names = objects.module_names()
    assert (names[id(one)], names[id(one[0])], names[id(other)]) == ("student", "student.0", "teacher")
    assert TrainingObjects(one).module_names()[id(one)] == ""


def test_a_weight_that_two_models_share_comes_once_under_its_first_name() -> None:
    one, other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    other.weight = one.weight
    assert [name for name, _ in TrainingObjects({"a": one, "b": other}).parameters()] == ["a.weight"]


def test_state_is_named_after_its_parameter_and_what_is_in_no_model_after_its_optimizer() -> None:
    model, alone = nn.Linear(2, 2, bias=False), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*model.parameters(), alone], 0.1, momentum=0.9)
    alone.grad, model.weight.grad = torch.ones(3), torch.ones(2, 2)
    optimizer.step()
    assert named(TrainingObjects(model, optimizer)) == {
        ("PARAMETER", "weight"),
        ("GRADIENT", "weight"),
        ("OPTIMIZER_STATE", "weight.momentum_buffer"),
        ("PARAMETER", "SGD.1"),
        ("GRADIENT", "SGD.1"),
        ("OPTIMIZER_STATE", "SGD.1.momentum_buffer"),
    }


def test_names_follow_parameters_that_a_loop_replaces() -> None:
    model = nn.Linear(2, 2, bias=False)
    objects = TrainingObjects(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert [name for name, _ in objects.parameters_of(optimizer)] == ["weight"]
    model.weight = nn.Parameter(torch.ones(2, 2))
    optimizer.param_groups[0]["params"] = [model.weight]
    assert [name for name, _ in objects.parameters_of(optimizer)] == ["weight"]


def test_names_are_looked_up_once_for_many_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each parameter, which step inside backward: looking up all names in each would be quadratic."""
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(20)))
    objects = TrainingObjects(model)
    lookups: list[None] = []
    found = objects.parameters
    monkeypatch.setattr(objects, "parameters", lambda: lookups.append(None) or found())
    for parameter in model.parameters():
        objects.parameters_of(torch.optim.SGD([parameter], 0.1))
    assert len(lookups) == 1


def test_parameters_of_no_model_do_not_have_all_names_looked_up_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    objects, alone = TrainingObjects(nn.Linear(1, 1)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([alone], 0.1)
    lookups: list[None] = []
    found = objects.parameters
    monkeypatch.setattr(objects, "parameters", lambda: lookups.append(None) or found())
    for _ in range(3):
        assert [name for name, _ in objects.parameters_of(optimizer)] == ["SGD.0"]
        objects.forget_names()
    assert len(lookups) == 1


def test_what_is_trained_is_what_the_models_have_now() -> None:
    """Replaced, frozen, in a module that is in two places, and in a script, whose modules are elsewhere."""
    shared = nn.Linear(2, 2, bias=False)
    model = nn.Sequential(shared, nn.Linear(2, 1), shared)
    objects = TrainingObjects(model)
    assert [name for name, _ in objects.trained()] == ["0.weight", "1.weight", "1.bias"]
    model[1] = nn.Linear(2, 3, bias=False)
    shared.weight.requires_grad_(False)
    (pair,) = objects.trained()
    assert pair[0] == "1.weight" and pair[1] is model[1].weight
    scripted = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    assert [name for name, _ in TrainingObjects(scripted).trained()] == ["weight", "bias"]


def test_a_parameter_that_is_no_leaf_is_not_asked_for_its_gradient() -> None:
    """To ask makes torch warn, once in a process, and only where somebody watches."""
    model = nn.Linear(2, 2, bias=False)
    updated = model.weight - 0.1
    del model.weight
    model._parameters["weight"] = updated  # type: ignore[assignment] # as a functional update of the weights leaves it
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
    optimizer.param_groups[0]["params"] = [updated]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.set_warn_always(True)
        try:
            assert named(TrainingObjects(model, optimizer)) == {("PARAMETER", "weight")}
        finally:
            torch.set_warn_always(False)


def test_models_and_optimizers_are_known_and_not_kept_alive() -> None:
    model = nn.Linear(2, 2)
    mine, seen = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
    objects = TrainingObjects(model, [mine])
    for optimizer in (mine, seen, seen):
        objects.saw_stepping(optimizer)
    assert objects.optimizers == [mine, seen]
    references = weakref.ref(seen), weakref.ref(mine), weakref.ref(model)
    del seen, optimizer
    gc.collect()
    assert references[0]() is None
    assert objects.optimizers == [mine]
    del mine, model
    gc.collect()
    assert [one() for one in references] == [None] * 3
    assert (objects.optimizers, objects.models) == ([], {})


class _WithSlots:
    __slots__ = ("param_groups", "state", "step")


def test_what_takes_no_weak_reference_is_known_all_the_same() -> None:
    optimizer: Any = _WithSlots()
    optimizer.step = print  # what makes it one
    assert TrainingObjects(nn.Linear(2, 2), optimizer).optimizers == [optimizer]


@pytest.mark.parametrize("models", [{}, {"student": "no module"}, Tensor])
def test_what_is_no_model_is_refused_in_a_sentence(models: object) -> None:
    with pytest.raises(TracerError) as caught:
        TrainingObjects(models)  # type: ignore[arg-type]
    assert caught.value.hint


class Wrapper(nn.Module):
    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


def test_a_model_that_was_called_in_a_wrapper_keeps_its_names_without_it() -> None:
    """As solvers of differential equations call it, in two wrappers made for each call."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    objects = TrainingObjects(Wrapper(outer=Wrapper(inner=model)))
    optimizer = torch.optim.SGD(model.parameters())
    gc.collect()
    assert objects.models == {"": model}
    assert [name for name, _ in objects.parameters_of(optimizer)] == ["0.weight"]
    assert objects.module_names()[id(model[0])] == "0"


def test_of_several_modules_of_a_model_that_is_gone_each_has_its_name() -> None:
    encoder, decoder = nn.Linear(2, 2), nn.Linear(2, 2)
    objects = TrainingObjects({"vae": Wrapper(encoder=encoder, decoder=decoder, other=nn.Linear(2, 2))})
    gc.collect()
    assert objects.models == {"vae.encoder": encoder, "vae.decoder": decoder}


# ---------------------------------------------------------------------------------------------------- parameter origins
def test_a_loss_without_weights_has_a_buffer_that_is_none() -> None:
    with ParameterOrigins():
        criterion, model = nn.CrossEntropyLoss(), nn.BatchNorm1d(4)
    assert criterion.weight is None
    (line, *_) = lines_of(model, "running_mean", model.running_mean) if model.running_mean is not None else ()
    assert line.file == __file__


# ---- Lines that made a model's parameters, of models built under watch and of models that exist.

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
