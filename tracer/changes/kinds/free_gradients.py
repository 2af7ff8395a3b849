"""Gradients that are freed right after the optimizer's step."""

from __future__ import annotations

from typing import Any

import torch

from tracer.changes.hooks import Hooks


class FreeGradients(Hooks, makes="free-gradients"):
    """Sets gradients to None right after the optimizer's step."""

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Free the gradients of the optimizer's parameters."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
