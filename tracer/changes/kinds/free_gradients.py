"""Gradients that are freed right after the optimizer's step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tracer.changes.change import Change, Situation, Stage
from tracer.changes.hooks import Hooks
from tracer.changes.recommendation import Group, Keeps
from tracer.workloads.workload import Workload


class FreeGradients(Hooks, makes="free-gradients"):
    """Sets gradients to None right after the optimizer's step."""

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Free the gradients of the optimizer's parameters."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def candidates(situation: Situation) -> Iterator[Change]:
    """Gradients set to None right after the step; if the program does so already, the rehearsal shows no gain."""
    if situation.workload.optimizer is None:
        return
    yield Change(
        name="zero_grad(set_to_none=True) right after optimizer.step()",
        family="gradients let go of",
        group=Group.MEMORY,
        keeps=Keeps.BITS,
        lines=("optimizer.step()", "optimizer.zero_grad(set_to_none=True)"),
        apply=_applied,
        stage=Stage.STEP,
        needs="Nothing reads the gradients after the optimizer's step.",
    )


def _applied(workload: Workload) -> Workload:
    if workload.optimizer is not None:
        workload.optimizer.register_step_post_hook(FreeGradients().after_step)
    return workload
