"""The models and optimizers that are alive in somebody's script."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tracer.capture.objects.live_tensors import objects_of
from tracer.capture.objects.model_names import names_of
from tracer.capture.torch_private import torch_compile, torch_modules


def trained_alive(module: nn.Module | None) -> tuple[list[torch.optim.Optimizer], set[int], list[nn.Module]]:
    """Optimizers, `id()` of the parameters that they update, and the models that have some or are being called."""
    alive: list[torch.optim.Optimizer] = objects_of((torch.optim.Optimizer,))
    optimizers = [optimizer for optimizer in alive if hasattr(optimizer, "param_groups")]  # some wrappers have none
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
    """Models by their names; one needs none, unless the program has another of its class that has parameters, too."""
    given = {id(model) for model in models}
    kinds = {type(model) for model in models}
    alike = [model for model in _outermost_alive() if type(model) in kinds and id(model) not in given]
    alike = [model for model in alike if any(True for _ in model.parameters())]
    if len(models) == 1 and not alike:
        return {"": models[0]}
    names = names_of((*models, *alike))
    return {names[id(model)]: model for model in models}
