"""Adam's state in 8 bits: its step is made by an optimizer of an installed library, or that one takes its place."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tracer.changes.change import Change, Situation, Stage
from tracer.changes.eight_bit_optimizers import EightBitLibrary, installed, keep_options, library_for
from tracer.changes.hooks import Hooks
from tracer.changes.kinds.other_optimizer import FAMILY, adams
from tracer.changes.recommendation import Group, Keeps
from tracer.changes.script_changes import NOT_INSTALLED, PACKAGES
from tracer.changes.state_between_steps import NO_STATE, STAND_INS, MadeSteps
from tracer.changes.wrapped import with_inmost
from tracer.errors import TracerError
from tracer.null_gpu import process
from tracer.workloads.workload import Workload


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
