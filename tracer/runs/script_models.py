"""The models and optimizers that are alive in somebody's script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn

from tracer.capture.objects.live_tensors import objects_of
from tracer.capture.objects.variables import variables_of
from tracer.capture.torch_private import torch_compile, torch_modules


def trained_alive(module: nn.Module | None) -> tuple[list[torch.optim.Optimizer], set[int], list[nn.Module]]:
    """Optimizers, `id()` of the parameters that they update, and the models that have some or are being called."""
    optimizers: list[torch.optim.Optimizer] = objects_of((torch.optim.Optimizer,))
    trained = {
        id(parameter) for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]
    }
    models = [model for model in _outermost_alive() if model is module or _holds(model, module, trained)]
    return optimizers, trained, models


def callable_alive(module: nn.Module | None) -> list[nn.Module]:
    """Models that can be called for an answer: a loss or a layer of its own is none; what is called is one."""
    return [model for model in _outermost_alive() if model is module or any(True for _ in model.parameters())]


def _outermost_alive() -> list[nn.Module]:
    """Modules that are in no other."""
    modules = [model for model in objects_of((nn.Module,)) if not torch_compile.is_graph_of_compiler(model)]
    inner = {id(child) for module in modules for child in torch_modules.child_modules(module).values()}
    return [module for module in modules if id(module) not in inner]


def _holds(model: nn.Module, module: nn.Module | None, trained: set[int]) -> bool:
    """Whether a model has a module inside, or parameters that an optimizer updates."""
    return any(child is module for child in model.modules()) or any(
        id(parameter) in trained for parameter in model.parameters()
    )


def named(models: Sequence[nn.Module]) -> dict[str, nn.Module]:
    """Models by their class's name; one alone needs no name.

    Where several have it, each goes by the variable that holds it, or else by a number behind the class's name.
    """
    if len(models) == 1:
        return {"": models[0]}
    kinds = Counter(type(model).__name__ for model in models)
    alike = [model for model in models if kinds[type(model).__name__] > 1]
    variables = _variables_that_hold(alike) if alike else {}
    names: dict[str, nn.Module] = {}
    for model in models:
        name = kind = variables.get(id(model), type(model).__name__)
        number = 1
        while name in names:
            number += 1
            name = f"{kind}_{number}"
        names[name] = model
    return names


def _variables_that_hold(models: Sequence[nn.Module]) -> dict[int, str]:
    """Names of the script's variables by `id()` of their model: a global one, or else of the outermost function."""
    of_locals, _, modules = variables_of(None)
    wanted = {id(model) for model in models}
    names: dict[int, str] = {}
    for _, variables in modules.values():
        names = {id(value): name for name, value in list(variables.items()) if id(value) in wanted} | names
    for number in wanted - names.keys():
        of_users = (root.name for root in of_locals.get(number, ()) if root.is_users)
        name = next((name for name in of_users if name.isidentifier() and name != "self"), None)
        if name is not None:
            names[number] = name
    return names
