"""Adam's state in 8 bits: its step is made by an optimizer of an installed library, or that one takes its place."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tracer.changes import script_changes
from tracer.changes.change import Change, Situation, Stage, with_inmost
from tracer.changes.hooks import Hooks
from tracer.changes.kinds.other_optimizer import FAMILY, adams
from tracer.changes.recommendation import Group, Keeps
from tracer.changes.script_changes import NOT_INSTALLED, PACKAGES, installed_packages
from tracer.changes.state_between_steps import NO_STATE, STAND_INS, MadeSteps
from tracer.errors import TracerError
from tracer.null_gpu import process
from tracer.workloads.workload import Workload

_LEAST_ELEMENTS = 4096
"""Both leave state of fewer elements in float32."""
_BLOCK = 256
"""Elements that share a scale in float32, in both."""
_OPTIONS = ("lr", "betas", "eps", "weight_decay")
_UNKNOWN_OPTIONS = ("amsgrad", "maximize", "capturable", "differentiable")
_ParameterGroups = Sequence[Mapping[str, Any]]


class AsLarge(torch.optim.Optimizer):
    """Has state of the size that these optimizers have, and computes nothing: for rehearsals and estimates.

    Source:
        `Optimizer2State.init_state` of bitsandbytes 0.50.2; `_AdamBase._new_buffer` of torchao 0.18.0, which leaves in
        float32 what does not divide into blocks.
    """

    def __init__(self, groups: Any, *, only_whole_blocks: bool = False) -> None:
        """Set up without state.

        Args:
            only_whole_blocks: Other state stays in float32.
        """
        super().__init__(groups, {})
        self._only_whole_blocks = only_whole_blocks

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make the state of parameters that have a gradient for the first time."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = dict(self._state(parameter.detach()))

    def _state(self, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
        num_elements = parameter.numel()
        is_whole = num_elements < _LEAST_ELEMENTS or bool(self._only_whole_blocks and num_elements % _BLOCK)
        for name in ("exp_avg", "exp_avg_sq"):
            if is_whole:
                yield name, torch.zeros_like(parameter)
            else:
                yield name, torch.zeros_like(parameter, dtype=torch.uint8)
                yield f"{name} scales", parameter.new_zeros(-(-num_elements // _BLOCK), dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class EightBitLibrary:
    """A library with such optimizers."""

    package: str  # Its name, which is also that of its module
    is_estimate: bool = False  # It is not installed: its optimizers are of the size, and compute nothing

    @property
    def words(self) -> str:
        """Its name and version."""
        return f"{self.package} {script_changes.installed_version(self.package)}"

    def kind_for(self, kind: type[torch.optim.Optimizer]) -> str:
        """The library's name for torch's Adam or AdamW: `torchao.optim.AdamW8bit`."""
        return f"{self.package}.optim.{kind.__name__}8bit"

    def lines_for(self, optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
        """To paste; `model` is the program's own."""
        options = optimizer.param_groups[0]
        spelled = f"lr={float(options['lr'])!r}, betas={options['betas']!r}, weight_decay={options['weight_decay']!r}"
        return (
            f"import {self.package}.optim",
            f"optimizer = {self.kind_for(type(optimizer))}(model.parameters(), {spelled})",
        )

    def made(self, kind: type[torch.optim.Optimizer], groups: _ParameterGroups) -> torch.optim.Optimizer:
        """An optimizer for the same parameters with the same options."""
        if self.is_estimate:
            return self.as_large(groups)
        of_kind = getattr(import_module(f"{self.package}.optim"), f"{kind.__name__}8bit")
        optimizer: torch.optim.Optimizer = of_kind(_own_groups(groups))
        return optimizer

    def as_large(self, groups: _ParameterGroups) -> AsLarge:
        """An optimizer with state of the same size, that computes nothing."""
        return AsLarge(_own_groups(groups), only_whole_blocks=self.package == "torchao")

    def takes(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it can: with weight decay bitsandbytes' Adam is AdamW, and it knows no parts of a tensor."""
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
    """The same groups with the options that all of these optimizers know."""
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


class StateIn8Bits(Hooks, makes="8-bit-state"):
    """Has a library's optimizer step in the place of torch's Adam or AdamW, which stays the script's own otherwise.

    On a null GPU without such a library, one does that has state of the same size and computes nothing.
    """

    note = NO_STATE  # Or which optimizer no library stands for, or what is estimated

    def __init__(self) -> None:
        super().__init__()
        self._libraries = installed()
        self.is_estimate = not self._libraries and process.is_active()  # Whether nothing is computed
        if self.is_estimate:
            self._libraries = (EightBitLibrary(PACKAGES[0], is_estimate=True),)
        self._inner: weakref.WeakKeyDictionary[torch.optim.Optimizer, torch.optim.Optimizer]
        self._inner = weakref.WeakKeyDictionary()
        self._made_steps = MadeSteps()
        self._left: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def why_not(self) -> str:
        """Return why no library's optimizer stands for one, or that it is estimated."""
        return self.note if self.is_estimate else super().why_not()

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Make the step; the optimizer has no parameters until `after_step`."""
        if optimizer in self._left or optimizer in STAND_INS:  # the latter inside of a step that is made here
            return
        own = self._made_steps.begin(optimizer)
        if not any(group["params"] for group in own):  # another change has made the step
            return
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
        if library.is_estimate:
            self.note = f"an estimate, since {NOT_INSTALLED}: with one of them it can be applied."
        else:
            lines = "; ".join(library.lines_for(optimizer))
            self.in_script = f"In the script that is, with {library.words}: {lines}"
        inner = self._inner[optimizer] = library.made(type(optimizer), optimizer.param_groups)
        STAND_INS.add(inner)
        inner.state = optimizer.state  # so that a checkpoint has it
        self.num_made += 1
        return inner


def candidates(situation: Situation) -> Iterator[Change]:
    """The optimizer of each library that is installed, in the place of Adam."""
    for optimizer in adams(situation):
        for library in installed():
            if library.takes(optimizer):
                yield Change(
                    name=f"{library.kind_for(type(optimizer))} instead of {type(optimizer).__name__}",
                    family=FAMILY,
                    group=Group.ARITHMETIC,
                    keeps=Keeps.CONVERGENCE,
                    lines=library.lines_for(optimizer),
                    apply=partial(_by, library),
                    stage=Stage.OPTIMIZER,
                    needs=f"State is rounded to 8 bits, with a scale for 256 values, by {library.words}.",
                )


def not_tried(situation: Situation) -> Iterator[tuple[str, str]]:
    """State in 8 bits where no library has it: the name, and why."""
    kind = type(situation.workload.optimizer)
    if kind in (torch.optim.Adam, torch.optim.AdamW) and situation.device != "cpu" and not installed():
        yield f"{kind.__name__} with state in 8 bits", f"{NOT_INSTALLED}."


def _by(library: EightBitLibrary, workload: Workload) -> Workload:
    own = workload.optimizer
    assert own is not None
    if workload.device.type == "cpu":  # to be rehearsed: what a library's kernels do cannot be
        library = replace(library, is_estimate=True)
    return with_inmost(workload, optimizer=library.made(type(own), own.param_groups))
