"""Optimizers with less state than Adam's two numbers for each parameter. Training becomes another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tracer.changes.change import Change, Situation, Stage, inmost, optimizer_options
from tracer.changes.recommendation import Group, Keeps
from tracer.workloads.module_steps import StepWorkload

FAMILY = "optimizer state"
_TWO_STATES = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")


def adams(situation: Situation) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizer if it is torch's Adam or AdamW, of real parameters on a GPU, and not in a whole step."""
    optimizer = situation.workload.optimizer
    if optimizer is None or type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW) or situation.device == "cpu":
        return
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    is_whole_step = isinstance(inmost(situation.workload), StepWorkload)
    if not is_whole_step and not any(parameter.is_complex() for parameter in parameters):
        yield optimizer


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
        stage=Stage.OPTIMIZER,
        needs="Retune the learning rate.",
    )
