"""Optimizer state of an unchanged script that has another form between steps, and in them its own, a part at a time."""

from __future__ import annotations

import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tracer.capture.torch_private.torch_modules import STEP_HOOKS
from tracer.changes.hooks import Hooks

NO_STATE = "no optimizer has state in float32 that another change has not moved."
_STEP_BY_PARAMETER = (
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
)
"""Each parameter's update depends on that parameter alone, so that it makes no difference which step together."""


class StateBetweenSteps(Hooks, ABC):
    """The state of optimizers has its own form during their steps alone, and of torch's own a part at a time.

    Counts the tensors that have got the other form.
    """

    note = NO_STATE
    part_bytes = 1 << 28
    """Parameters that step together: their state has its own form at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self._places: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[tuple[int, str], Tensor]]
        self._places = weakref.WeakKeyDictionary()
        self._made_steps = MadeSteps()

    @abstractmethod
    def is_worthwhile(self, value: Tensor) -> bool:
        """Whether a tensor of the state gets the other form."""

    @abstractmethod
    def put_away(self, value: Tensor, place: Tensor | None) -> Tensor:
        """The other form of a tensor, which itself is not needed any more.

        Args:
            place: Memory for it, from the last time; None for new memory.
        """

    @abstractmethod
    def brought_back(self, place: Tensor, device: torch.device) -> Tensor:
        """A tensor in its own form again, for parameters on a device."""

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Give the state its own form; or make the whole step, a part of the parameters at a time.

        Args:
            optimizer: About to step. If the step has been made, it has no parameters until `after_step`.
        """
        if optimizer in STAND_INS:
            return
        own = self._made_steps.begin(optimizer)
        if not _can_step_in_parts(optimizer, (*args[1:], *kwargs.values())):
            self._bring_back(optimizer, _parameters(own))
            return
        step = inspect.unwrap(type(optimizer).step, stop=lambda step: not hasattr(step, "hooked"))
        try:
            for part in _parts(own, self.part_bytes):
                optimizer.param_groups = [part]
                self._bring_back(optimizer, part["params"])
                step(optimizer)
                self._put_away(optimizer, part["params"])
        finally:
            optimizer.param_groups = own
        self._made_steps.made(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Give the state the other form, in the same memory each time."""
        if not self._made_steps.end(optimizer) and optimizer not in STAND_INS:
            self._put_away(optimizer, _parameters(optimizer.param_groups))

    def _bring_back(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
        places = self._places.get(optimizer, {})
        for parameter, values in _states(optimizer, parameters):
            for name, value in values.items():
                place = places.get((id(parameter), name))
                if place is not None and value is place:
                    values[name] = self.brought_back(place, parameter.device)

    def _put_away(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
        places = self._places.setdefault(optimizer, {})
        for parameter, values in _states(optimizer, parameters):
            for name, value in values.items():
                place = places.get((id(parameter), name))
                if not isinstance(value, Tensor) or value is place or not self.is_worthwhile(value):
                    continue
                if place is not None and place.shape != value.shape:
                    place = None
                self.num_made += place is None
                values[name] = places[id(parameter), name] = self.put_away(value, place)


def _can_step_in_parts(optimizer: torch.optim.Optimizer, arguments: Sequence[Any]) -> bool:
    """Whether nobody sees that it does: a closure or a hook of its own, which comes behind ours, would."""
    has_hooks = bool(getattr(optimizer, STEP_HOOKS[0], None))
    return type(optimizer) in _STEP_BY_PARAMETER and not has_hooks and all(value is None for value in arguments)


def _parameters(groups: Sequence[dict[str, Any]]) -> list[Tensor]:
    return [parameter for group in groups for parameter in group["params"]]


def _parts(groups: Sequence[dict[str, Any]], most_bytes: int) -> Iterator[dict[str, Any]]:
    for group in groups:
        part: list[Tensor] = []
        num_bytes = 0
        for parameter in group["params"]:
            if part and num_bytes + parameter.nbytes > most_bytes:
                yield {**group, "params": part}
                part, num_bytes = [], 0
            part.append(parameter)
            num_bytes += parameter.nbytes
        if part:
            yield {**group, "params": part}


def _states(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> list[tuple[Tensor, dict[str, Any]]]:
    known = [(parameter, optimizer.state.get(parameter)) for parameter in parameters]
    return [(parameter, values) for parameter, values in known if isinstance(values, dict)]


STAND_INS: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""Optimizers that make the steps of others, which have the state; changes of optimizers leave them alone."""


class MadeSteps:
    """Keeps the parameter groups of optimizers from the hook before their step to the one behind it."""

    def __init__(self) -> None:
        self._own: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[dict[str, Any]]]
        self._own = weakref.WeakKeyDictionary()

    def begin(self, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        """A step begins: its groups, which it gets back if a hook after the last `made` raised."""
        self.end(optimizer)
        return optimizer.param_groups

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """The step is made: the groups are without parameters until `end`."""
        own = self._own[optimizer] = optimizer.param_groups
        optimizer.param_groups = [{**group, "params": []} for group in own]

    def end(self, optimizer: torch.optim.Optimizer) -> bool:
        """It has its parameters again; whether they were kept here."""
        own = self._own.pop(optimizer, None)
        if own is not None:
            optimizer.param_groups = own
        return own is not None
