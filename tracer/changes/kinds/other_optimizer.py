"""Optimizers with less state than Adam's two numbers for each parameter. Training becomes another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracer.changes.change import Change, Situation, optimizer_options
from tracer.changes.recommendation import Group, Keeps
from tracer.changes.wrapped import inmost, with_inmost
from tracer.workloads.module_steps import StepWorkload
from tracer.workloads.workload import Workload

FAMILY = "optimizer state"
_TWO_STATES = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")


def candidates(situation: Situation) -> Iterator[Change]:
    """Adafactor, SGD with momentum and plain SGD instead of Adam's kind; plain SGD instead of one with momentum."""
    optimizer, name = situation.workload.optimizer, type(situation.workload.optimizer).__name__
    if optimizer is None or isinstance(inmost(situation.workload), StepWorkload):
        return
    rate = float(optimizer_options(optimizer).get("lr", 1e-3))
    if name in _TWO_STATES:
        if all(not parameter.is_complex() for group in optimizer.param_groups for parameter in group["params"]):
            yield _instead(name, "Adafactor", {})
        yield _instead(name, "SGD", {"lr": rate, "momentum": 0.9})
        yield _instead(name, "SGD", {"lr": rate})
    elif optimizer_options(optimizer).get("momentum"):
        yield _instead(f"{name} with momentum", "SGD", {"lr": rate})


def _instead(name: str, other: str, options: dict[str, Any]) -> Change:
    spelled = ", ".join(f"{key}={value!r}" for key, value in options.items() if key != "lr")
    arguments = "".join(f", {key}={value!r}" for key, value in options.items())
    return Change(
        name=f"{other}({spelled}) instead of {name}",
        family=FAMILY,
        group=Group.TRAINING,
        keeps=Keeps.CONVERGENCE,
        lines=(f"optimizer = torch.optim.{other}(model.parameters(){arguments})",),
        apply=_replaced(getattr(torch.optim, other), options),
        needs="Retune the learning rate.",
    )


def _replaced(of_kind: Callable[..., torch.optim.Optimizer], options: dict[str, Any]) -> Callable[[Workload], Workload]:
    def apply(workload: Workload) -> Workload:
        if workload.optimizer is None:
            return workload
        parameters = [parameter for group in workload.optimizer.param_groups for parameter in group["params"]]
        return with_inmost(workload, optimizer=of_kind(parameters, **options))

    return apply
