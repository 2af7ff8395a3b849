"""Optimizer state in bfloat16 between steps; the step itself is torch's own, in float32."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tracer.changes.change import Change, Situation, Stage
from tracer.changes.kinds.other_optimizer import FAMILY, adams
from tracer.changes.recommendation import Group, Keeps
from tracer.changes.state_between_steps import StateBetweenSteps
from tracer.null_gpu import process

_LEAST_ELEMENTS = 4096
"""Fewer stay: libraries of optimizers with small state leave them, too."""
_PIECE_ELEMENTS = 1 << 20
"""Random numbers are drawn for so many values at a time."""
_LOW_BITS = 1 << 16
"""What float32 has and bfloat16 has not."""


class StateInBf16(StateBetweenSteps, makes="bf16-state"):
    """State is rounded at random, up or down by what is nearer more often: its mean is right.

    Rounded to nearest, an average that shrinks by a thousandth in a step, as Adam's of squares does, would not shrink.
    """

    is_late = True
    part_bytes = 1 << 25

    def __init__(self) -> None:
        super().__init__()
        self._generators: dict[torch.device, torch.Generator] = {}

    def is_worthwhile(self, value: Tensor) -> bool:
        """Whether it is a plain tensor in float32, and not small."""
        return (
            type(value) in (Tensor, nn.Parameter)
            and value.dtype == torch.float32
            and value.layout == torch.strided
            and value.numel() >= _LEAST_ELEMENTS
        )

    def put_away(self, value: Tensor, place: Tensor | None) -> Tensor:
        """Rounded to bfloat16."""
        if place is None:
            place = torch.empty_like(value, dtype=torch.bfloat16)
        self._round(value, place)
        return place

    def brought_back(self, place: Tensor, device: torch.device) -> Tensor:
        """The same numbers in float32."""
        return place.float()

    def _round(self, value: Tensor, place: Tensor) -> None:
        """Fill the place; the value is lost."""
        if value.device not in self._generators:
            self._generators[value.device] = torch.Generator(value.device).manual_seed(0)
        generator = self._generators[value.device]
        if value.stride() != place.stride():
            value = torch.empty_like(place, dtype=value.dtype).copy_(value)
        size, step = (value.numel(),), (1,)
        pairs = (torch.split(part.as_strided(size, step), _PIECE_ELEMENTS) for part in (value, place))
        for piece, into in zip(*pairs, strict=True):
            bits = piece.view(torch.int32)
            if process.is_active():  # what a null GPU would draw it would compute on the host
                torch.empty_like(bits)
            else:
                noise = torch.randint(_LOW_BITS, bits.shape, dtype=bits.dtype, device=bits.device, generator=generator)
                bits.add_(noise).bitwise_and_(-_LOW_BITS)
            into.copy_(piece)


_IN_BF16 = (
    "def widen(optimizer, *_):",
    "    for values in optimizer.state.values():",
    '        for name in ("exp_avg", "exp_avg_sq"):',
    "            values[name] = values[name].float()",
    "def narrow(optimizer, *_):",
    "    for values in optimizer.state.values():",
    '        for name in ("exp_avg", "exp_avg_sq"):',
    "            bits = values[name].view(torch.int32)  # rounded at random, so that small changes are not lost",
    "            bits.add_(torch.randint_like(bits, 1 << 16)).bitwise_and_(-1 << 16)",
    "            values[name] = values[name].to(torch.bfloat16)",
    "optimizer.register_step_pre_hook(widen)",
    "optimizer.register_step_post_hook(narrow)",
)


def candidates(situation: Situation) -> Iterator[Change]:
    """State of Adam's in bfloat16, on a GPU."""
    for optimizer in adams(situation):
        if all(parameter.dtype == torch.float32 for group in optimizer.param_groups for parameter in group["params"]):
            yield Change(
                name=f"state of {type(optimizer).__name__} in bfloat16 between steps",
                family=FAMILY,
                group=Group.ARITHMETIC,
                keeps=Keeps.CONVERGENCE,
                lines=_IN_BF16,
                stage=Stage.OPTIMIZER,
                needs="State is rounded to 8 bits of mantissa.",
            )
