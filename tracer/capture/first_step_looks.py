"""Look at a driver's count around models' calls in the first step, where libraries begin and kernels are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from tracer.capture.driver_looks import DriverLedger, users_line_here
from tracer.capture.objects.hooks_beside import hook_after_call, hook_call
from tracer.capture.torch_private import torch_compile
from tracer.nested import leaves

_MOST_LOOKS: Final = 1000
"""A first step that calls models more often, as one that evaluates, is looked at until then."""


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
        self._hooks: list[Callable[[], None]] = []
        self._stop_watching: Callable[[], None] | None = None
        self._reached = torch_compile.never_compiled(self._look)
        self._num_looks = 0

    def start(self, models: Iterable[nn.Module]) -> None:
        """Begin the first step; hooks would change what torch.compile makes of a module, and are left out with it."""
        self._ledger.look("beginning", "the first step")
        if not self._ledger.looks:
            return
        self._stop_watching = torch_compile.on_compile_start(self._unhook)
        begins, ended = map(torch_compile.never_compiled, (self._begins, self._ended))
        # Hooks of modules inside would add a frame to the stacks of all that they allocate in this step.
        for module in () if torch_compile.is_asked_to_compile() else models:
            with suppress(TypeError):
                self._hooks += [hook_call(module, begins), hook_after_call(module, ended)]

    def stop(self) -> None:
        """End the first step, if it is under way."""
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
            self._unhook()
            self._ledger.look("end", "the first step")

    def _unhook(self) -> None:
        while self._hooks:
            self._hooks.pop()()

    def _begins(self, module: nn.Module, *_: Any) -> None:
        self._look("beginning", f"the call of {self._text(module)}")

    def _ended(self, module: nn.Module, args: Any, output: Any) -> None:
        self._look("end", f"the call of {self._text(module)}")
        with self._guarded():
            tensor = next((each for _, each in leaves(output, torch.Tensor) if each.requires_grad), None)
            if self._hooks and tensor is not None and tensor.grad_fn is not None:
                what = f"the output of {self._text(module)}"
                reached = partial(self._reached, "gradient", what, users_line_here())
                self._hooks.append(tensor.grad_fn.register_prehook(reached).remove)

    def _look(self, edge: str, what: str, line: Any = None, *_: Any) -> None:
        with self._guarded():
            if self._hooks:
                self._ledger.look(edge, what, line)
                self._num_looks += 1
            if self._num_looks == _MOST_LOOKS:
                self._unhook()

    def _text(self, module: nn.Module) -> str:
        name, kind = self._names.get(id(module), ""), type(module).__name__
        return f"{name} ({kind})" if name else kind
