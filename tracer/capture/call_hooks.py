"""Hooks on a model's calls and on an optimizer's steps that no compiled code ever contains.

torch.compile reads a hook like the user's own code: it would break the graph, or have the model compiled again when the
hook comes or goes. So all hooks leave when a compilation begins, and come back only where compiled code does not look.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tracer.capture import torch_private

OnCall = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]
OnStep = Callable[[torch.optim.Optimizer, tuple[Any, ...], dict[str, Any]], None]


class CallHooks:
    """Calls back before a model's call, and before and after an optimizer's step, while nothing of them is compiled.

    Attributes:
        refused: Sentences on what does not take a hook.
    """

    def __init__(
        self,
        *,
        model: nn.Module | None = None,
        on_call: OnCall | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        before_step: OnStep | None = None,
        after_step: OnStep | None = None,
    ) -> None:
        """Prepare; nothing is registered. A model without `on_call`, or an optimizer without both, is left alone."""
        self.refused: list[str] = []
        self._model: nn.Module | None = model
        self._on_call: OnCall | None = on_call
        self._optimizer, self._before_step, self._after_step = optimizer, before_step, after_step
        self._handles: list[Any] = []
        self._stop_watching: Callable[[], None] | None = None
        self._is_stepping = self._were_driven_away = False

    @property
    def see_steps(self) -> bool:
        """Whether the optimizer's steps are seen: there is one, and nothing was compiled in this process."""
        return self._optimizer is not None and not torch_private.has_compiled()

    def start(self) -> None:
        """Register."""
        if self._model is None and self._optimizer is None:
            return
        self._stop_watching = torch_private.on_compile_start(self._compilation_begins)
        self._register()

    def renew(self) -> None:
        """Between two steps: register again what a compilation has driven away and what it will not look at."""
        self._is_stepping = False
        # Only behind a compilation: registering reads the collector's list of objects, which is nothing for every step.
        if self._stop_watching is not None and self._were_driven_away:
            self._were_driven_away = False
            self._register()

    def stop(self) -> None:
        """Remove all, and let go of model and optimizer."""
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        self._remove()
        self._model = self._on_call = self._optimizer = self._before_step = self._after_step = None

    def _register(self) -> None:
        optimizer, on_call = self._optimizer, self._on_call
        if optimizer is not None and self.see_steps:
            self._try(optimizer, lambda: optimizer.register_step_pre_hook(self._step_begins))
            self._try(optimizer, lambda: optimizer.register_step_post_hook(self._step_ends))
        if on_call is not None:
            # Behind a graph break an eager model is called from compiled code, which would compile the hook as well.
            on_call = torch.compiler.disable(on_call)  # type: ignore[no-untyped-call]
            for module in self._modules():
                self._try(module, partial(module.register_forward_pre_hook, on_call, with_kwargs=True))

    def _modules(self) -> list[nn.Module]:
        """The model, and what torch.compile has put around it, whose hooks run outside the compiled code."""
        if self._model is None:
            return []
        wrappers = torch_private.compiled_wrappers(self._model)
        return wrappers if torch_private.reads_hooks_in_compiled_code(self._model) else [self._model, *wrappers]

    def _try(self, target: object, register: Callable[[], Any]) -> None:
        """Register a hook; that something takes none, as a ScriptModule, is a sentence."""
        try:
            self._handles.append(register())
        except Exception as error:
            what = "inputs" if isinstance(target, nn.Module) else "gradients"
            sentence = f"The {what} of {type(target).__name__} are not observed: {str(error).splitlines()[0]}."
            if sentence not in self.refused:
                self.refused.append(sentence)

    def _compilation_begins(self) -> None:
        # While the optimizer walks over its hooks, none may go; its own step is not what is being compiled then.
        if not self._is_stepping:
            self._remove()
            self._were_driven_away = True

    def _remove(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def _step_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._is_stepping = True
        if self._before_step is not None:
            self._before_step(optimizer, args, kwargs)

    def _step_ends(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._is_stepping = False
        if self._after_step is not None:
            self._after_step(optimizer, args, kwargs)
