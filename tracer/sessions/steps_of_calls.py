"""The steps of a program that trains nothing: each call of a model, with what follows until the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from tracer.capture.objects.call_hooks import CallHooks


class StepsOfCalls:
    """Tells at a model's call that the step of the one before has ended.

    A call inside another one is part of it. One that raised ends where the same model is called again.
    """

    def __init__(self, models: Iterable[nn.Module], first: nn.Module, ended: Callable[[], None]) -> None:
        """Listen for calls.

        Args:
            models: The models that no other contains; nothing keeps them alive.
            ended: Called between two steps.
        """
        self._ended = ended
        self._running: int | None = id(first)
        self._hooks = CallHooks(models=models, on_call=self._begins, after_call=self._returns)
        self._hooks.start()

    def stop(self) -> None:
        """Listen no longer."""
        self._hooks.stop()

    def _begins(self, model: nn.Module, *_: Any, **__: Any) -> None:
        if self._running in (None, id(model)):
            self._running = id(model)
            self._ended()
            self._hooks.renew()

    def _returns(self, model: nn.Module, *_: Any, **__: Any) -> None:
        if self._running == id(model):
            self._running = None
