"""Saved tensors on the host: forward copies what it saves for backward to the host, and backward copies it back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tracer.advice.change import Change, Situation
from tracer.advice.recommendation import Group, Keeps
from tracer.advice.wrapped import Wrapped, inmost
from tracer.workloads.module_steps import StepWorkload


@dataclass(slots=True, eq=False)
class _SavedOnHost(Wrapped):
    """The forward pass, whose graph keeps nothing on the device."""

    def forward(self, batch: Any) -> Any:
        """The loss, a tensor."""
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return self.inner.forward(batch)


def candidates(situation: Situation) -> Iterator[Change]:
    """One on a GPU, for a forward pass that backward follows."""
    workload = situation.workload
    is_whole_step = isinstance(inmost(workload), StepWorkload)
    if situation.device != "cuda" or is_whole_step or getattr(workload, "inference", False):
        return
    yield Change(
        name="saved tensors on the host (save_on_cpu)",
        family="offload",
        excludes=("checkpoint",),
        group=Group.COMPUTE,
        keeps=Keeps.BITS,
        lines=(
            "with torch.autograd.graph.save_on_cpu(pin_memory=True):",
            "    loss = loss_fn(model(inputs), targets)",
        ),
        apply=_SavedOnHost,
        needs="The host has the memory for it, pinned.",
        cost="All that is saved is copied to the host and back in every step.",
    )
