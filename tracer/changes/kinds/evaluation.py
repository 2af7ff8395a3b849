"""Evaluation without gradients: a model in evaluation mode is called under `no_grad`, so that nothing is saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tracer.changes.change import Change, Situation
from tracer.changes.recommendation import Group, Keeps
from tracer.workloads.workload import Workload


def candidates(situation: Situation) -> Iterator[Change]:
    """One, where the model is called in evaluation mode with gradients on, and no backward goes back to that."""
    if not situation.evaluates_with_gradients:
        return
    yield Change(
        name="no_grad in evaluation",
        family="evaluation",
        group=Group.MEMORY,
        keeps=Keeps.BITS,
        lines=("model.eval()", "with torch.no_grad():  # or torch.inference_mode()", "    output = model(inputs)"),
        apply=_applied,
        needs="Nothing differentiates what the model returns in evaluation mode.",
    )


def _applied(workload: Workload) -> Workload:
    model = workload.model
    forward = model.forward

    def without_gradients(*args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(model.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)

    model.forward = without_gradients
    return workload
