"""Letting go of the gradients: with `set_to_none`, and right behind the optimizer's step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from tracer.changes.change import Change, Situation
from tracer.changes.recommendation import Group, Keeps
from tracer.workloads.workload import Workload

FAMILY = "gradients let go of"


def candidates(situation: Situation) -> Iterator[Change]:
    """Gradients set to None right after the step; if the program does so already, the rehearsal shows no gain."""
    if situation.workload.optimizer is None:
        return
    yield Change(
        name="zero_grad(set_to_none=True) right after optimizer.step()",
        family=FAMILY,
        group=Group.MEMORY,
        keeps=Keeps.BITS,
        lines=("optimizer.step()", "optimizer.zero_grad(set_to_none=True)"),
        apply=_applied,
        needs="Nothing reads the gradients after the optimizer's step.",
    )


def _applied(workload: Workload) -> Workload:
    optimizer, model = workload.optimizer, workload.model
    if optimizer is not None:
        to_none = partial(type(optimizer).zero_grad, optimizer, set_to_none=True)
        optimizer.zero_grad = lambda set_to_none=True: to_none()  # type: ignore[method-assign]
        model.zero_grad = lambda set_to_none=True: type(model).zero_grad(model, set_to_none=True)  # type: ignore[method-assign]
        optimizer.register_step_post_hook(_let_go)
    return workload


def _let_go(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    optimizer.zero_grad(set_to_none=True)
