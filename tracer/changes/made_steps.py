"""Optimizers whose step a change has made already: torch's own, which follows, finds no parameters."""

from __future__ import annotations

import weakref
from typing import Any

import torch

STAND_INS: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""Optimizers that make the steps of others, which have the state; changes of optimizers leave them alone."""


class MadeSteps:
    """Keeps the parameter groups of optimizers from the hook before their step to the one behind it."""

    def __init__(self) -> None:
        """Keep none yet."""
        self._own: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[dict[str, Any]]]
        self._own = weakref.WeakKeyDictionary()

    def begin(self, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        """A step begins: its groups, which it gets back if a hook after the last `made` raised."""
        self.end(optimizer)
        return optimizer.param_groups

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """The step is made: the groups are without parameters until `end`."""
        own = self._own[optimizer] = optimizer.param_groups
        optimizer.param_groups = [{**group, "params": []} for group in own]

    def end(self, optimizer: torch.optim.Optimizer) -> bool:
        """It has its parameters again; whether they were kept here."""
        own = self._own.pop(optimizer, None)
        if own is not None:
            optimizer.param_groups = own
        return own is not None
