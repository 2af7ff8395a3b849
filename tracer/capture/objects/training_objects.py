"""The models and optimizers of a training: the ones that somebody named, and optimizers that were seen stepping.

All of them are held weakly: a program that replaces its model or its optimizer frees the old one as it does unwatched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from tracer.capture import torch_private
from tracer.capture.objects.known_storages import Role, model_tensors, optimizer_tensors
from tracer.capture.objects.weak_references import WeakReference, alive, weak_reference
from tracer.capture.sources.compiled_code import without_wrappers
from tracer.errors import TracerError

Models = nn.Module | Mapping[str, nn.Module]
Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None


class TrainingObjects:
    """Models by name, and the optimizers that update them or parameters of their own.

    A single model's names are its own, as `layer1.weight`; of several, each begins with the model's, as
    `student.layer1.weight`. None of them is kept alive.
    """

    def __init__(self, models: Models, optimizers: Optimizers = None) -> None:
        """Remember them.

        Args:
            models: One, or several by name.
            optimizers: One, several or none.

        Raises:
            TracerError: A mapping holds what is no module, or none at all.
        """
        given = dict(models) if isinstance(models, Mapping) else {"": models}
        by_name: dict[str, nn.Module] = {name: torch_private.unwrapped(model) for name, model in given.items()}
        for name, model in by_name.items():
            if not isinstance(model, nn.Module):
                raise TracerError(
                    f"{name or 'The model'} is of type {type(model).__name__}, which is no torch.nn.Module.",
                    hint='Pass a module, or several by name: {"student": student, "teacher": teacher}.',
                )
        if not by_name:
            raise TracerError("There is no model in the mapping.", hint='Pass {"name": module}, or a module.')
        is_one = optimizers is not None and hasattr(optimizers, "step")
        named: list[torch.optim.Optimizer] = [optimizers] if is_one else list(optimizers or ())  # type: ignore[arg-type, list-item]
        self._models = {name: weak_reference(model) for name, model in by_name.items()}
        self._optimizers: dict[int, WeakReference[torch.optim.Optimizer]] = {
            id(optimizer): weak_reference(optimizer) for optimizer in named
        }
        self._names: dict[int, str] = {}

    @property
    def models(self) -> dict[str, nn.Module]:
        """Those that are still there, by name; "" is the name of a single one."""
        found = ((name, reference()) for name, reference in self._models.items())
        return {name: model for name, model in found if model is not None}

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that were named, then those that were seen stepping, as far as they are still there."""
        return alive(self._optimizers.values())

    def saw_stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember an optimizer that nobody named, for as long as it lives."""
        known = self._optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:  # another one may have had this `id()`
            self._optimizers.pop(id(optimizer), None)
            self._optimizers[id(optimizer)] = weak_reference(optimizer)

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
