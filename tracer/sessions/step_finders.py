"""Find the ends of a script's steps: by its optimizers, by gradients if it has none, or by calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from tracer.capture.objects.call_hooks import CallHooks, hook_every_module
from tracer.capture.objects.live_tensors import objects_of
from tracer.capture.torch_private.torch_graph import running_node
from tracer.capture.torch_private.torch_modules import calls_hooks_of_all_optimizers


class StepFinder:
    """Tells when a step of a script has ended, by optimizers unless `by_hand` or `of_calls` says otherwise.

    A step that ends inside of backward, where optimizers step by hooks, ends at the next call: no recording can end or
    begin within backward, since torch puts the profiler's state back behind each of its nodes.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._of_optimizers = StepsOfOptimizers(self.step_ended)
        self._by_hand: StepsByHand | None = None
        self._of_calls: StepsOfCalls | None = None
        self._unhook: Callable[[], None] = lambda: None
        self._ends_at_next_call = False

    def hook_calls(self, called: Callable[[nn.Module, Any], None]) -> None:
        """Have a function called before any module's call, in the place of another one."""
        self._unhook()
        self._unhook = hook_every_module(called)

    def unhook_calls(self) -> None:
        """End that."""
        self._unhook()

    def by_hand(self, models: Iterable[nn.Module]) -> None:
        """Find steps by the gradients of models that no optimizer updates."""
        self._by_hand = StepsByHand(models, self.step_ended)

    def of_calls(self, models: Iterable[nn.Module], first: nn.Module) -> None:
        """Find steps by the calls of models, the first of which is under way."""
        self._unhook()
        self._of_calls = StepsOfCalls(models, first, self.step_ended)

    @property
    def are_by_hand(self) -> bool:
        """True if steps are found by gradients."""
        return self._by_hand is not None

    @property
    def are_of_calls(self) -> bool:
        """True if steps are found by calls."""
        return self._of_calls is not None

    @property
    def are_endless(self) -> bool:
        """True if gradients have come more than once without a visible end of a step."""
        return self._by_hand is not None and self._by_hand.num_backwards > 1 and running_node() is None

    def trains_with(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if an optimizer updates only models whose steps are found by gradients; True for all others."""
        return self._by_hand is None or self._by_hand.trains_with(optimizer)

    def called(self, module: nn.Module) -> None:
        """Before a module's call, where steps are found by gradients."""
        if self._by_hand is not None:
            self._by_hand.called(module)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer's step that has ended; from now on optimizers tell."""
        self.end_by_hand()
        self._of_optimizers.stepped(optimizer)

    def step_ended(self) -> None:
        """End a step, or wait for the next call if backward is running."""
        if running_node() is None:
            self._ended()
        elif not self._ends_at_next_call:
            self._ends_at_next_call = True
            self.hook_calls(self._called_behind_backward)

    def _called_behind_backward(self, module: nn.Module, args: Any) -> None:
        if running_node() is None:  # else a checkpoint's
            self._ends_at_next_call = False
            self._unhook()
            self.step_ended()

    def end_by_hand(self) -> None:
        """Find steps by gradients no longer."""
        by_hand, self._by_hand = self._by_hand, None
        if by_hand is not None:
            by_hand.stop()
            self._unhook()

    def stop(self) -> None:
        """Find no more steps."""
        self.end_by_hand()
        of_calls, self._of_calls = self._of_calls, None
        if of_calls is not None:
            of_calls.stop()
        self._unhook()


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
        self.num_backwards = 0  # Backward passes since the last end of a step
        self._num_backwards_a_step: int | None = None
        trained = [parameter for model in models for parameter in model.parameters() if parameter.requires_grad]
        self.stop: Callable[[], None] = lambda: None
        if trained:
            self.stop = register_multi_grad_hook(trained, self._gradient_came, mode="any").remove

    def trains_with(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if an optimizer updates parameters of these models alone."""
        own = {id(parameter) for model in self._models for parameter in model.parameters()}
        return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]} <= own

    def called(self, module: nn.Module) -> None:
        """Before a module's call."""
        if not self._has_gradients or module not in self._models or not torch.is_grad_enabled():
            return
        if _are_cleared(module.parameters()) or self.num_backwards == self._num_backwards_a_step:
            self._has_gradients, self.num_backwards = False, 0
            self._ended()

    def _gradient_came(self, gradient: torch.Tensor) -> None:
        """The first gradient of a backward pass has been computed, and is not in its parameter yet."""
        if self._has_gradients and _are_cleared(chain.from_iterable(model.parameters() for model in self._models)):
            self._num_backwards_a_step, self.num_backwards = self.num_backwards, 0
        self.num_backwards += 1
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
