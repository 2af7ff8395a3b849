"""Find the ends of a program's steps: by its optimizers, by gradients if it has none, or by calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from tracer.capture.objects.call_hooks import CallHooks
from tracer.capture.objects.live_tensors import objects_of
from tracer.capture.torch_private.torch_modules import calls_hooks_of_all_optimizers


class StepsOfOptimizers:
    """Tells at an optimizer's step that the program's has ended: every optimizer that takes part has stepped.

    Those are the ones alive at the first one's step, but for those that let another step twice meanwhile.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        # Weak: what a program has replaced is neither kept nor waited for.
        self._waits_for: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer's step that has ended."""
        if optimizer in self._stepped:  # again, before others did: those take no part
            self._waits_for = self._stepped.copy()
        elif optimizer not in self._waits_for:
            alive: list[torch.optim.Optimizer] = objects_of((torch.optim.Optimizer,))
            # What wraps another one, as trainers do, is no optimizer of which torch tells that it has stepped.
            self._waits_for.update(filter(calls_hooks_of_all_optimizers, alive))
        self._stepped.add(optimizer)
        if self._waits_for <= self._stepped:
            self._stepped.clear()
            self._ended()


class StepsByHand:
    """Tells at a model's call that a step has ended: backward has been there, and its gradients have been cleared.

    Micro-batches that are accumulated keep their gradients, so that they are one step. A loop that clears them between
    a call and its backward, as Keras does, shows in its second step how many backward passes a step has: from then on a
    step ends at the call behind so many. A loop that fills gradients with zeros is not understood.
    """

    def __init__(self, models: Iterable[nn.Module], ended: Callable[[], None]) -> None:
        models = list(models)
        self._models = weakref.WeakSet(models)
        self._ended = ended
        self._has_gradients = False
        self._num_backwards = 0
        self._num_backwards_a_step: int | None = None
        trained = [parameter for model in models for parameter in model.parameters() if parameter.requires_grad]
        self.stop: Callable[[], None] = lambda: None
        if trained:
            self.stop = register_multi_grad_hook(trained, self._gradient_came, mode="any").remove

    @property
    def has_passed_on(self) -> bool:
        """Whether more than one backward pass has come since the last end of a step."""
        return self._num_backwards > 1

    def trains_with(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer updates parameters of these models alone."""
        own = {id(parameter) for model in self._models for parameter in model.parameters()}
        return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]} <= own

    def called(self, module: nn.Module) -> None:
        """Before a module's call."""
        if not self._has_gradients or module not in self._models or not torch.is_grad_enabled():
            return
        if _are_cleared(module.parameters()) or self._num_backwards == self._num_backwards_a_step:
            self._has_gradients, self._num_backwards = False, 0
            self._ended()

    def _gradient_came(self, gradient: torch.Tensor) -> None:
        """The first gradient of a backward pass has been computed, and is not in its parameter yet."""
        if self._has_gradients and _are_cleared(chain.from_iterable(model.parameters() for model in self._models)):
            self._num_backwards_a_step, self._num_backwards = self._num_backwards, 0
        self._num_backwards += 1
        self._has_gradients = True


def _are_cleared(parameters: Iterable[nn.Parameter]) -> bool:
    return all(parameter.grad is None for parameter in parameters)


class StepsOfCalls:
    """Tells at a model's call that the step of the one before has ended.

    A call inside another one is part of it. One that raised ends where the same model is called again.
    """

    def __init__(self, models: Iterable[nn.Module], first: nn.Module, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._running: int | None = id(first)
        self._hooks = CallHooks(models=models, on_call=self._begins, after_call=self._returns)
        self._hooks.start()

    def stop(self) -> None:
        """Stop listening."""
        self._hooks.stop()

    def _begins(self, model: nn.Module, *_: Any, **__: Any) -> None:
        if self._running in (None, id(model)):
            self._running = id(model)
            self._ended()
            self._hooks.renew()

    def _returns(self, model: nn.Module, *_: Any, **__: Any) -> None:
        if self._running == id(model):
            self._running = None
