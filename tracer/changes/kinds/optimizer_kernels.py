"""Optimizers that step by fused kernels, or one parameter after the other."""

from __future__ import annotations

from typing import Any

import torch

from tracer.changes.hooks import Hooks

_FUSED_ON_CUDA = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


class Fused(Hooks, makes="fused-optimizer"):
    """Has optimizers use fused kernels, or work on one parameter after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._without_fused: dict[str, None] = {}  # Names of optimizers that have no fused kernels to use

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Set the options before the first step: state that is there already was made for the other kernels."""
        if optimizer.state:
            return
        is_fused = type(optimizer) in _FUSED_ON_CUDA and _can_be_fused(optimizer)
        for group in optimizer.param_groups:
            if group.get("foreach", False) is not False or is_fused:
                group["foreach"] = False
                if not is_fused:
                    self._without_fused[type(optimizer).__name__] = None
                    names = " and ".join(self._without_fused)
                    self.in_script = f"fused-optimizer is foreach=False here: {names} can use no fused form."
            if is_fused and not group.get("differentiable"):
                group["fused"] = True


def _can_be_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Fused kernels take real floating point parameters, whose gradients are dense.

    Source: the check in `Adam.__init__`, torch/optim/adam.py.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    has_sparse = any(one.grad is not None and one.grad.is_sparse for one in parameters)
    return not has_sparse and all(parameter.is_floating_point() for parameter in parameters)
