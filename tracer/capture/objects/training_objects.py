"""The models and optimizers of a training: the ones that somebody named, and optimizers that were seen stepping."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from tracer.capture import torch_private
from tracer.capture.objects.known_storages import Role, model_tensors, optimizer_tensors
from tracer.capture.sources.compiled_code import without_wrappers
from tracer.errors import TracerError

Models = nn.Module | Mapping[str, nn.Module] | None
Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None


class TrainingObjects:
    """Models by name, and the optimizers that update them or parameters of their own.

    A single model's names are its own, as `layer1.weight`; of several, each begins with the model's, as
    `student.layer1.weight`. Optimizers that were only seen stepping are not kept alive.

    Attributes:
        models: By name; "" is the name of a single one.
    """

    def __init__(self, models: Models, optimizers: Optimizers = None) -> None:
        """Remember them.

        Args:
            models: One, or several by name; None where tensors in no module are trained.
            optimizers: One, several or none.

        Raises:
            TracerError: A mapping holds what is no module, or there is neither a model nor an optimizer.
        """
        given = dict(models) if isinstance(models, Mapping) else {} if models is None else {"": models}
        self.models: dict[str, nn.Module] = {name: torch_private.unwrapped(model) for name, model in given.items()}
        for name, model in self.models.items():
            if not isinstance(model, nn.Module):
                raise TracerError(
                    f"{name or 'The model'} is of type {type(model).__name__}, which is no torch.nn.Module.",
                    hint='Pass a module, or several by name: {"student": student, "teacher": teacher}.',
                )
        is_one = optimizers is not None and hasattr(optimizers, "step")
        self._named: list[torch.optim.Optimizer] = [optimizers] if is_one else list(optimizers or ())  # type: ignore[arg-type, list-item]
        if not self.models and not self._named:
            raise TracerError(
                "There is neither a model nor an optimizer.",
                hint='Pass a module, {"name": module}, or None and the optimizer of the tensors that are trained.',
            )
        self._seen: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._names: dict[int, str] = {}

    @property
    def first_model(self) -> nn.Module | None:
        """The first of the models; None where there is none."""
        return next(iter(self.models.values()), None)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that were named, then those that were seen stepping and are still there."""
        seen = (reference() for reference in self._seen.values())
        return [*self._named, *(each for each in seen if each is not None)]

    def saw_stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember an optimizer that nobody named, for as long as it lives."""
        if id(optimizer) not in self._seen and not any(optimizer is named for named in self._named):
            self._seen[id(optimizer)] = weakref.ref(optimizer)

    def module_names(self) -> dict[int, str]:
        """Dotted names of all modules by `id()`; a single model itself is ""."""
        return {
            id(module): ".".join(part for part in (prefix, without_wrappers(name)) if part)
            for prefix, model in self.models.items()
            for name, module in model.named_modules()
        }

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The models' parameters by dotted name; one that several models share once, under the first of its names."""
        seen: set[int] = set()
        for prefix, model in self.models.items():
            for name, parameter in model.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    name = without_wrappers(name)
                    yield (f"{prefix}.{name}" if prefix else name), parameter

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, Tensor]]:
        """An optimizer's parameters with their names; one of no model is named after optimizer and position.

        The names are looked up anew only where one is missing: this is asked at every step of every optimizer, of which
        there may be one for each parameter.
        """
        groups = getattr(optimizer, "param_groups", ())
        tensors = [one for group in groups for one in group["params"]]
        if any(id(one) not in self._names for one in tensors):
            self._names = {id(parameter): name for name, parameter in self.parameters()}
            kind = type(optimizer).__name__
            for index, one in enumerate(tensors):
                self._names.setdefault(id(one), f"{kind}.{index}")
        return [(self._names[id(one)], one) for one in tensors]

    def forget_names(self) -> None:
        """Look names up anew: a loop may have replaced its parameters, and another may have got the same `id()`."""
        self._names.clear()

    def tensors(self) -> Iterator[tuple[Role, str, Tensor]]:
        """Parameters, gradients and buffers of the models, what optimizers update beside them, then their state."""
        for prefix, model in self.models.items():
            for role, name, tensor in model_tensors(model):
                name = without_wrappers(name)
                yield role, (f"{prefix}.{name}" if prefix else name), tensor
        for optimizer in self.optimizers:
            named = self.parameters_of(optimizer)
            for name, parameter in named:
                yield Role.PARAMETER, name, parameter
                if parameter.grad is not None:
                    yield Role.GRADIENT, name, parameter.grad
            yield from optimizer_tensors(optimizer, {id(parameter): name for name, parameter in named})
