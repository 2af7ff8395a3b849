"""Adam's state in 8 bits: its step is made by an optimizer of an installed library, or that one takes its place."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tracer.changes import script_changes
from tracer.changes.hooks import Hooks
from tracer.changes.script_changes import NOT_INSTALLED, installed_packages
from tracer.errors import TracerError

_OPTIONS = ("lr", "betas", "eps", "weight_decay")
_UNKNOWN_OPTIONS = ("amsgrad", "maximize", "capturable", "differentiable")
_ParameterGroups = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class EightBitLibrary:
    """A library with such optimizers."""

    package: str  # Its name, which is also that of its module

    @property
    def words(self) -> str:
        """Its name and version."""
        return f"{self.package} {script_changes.installed_version(self.package)}"

    def kind_for(self, kind: type[torch.optim.Optimizer]) -> str:
        """The library's name for torch's Adam or AdamW: `torchao.optim.AdamW8bit`."""
        return f"{self.package}.optim.{kind.__name__}8bit"

    def lines_for(self, optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
        """Lines to paste; `model` is the program's own."""
        options = optimizer.param_groups[0]
        spelled = f"lr={float(options['lr'])!r}, betas={options['betas']!r}, weight_decay={options['weight_decay']!r}"
        return (
            f"import {self.package}.optim",
            f"optimizer = {self.kind_for(type(optimizer))}(model.parameters(), {spelled})",
        )

    def made(self, kind: type[torch.optim.Optimizer], groups: _ParameterGroups) -> torch.optim.Optimizer:
        """An optimizer for the same parameters with the same options."""
        of_kind = getattr(import_module(f"{self.package}.optim"), f"{kind.__name__}8bit")
        optimizer: torch.optim.Optimizer = of_kind(_own_groups(groups))
        return optimizer

    def takes(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return True if the library can step it: bitsandbytes' Adam with weight decay is AdamW, without shards."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if self.package == "torchao":
            return True
        adds_decay = type(optimizer) is torch.optim.Adam and any(
            group["weight_decay"] for group in optimizer.param_groups
        )
        return not adds_decay and not any(hasattr(parameter, "placements") for parameter in parameters)  # of DTensors


def installed() -> tuple[EightBitLibrary, ...]:
    """Return the libraries that are installed."""
    return tuple(EightBitLibrary(package) for package in installed_packages())


def library_for(
    optimizer: torch.optim.Optimizer, libraries: Sequence[EightBitLibrary]
) -> tuple[EightBitLibrary | None, str]:
    """The first that can stand for an optimizer; or None, and why none can."""
    name, groups = type(optimizer).__name__, optimizer.param_groups
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        return None, f"{name} is not torch's Adam or AdamW."
    if used := [option for option in _UNKNOWN_OPTIONS if any(group.get(option) for group in groups)]:
        return None, f"{name} has {used[0]}=True, which optimizers in 8 bits do not know."
    if any(not parameter.is_floating_point() for group in groups for parameter in group["params"]):
        return None, "some parameters are complex."
    if not libraries:
        return None, f"{NOT_INSTALLED}."
    able = [library for library in libraries if library.takes(optimizer)]
    return (able[0], "") if able else (None, f"{libraries[0].package} cannot stand for it; torchao could.")


def _own_groups(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copy parameter groups with the options that all of these optimizers know."""
    return [{**{name: group[name] for name in ("params", *_OPTIONS)}, "lr": float(group["lr"])} for group in groups]


def keep_options(optimizer: torch.optim.Optimizer, like: _ParameterGroups) -> None:
    """Give an optimizer what a schedule has made of the options of the one that it stands for, and new groups."""
    for group in _own_groups(like[len(optimizer.param_groups) :]):
        optimizer.add_param_group(group)
    for own, other in zip(optimizer.param_groups, _own_groups(like), strict=True):
        for name in _OPTIONS:
            if isinstance(own[name], Tensor):  # torchao's rate, which its compiled step reads
                own[name].fill_(other[name])
            else:
                own[name] = other[name]


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
        """Give an optimizer its parameters back; return True if they were kept here."""
        own = self._own.pop(optimizer, None)
        if own is not None:
            optimizer.param_groups = own
        return own is not None


class StateIn8Bits(Hooks, makes="8-bit-state"):
    """Has a library's optimizer step in the place of torch's Adam or AdamW, which stays the script's own otherwise."""

    note = "no optimizer has made a step."  # Or which optimizer no library stands for

    def __init__(self) -> None:
        super().__init__()
        self._libraries = installed()
        self._inner: weakref.WeakKeyDictionary[torch.optim.Optimizer, torch.optim.Optimizer]
        self._inner = weakref.WeakKeyDictionary()
        self._made_steps = MadeSteps()
        self._stand_ins: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._left: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Make the step; the optimizer has no parameters until `after_step`."""
        if optimizer in self._left or optimizer in self._stand_ins:
            return
        own = self._made_steps.begin(optimizer)
        inner = self._inner.get(optimizer) or self._made(optimizer, (*args[1:], *kwargs.values()))
        if inner is None:
            self._left.add(optimizer)
            return
        if optimizer.state is not inner.state:
            raise TracerError(
                "8-bit-state: a checkpoint was loaded into the optimizer, which cannot take over its state.",
                hint=f"Make the optimizer in the script, as {self._libraries[0].kind_for(type(optimizer))}.",
            )
        keep_options(inner, own)
        inner.step()
        self._made_steps.made(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Give the optimizer its parameters again."""
        self._made_steps.end(optimizer)

    def _made(self, optimizer: torch.optim.Optimizer, arguments: Sequence[Any]) -> torch.optim.Optimizer | None:
        """Return the 8-bit replacement of the optimizer, or None, with a note, if there is none."""
        library, self.note = library_for(optimizer, self._libraries)
        scales = getattr(optimizer, "grad_scale", None) is not None
        if library is None:
            return None
        if optimizer.state:
            self.note = "the optimizer has state already."
            return None
        if scales or any(value is not None for value in arguments):
            self.note = "the optimizer's step is given a closure, or scales gradients."
            return None
        lines = "; ".join(library.lines_for(optimizer))
        self.in_script = f"In the script that is, with {library.words}: {lines}"
        inner = self._inner[optimizer] = library.made(type(optimizer), optimizer.param_groups)
        self._stand_ins.add(inner)
        inner.state = optimizer.state  # so that a checkpoint has it
        self.num_made += 1
        return inner
