"""Activations and dropout that write over their input, where autograd does not need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from tracer.changes.change import Change, Situation
from tracer.changes.recommendation import Group, Keeps

_KINDS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.Hardtanh, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Whose backward needs the result, or a mask, and not the input."""


def candidates(situation: Situation) -> Iterator[Change]:
    """One, where the model has such modules; where another one needs what they would overwrite, autograd says so."""
    names = sorted({type(module).__name__ for module in _found(situation.model)})
    if names:
        yield Change(
            name=f"{', '.join(names)} in place",
            family="in place",
            group=Group.MEMORY,
            keeps=Keeps.BITS,
            lines=(
                "for module in model.modules():",
                f"    if isinstance(module, ({', '.join(f'torch.nn.{name}' for name in names)},)):",
                "        module.inplace = True",
            ),
        )


def _found(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, _KINDS) and not module.inplace]
