"""Look at a driver's count around models' calls in the first step, where libraries begin and kernels are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from tracer.capture.driver_looks import DriverLedger, users_line_here
from tracer.capture.objects.call_hooks import CallHooks
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_private import torch_compile
from tracer.nested import leaves

_MOST_CALLS: Final = 500
"""Calls that are looked at: a step that evaluates has thousands, and some drivers take a millisecond for a look."""


class FirstStepLooks:
    """Looks around each model's call, and where backward reaches its output, until a compilation begins."""

    def __init__(
        self, ledger: DriverLedger, names: Mapping[int, str], guarded: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Prepare; nothing is hooked.

        Args:
            names: Dotted names of modules by `id()`.
            guarded: A block in which an error ends the session and never reaches the program.
        """
        self._ledger, self._names, self._guarded = ledger, names, guarded
        self._on = ExitStack()
        self._num_calls = 0

    def start(self, models: Iterable[nn.Module]) -> None:
        """Begin the first step."""
        self._ledger.look("beginning", "the first step")
        if self._ledger.looks:
            self._on.callback(self._ledger.look, "end", "the first step")
            hooks = CallHooks(models=models, on_call=self._begins, after_call=self._ended)
            self._on.callback(hooks.stop)
            hooks.start()

    def stop(self) -> None:
        """End the first step, if it is under way."""
        self._on.close()

    def _begins(self, module: nn.Module, *_: Any) -> None:
        self._num_calls += 1
        if self._num_calls <= _MOST_CALLS:
            self._look("beginning", f"the call of {self._text(module)}")

    def _ended(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._num_calls > _MOST_CALLS:
            return
        self._look("end", f"the call of {self._text(module)}")
        with self._guarded():
            tensor = next((each for _, each in leaves(output, torch.Tensor) if each.requires_grad), None)
            if tensor is not None and tensor.grad_fn is not None:
                what = f"the output of {self._text(module)}"
                reached = torch_compile.never_compiled(partial(self._look, "gradient", what, users_line_here()))
                self._on.callback(tensor.grad_fn.register_prehook(reached).remove)

    def _look(self, edge: str, what: str, line: SourceLine | None = None, *_: Any) -> None:
        with self._guarded():
            self._ledger.look(edge, what, line)

    def _text(self, module: nn.Module) -> str:
        name, kind = self._names.get(id(module), ""), type(module).__name__
        return f"{name} ({kind})" if name else kind
