"""Mixed precision: matrix products and convolutions in bfloat16, whose saved tensors are half as large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tracer.advice.change import Change, Situation
from tracer.advice.recommendation import Group, Keeps
from tracer.advice.wrapped import Wrapped
from tracer.workloads.module_steps import StepWorkload


@dataclass(slots=True, eq=False)
class _Autocast(Wrapped):
    """The forward pass in bfloat16 where that is safe."""

    def forward(self, batch: Any) -> Any:
        """The loss, a tensor."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            return self.inner.forward(batch)


def candidates(situation: Situation) -> Iterator[Change]:
    """One, where the program has no mixed precision and parameters in float32."""
    workload = situation.workload
    if isinstance(workload, StepWorkload) or getattr(workload, "amp", "off") != "off":
        return
    if not any(parameter.dtype == torch.float32 for parameter in situation.model.parameters()):
        return
    yield Change(
        name="bfloat16 autocast",
        family="precision",
        group=Group.ARITHMETIC,
        keeps=Keeps.CONVERGENCE,
        lines=(
            f'with torch.autocast("{situation.device}", dtype=torch.bfloat16):',
            "    loss = loss_fn(model(inputs), targets)",
        ),
        apply=_Autocast,
        needs="Products are rounded to 8 bits of mantissa.",
    )
