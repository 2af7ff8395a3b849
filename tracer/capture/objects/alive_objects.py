"""Find the optimizers and models of a program that nobody has named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tracer.capture.objects.live_tensors import objects_of
from tracer.capture.objects.model_names import names_of
from tracer.capture.torch_private import torch_compile, torch_modules


class Alive:
    """Optimizers and models that are there now, found in one look at all that Python holds."""

    def __init__(self) -> None:
        objects: list[Any] = objects_of((torch.optim.Optimizer, nn.Module))
        optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
        # Some wrappers have no groups.
        self.optimizers = [optimizer for optimizer in optimizers if hasattr(optimizer, "param_groups")]
        modules = [each for each in objects if isinstance(each, nn.Module)]
        modules = [module for module in modules if not torch_compile.is_graph_of_compiler(module)]
        inner = {id(child) for module in modules for child in torch_modules.child_modules(module).values()}
        self._outermost = [module for module in modules if id(module) not in inner]

    def trained(self, module: nn.Module | None) -> tuple[set[int], list[nn.Module]]:
        """`id()` of the parameters that optimizers update, and the models that have some or are being called."""
        trained = {
            id(parameter)
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return trained, [model for model in self._outermost if model is module or _holds(model, module, trained)]

    def callable(self, module: nn.Module | None) -> list[nn.Module]:
        """Models that can be called for an answer: a loss or a layer of its own is none; what is called is one."""
        return [model for model in self._outermost if model is module or any(True for _ in model.parameters())]

    def named(self, models: Sequence[nn.Module]) -> dict[str, nn.Module]:
        """Models by their names; one needs none, unless the program has another of its class that has parameters."""
        given = {id(model) for model in models}
        kinds = {type(model) for model in models}
        alike = [model for model in self._outermost if type(model) in kinds and id(model) not in given]
        alike = [model for model in alike if any(True for _ in model.parameters())]
        if len(models) == 1 and not alike:
            return {"": models[0]}
        names = names_of((*models, *alike))
        return {names[id(model)]: model for model in models}


def _holds(model: nn.Module, module: nn.Module | None, trained: set[int]) -> bool:
    """True if a model has a module inside, or parameters that an optimizer updates."""
    return any(child is module for child in model.modules()) or any(
        id(parameter) in trained for parameter in model.parameters()
    )
