"""How the optimizer does its work: fused, one parameter after the other, or as soon as a gradient is there."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tracer.changes.change import Change, Situation, Stage, Wrapped, inmost, optimizer_options, with_inmost
from tracer.changes.hooks import Hooks
from tracer.changes.recommendation import Group, Keeps
from tracer.workloads.module_steps import StepWorkload
from tracer.workloads.workload import Workload, num_micro_batches

FAMILY = "optimizer kernels"
_FUSED_ON_CUDA = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


class Fused(Hooks, makes="fused-optimizer"):
    """Has optimizers use fused kernels, or work on one parameter after the other."""

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Set the options before the first step: state that is there already was made for the other kernels."""
        if optimizer.state:
            return
        is_fused = type(optimizer) in _FUSED_ON_CUDA and can_be_fused(optimizer) and not _has_sparse(optimizer)
        for group in optimizer.param_groups:
            if group.get("foreach", False) is not False or is_fused:
                group["foreach"] = False
            if is_fused and not group.get("differentiable"):
                group["fused"] = True


def _has_sparse(optimizer: torch.optim.Optimizer) -> bool:
    grads = (parameter.grad for group in optimizer.param_groups for parameter in group["params"])
    return any(grad is not None and grad.is_sparse for grad in grads)


def candidates(situation: Situation) -> Iterator[Change]:
    """Options and kernels that the optimizer has and does not use."""
    optimizer = situation.workload.optimizer
    if optimizer is None:
        return
    options, name = optimizer_options(optimizer), type(optimizer).__name__
    if "fused" in options and not options["fused"] and can_be_fused(optimizer):
        yield Change(
            name=f"{name}(fused=True)",
            family=FAMILY,
            group=Group.MEMORY,
            keeps=Keeps.ROUNDING,
            lines=_set("fused=True, foreach=False"),
            stage=Stage.STEP,
        )
    if options.get("foreach") and not options.get("fused"):  # the rules of CUDA have made a default of None true
        yield Change(
            name=f"{name}(foreach=False)",
            family=FAMILY,
            group=Group.MEMORY,
            keeps=Keeps.ROUNDING,
            lines=_set("foreach=False"),
            stage=Stage.STEP,
            cost="A kernel for each parameter and operation: slow with many small parameters.",
        )
    if _can_step_in_backward(situation):
        yield _in_backward(situation, optimizer)


def _set(options: str) -> tuple[str, ...]:
    return (
        f"for group in optimizer.param_groups:  # or where it is made: {options}",
        f"    group.update({options})",
    )


def can_be_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Fused kernels take real floating point parameters.

    Source: the check in `Adam.__init__`, torch/optim/adam.py.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return all(parameter.is_floating_point() for parameter in parameters)


# ---- stepping in backward --------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _StepInBackward(Wrapped):
    """Every parameter is updated as soon as its gradient is there, which then goes."""

    steppers: _Steppers  # The optimizers that update; nobody else holds them

    def copy(self) -> None:
        """None: hooks of parameters are not copied with them."""


def _can_step_in_backward(situation: Situation) -> bool:
    """Whether each step has one backward pass, no gradient scaler, and an optimizer of torch's own."""
    workload = situation.workload
    return (
        not isinstance(inmost(workload), StepWorkload)
        and num_micro_batches(workload) == 1
        and getattr(workload, "scaler", None) is None
        and not getattr(workload, "inference", False)
        and type(workload.optimizer).__module__.startswith("torch.optim")
    )


def _in_backward(situation: Situation, optimizer: torch.optim.Optimizer) -> Change:
    name, rate = type(optimizer).__name__, float(optimizer_options(optimizer).get("lr", 1e-3))
    return Change(
        name=f"{name} steps in backward",
        family="gradients",
        excludes=("accumulate", FAMILY, "gradients let go of"),
        group=Group.MEMORY,
        keeps=Keeps.ROUNDING,
        lines=(
            f"steppers = {{p: torch.optim.{name}([p], lr={rate!r}) for p in model.parameters() if p.requires_grad}}",
            "def step(parameter):",
            "    steppers[parameter].step()",
            "    parameter.grad = None",
            "for parameter in steppers:",
            "    parameter.register_post_accumulate_grad_hook(step)",
            "# and no optimizer.step() in the loop",
        ),
        apply=_stepping_in_backward,
        stage=Stage.STEP,
        needs="No gradient is clipped, accumulated or looked at: none is there after backward.",
    )


def _stepping_in_backward(workload: Workload) -> Workload:
    optimizer: Any = workload.optimizer
    accepted = inspect.signature(type(optimizer).__init__).parameters
    steppers = _Steppers()
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key in accepted and key != "params"}
        for parameter in group["params"]:
            if parameter.requires_grad:
                steppers[parameter] = type(optimizer)([parameter], **options)

    # The collector does not look through these hooks: one that held its optimizer would keep the model for ever.
    reference = weakref.ref(steppers)

    def step(parameter: torch.Tensor) -> None:
        if (there := reference()) is not None:
            there[parameter].step()
            parameter.grad = None

    for parameter in steppers:
        parameter.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
    return _StepInBackward(with_inmost(workload, optimizer=None), steppers)


class _Steppers(dict[torch.Tensor, torch.optim.Optimizer]):
    """An optimizer for each parameter, in a dictionary that a weak reference can be to."""
