"""The steps of a loop without an optimizer of torch's kind: by its gradients, which come and are cleared."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook


class StepsByHand:
    """Tells at a model's call that a step has ended: backward has been there, and its gradients have been cleared.

    Micro-batches that are accumulated keep their gradients, so that they are one step. A loop that clears them between
    a call and its backward, or fills them with zeros, is not understood.
    """

    def __init__(self, models: Iterable[nn.Module], ended: Callable[[], None]) -> None:
        """Listen for gradients.

        Args:
            models: The models that are trained; nothing keeps them alive.
            ended: Called between two steps.
        """
        models = list(models)
        self._models = weakref.WeakSet(models)
        self._ended = ended
        self._has_gradients = False
        trained = [parameter for model in models for parameter in model.parameters() if parameter.requires_grad]
        self.stop: Callable[[], None] = lambda: None
        if trained:
            self.stop = register_multi_grad_hook(trained, self._gradient_came, mode="any").remove

    def trains_with(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer updates parameters of these models alone."""
        own = {id(parameter) for model in self._models for parameter in model.parameters()}
        return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]} <= own

    def called(self, module: nn.Module) -> None:
        """Before a module's call."""
        if not self._has_gradients or module not in self._models or not torch.is_grad_enabled():
            return
        if all(parameter.grad is None for parameter in module.parameters()):
            self._has_gradients = False
            self._ended()

    def _gradient_came(self, gradient: torch.Tensor) -> None:
        self._has_gradients = True
