"""The models and optimizers of a training: the ones that somebody named, and optimizers that were seen stepping.

All of them are held weakly: a program that replaces its model or its optimizer frees the old one as it does unwatched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import itemgetter

import torch
from torch import Tensor, nn

from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.parameter_origins import calling_line, lines_of, own_line
from tracer.capture.objects.storage_observer import model_tensors, optimizer_tensors
from tracer.capture.objects.weak_references import WeakReference, alive, weak_reference
from tracer.capture.sources.compiled_code import without_wrappers
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_private import torch_compile, torch_graph, torch_modules
from tracer.errors import TracerError
from tracer.units import some

Models = nn.Module | Mapping[str, nn.Module] | None
Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None


class _Model:
    def __init__(self, model: nn.Module) -> None:
        self.reference = weak_reference(model)
        self._children = {name: _Model(child) for name, child in torch_modules.child_modules(model).items()}

    def left(self, name: str) -> Iterator[tuple[str, _Model]]:
        """Return the model by its name, or else the outermost of its modules that exist; a single one has the name."""
        if self.reference() is not None:
            yield name, self
            return
        inside = [left for part, child in self._children.items() for left in child.left(part)]
        for part, model in inside:
            yield (name if len(inside) == 1 else f"{name}.{part}" if name else part), model


class TrainingObjects:
    """Models by name, and the optimizers that update them or parameters of their own.

    A single model's names are its own, as `layer1.weight`; of several, each begins with the model's, as
    `student.layer1.weight`. None of them is kept alive.
    """

    def __init__(self, models: Models, optimizers: Optimizers = None) -> None:
        """Keep weak references to models and optimizers.

        Args:
            models: One, or several by name; None where tensors in no module are trained.

        Raises:
            TracerError: A mapping has a value that is no module, or there is neither a model nor an optimizer.
        """
        given = dict(models) if isinstance(models, Mapping) else {} if models is None else {"": models}
        by_name: dict[str, nn.Module] = {name: torch_compile.unwrapped(model) for name, model in given.items()}
        for name, model in by_name.items():
            if not isinstance(model, nn.Module):
                raise TracerError(
                    f"{name or 'The model'} is of type {type(model).__name__}, which is no torch.nn.Module.",
                    hint='Pass a module, or several by name: {"student": student, "teacher": teacher}.',
                )
        is_one = optimizers is not None and hasattr(optimizers, "step")
        named: list[torch.optim.Optimizer] = [optimizers] if is_one else list(optimizers or ())  # type: ignore[arg-type, list-item]
        if not by_name and not named:
            raise TracerError(
                "There is neither a model nor an optimizer.",
                hint='Pass a module, {"name": module}, or None and the optimizer of the tensors that are trained.',
            )
        self._models = {name: _Model(model) for name, model in by_name.items()}
        self._optimizers: dict[int, WeakReference[torch.optim.Optimizer]] = {
            id(optimizer): weak_reference(optimizer) for optimizer in named
        }
        # Where each made its first step, by `id()`, of those that had no state yet.
        self._first_steps: dict[int, SourceLine] = {}
        # Names by `id()`, in the models' order, and the parameters' ids level by level: as long as these are the same,
        # the names are.
        self._names: dict[int, str] = {}
        self._ids: list[int] | None = None
        # Of optimizers with parameters that are in no model, all of their parameters.
        self._strangers: dict[int, list[int]] = {}
        self._are_checked = False

    @property
    def models(self) -> dict[str, nn.Module]:
        """Models that still exist, by name; "" is the name of a single one.

        In the place of one that is gone are the modules that were in it and still exist: a library may call a program's
        model in a wrapper of its own, made for one call.
        """
        if any(model.reference() is None for model in self._models.values()):
            self._models = dict(chain.from_iterable(model.left(name) for name, model in self._models.items()))
        references = ((name, model.reference()) for name, model in self._models.items())
        return {name: model for name, model in references if model is not None}

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers that still exist: first the named ones, then those that were seen stepping."""
        return alive(self._optimizers.values())

    def saw_stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember an optimizer that nobody named, for as long as it lives."""
        known = self._optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:  # another one may have had this `id()`
            self._optimizers.pop(id(optimizer), None)
            self._optimizers[id(optimizer)] = weak_reference(optimizer)
            self._first_steps.pop(id(optimizer), None)
        if id(optimizer) not in self._first_steps and not optimizer.state and (line := calling_line()) is not None:
            self._first_steps[id(optimizer)] = line

    def lines(self) -> dict[str, SourceLine]:
        """The user's lines that made parameters, buffers and optimizer state, by the names that `tensors` gives."""
        lines: dict[str, SourceLine] = {}
        for prefix, model in self.models.items():
            for name, tensor in chain(model.named_parameters(), model.named_buffers()):
                if (line := own_line(lines_of(model, name, tensor))) is not None:
                    shown = without_wrappers(name)
                    lines.setdefault(f"{prefix}.{shown}" if prefix else shown, line)
        for optimizer in self.optimizers:
            if (line := self._first_steps.get(id(optimizer))) is not None:
                lines |= dict.fromkeys((name for _, name, _ in self.state_of(optimizer)), line)
        return lines

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

    def trained(self) -> list[tuple[str, Tensor]]:
        """The models' parameters of now that want a gradient, by dotted name.

        The same as from `parameters`, without a call of Python's for each, which a profiler would record.
        """
        return [(name, parameter) for name, parameter in self.parameters_of_now() if parameter.requires_grad]

    def parameters_of_now(self) -> list[tuple[str, Tensor]]:
        """Return what `parameters` does, with each parameter looked up again, without a Python call for each."""
        by_id = self._check_names()
        if by_id is None:
            return list(self.parameters())
        return [(name, by_id[number]) for number, name in self._names.items()]

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, Tensor]]:
        """An optimizer's parameters with their names; one of no model is named after optimizer and position.

        This is asked at every step of every optimizer, of which there may be one for each parameter: names are looked
        up anew only where the models' parameters are others than before, and that is looked at once in a step.
        """
        if not self._are_checked:
            self._check_names()
        tensors = list(chain.from_iterable(map(itemgetter("params"), getattr(optimizer, "param_groups", ()))))
        ids = list(map(id, tensors))
        if not self._names.keys() >= set(ids) and self._strangers.get(id(optimizer)) != ids:
            self._check_names()
            self._strangers[id(optimizer)] = ids
        names, kind = self._names, type(optimizer).__name__
        return [  # without a call: see storage_columns.py
            (names[number] if number in names else f"{kind}.{index}", tensor)  # noqa: SIM401
            for index, (number, tensor) in enumerate(zip(ids, tensors, strict=True))
        ]

    def updates_of_others(self) -> tuple[str, ...]:
        """A sentence on each optimizer that updates no parameter of the models, and these have some to train."""
        own = {id(parameter): parameter for _, parameter in self.parameters()}
        if not any(parameter.requires_grad for parameter in own.values()):
            return ()
        updated = [
            (
                optimizer,
                {id(parameter) for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]},
            )
            for optimizer in self.optimizers
        ]
        return tuple(
            f"{type(optimizer).__name__} updates none of the {some(len(own), 'parameter')} of the model. Make it of "
            "model.parameters(), behind whatever replaces these, or name the model that it updates."
            for optimizer, ids in updated
            if ids and not ids & own.keys()
        )

    def _check_names(self) -> dict[int, nn.Parameter] | None:
        """Have the names be those of the models' parameters of now; returned by `id()`, if that can be had at once."""
        self._are_checked = True
        by_id = torch_modules.parameters_by_id(self.models.values())
        if by_id is None or self._ids != list(by_id):
            self._names = {id(parameter): name for name, parameter in self.parameters()}
            self._strangers.clear()
            is_whole = by_id is not None and by_id.keys() == self._names.keys()
            self._ids = list(by_id) if by_id is not None and is_whole else None
        return by_id if self._ids is not None else None

    def forget_names(self) -> None:
        """Look at names anew: a loop may have replaced its parameters, and another may have got the same `id()`."""
        self._are_checked = False

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
                if (gradient := torch_graph.gradient_of(parameter)) is not None:
                    yield Role.GRADIENT, name, gradient
            yield from self.state_of(optimizer)

    def state_of(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[Role, str, Tensor]]:
        """An optimizer's state, named after its parameters."""
        return optimizer_tensors(optimizer, {id(parameter): name for name, parameter in self.parameters_of(optimizer)})
