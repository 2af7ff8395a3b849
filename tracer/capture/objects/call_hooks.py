"""Hooks on a model's calls and on an optimizer's steps that no compiled code ever contains.

torch.compile reads a hook like the user's own code: it would break the graph, or have the model compiled again when the
hook comes or goes. So all hooks leave when a compilation begins, and come back only where compiled code does not look.
None is ever part of what pickle or a copy sees of a model or an optimizer (`hooks_beside.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tracer.capture.ignored_warnings import ignore
from tracer.capture.objects.hooks_beside import hook_after_call, hook_call, hook_step
from tracer.capture.objects.weak_references import alive, weak_reference
from tracer.capture.torch_private import torch_compile, torch_modules
from tracer.errors import first_line

OnCall = Callable[..., None]
OnStep = Callable[[torch.optim.Optimizer, tuple[Any, ...], dict[str, Any]], None]


class CallHooks:
    """Calls back before models' calls, and before and after any optimizer's step, while nothing of them is compiled."""

    def __init__(
        self,
        *,
        models: Iterable[nn.Module] = (),
        on_call: OnCall | None = None,
        after_call: OnCall | None = None,
        optimizers: Iterable[torch.optim.Optimizer] = (),
        before_step: OnStep | None = None,
        after_step: OnStep | None = None,
    ) -> None:
        """Prepare; nothing is registered.

        Args:
            optimizers: Optimizers expected to step. Every optimizer of torch's kind is told of, also one that is not
                among them; of another kind, only these.
        """
        self._refused_calls: dict[str, None] = {}
        self._refused_steps: dict[str, None] = {}
        self._has_seen_steps = False
        self._on_call: OnCall | None = on_call
        self._after_call: OnCall | None = after_call
        # Weak: what a program replaces meanwhile is not kept.
        hears_calls = on_call is not None or after_call is not None
        self._models = [weak_reference(model) for model in models] if hears_calls else []
        self._optimizers = [weak_reference(optimizer) for optimizer in optimizers]
        self._before_step, self._after_step = before_step, after_step
        self._on_calls: list[Callable[[], None]] = []
        self._on_steps: list[Callable[[], None]] = []
        self._stop_watching: Callable[[], None] | None = None
        self._num_stepping = 0
        self._is_on = self._were_driven_away = self._sees_ends = False

    @property
    def see_steps(self) -> bool:
        """True if optimizers' steps are observed, which needs that nothing was compiled in this process."""
        return self._is_on and not torch_compile.has_compiled()

    @property
    def refused(self) -> tuple[str, ...]:
        """Sentences on what takes no hook and was not seen otherwise, as a wrapper's inner optimizer is."""
        return (*self._refused_calls, *(() if self._has_seen_steps else self._refused_steps))

    def start(self) -> None:
        """Register the hooks, now and again after each compilation."""
        self._is_on = True
        self._stop_watching = torch_compile.on_compile_start(self._compilation_begins)
        self._register()

    def renew(self) -> None:
        """Between two steps: register again what a compilation has driven away and what it will not look at."""
        self._num_stepping = 0
        # Only behind a compilation: registering reads the collector's list of objects, which is nothing for every step.
        if self._stop_watching is not None and self._were_driven_away:
            self._were_driven_away = False
            self._register()

    def stop(self) -> None:
        """Remove all, and let go of models and optimizers."""
        self._is_on = False
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        self._on_call = self._after_call = self._before_step = self._after_step = None
        self._remove()
        self._models, self._optimizers = [], []

    def _register(self) -> None:
        if self.see_steps:
            self._on_steps.append(register_optimizer_step_pre_hook(self._step_begins).remove)
            for optimizer in alive(self._optimizers):
                if not torch_modules.calls_hooks_of_all_optimizers(optimizer):
                    self._try(optimizer, partial(hook_step, optimizer, self._step_begins, self._step_ends))
        # Behind a graph break an eager model is called from compiled code, which would compile the hooks as well.
        before, after = (
            torch_compile.never_compiled(call) if call is not None else None
            for call in (self._on_call, self._after_call)
        )
        for model in alive(self._models):
            # And what torch.compile has put around it, whose hooks run outside the compiled code.
            inner = [] if torch_compile.reads_hooks_in_compiled_code(model) else [model]
            for module in (*inner, *torch_compile.compiled_wrappers(model)):
                if before is not None:
                    self._try(module, partial(hook_call, module, before))
                if after is not None:
                    self._try(module, partial(hook_after_call, module, after))

    def _try(self, target: object, register: Callable[[], Callable[[], None]]) -> None:
        of_model = isinstance(target, nn.Module)
        try:
            (self._on_calls if of_model else self._on_steps).append(register())
        except Exception as error:
            if _steps_by_another(target):
                return
            subject, sentences = ("inputs", self._refused_calls) if of_model else ("gradients", self._refused_steps)
            sentences[f"The {subject} of {type(target).__name__} are not observed: {first_line(error)}."] = None

    def _compilation_begins(self) -> None:
        # While an optimizer walks over the hooks, none may go; its own step is not what is being compiled then.
        if not self._num_stepping:
            self._remove()
            self._were_driven_away = True

    def _remove(self) -> None:
        on_calls, self._on_calls = self._on_calls, []
        for remove in on_calls:
            remove()
        on_steps, self._on_steps, self._sees_ends = self._on_steps, [], False
        remove_hooks(on_steps)

    def _step_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_on:  # stopped inside of a step, which it is removed behind
            return
        self._num_stepping += 1
        self._has_seen_steps = True
        # Not before: a session may begin at the end of a step, when torch walks over the hooks of that kind.
        if not self._sees_ends:
            self._sees_ends = True
            self._on_steps.append(register_optimizer_step_post_hook(self._step_ends).remove)
        if self._before_step is not None:
            self._before_step(optimizer, args, kwargs)

    def _step_ends(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._num_stepping = max(0, self._num_stepping - 1)
        if self._after_step is not None:
            self._after_step(optimizer, args, kwargs)


def _steps_by_another(target: object) -> bool:
    """True if an optimizer wraps another, as Lightning's and Accelerate's wrappers do: the inner one has the hooks."""
    held = vars(target).values() if isinstance(target, torch.optim.Optimizer) else ()
    return any(isinstance(value, torch.optim.Optimizer) and value is not target for value in held)


def hook_every_module(
    before: Callable[[nn.Module, Any], None], after: Callable[[nn.Module, Any, Any], Any] | None = None
) -> Callable[[], None]:
    """Have functions called around any module's call, outside of code that is compiled ahead of time.

    torch warns of such hooks where a model is compiled; these are not the user's.
    """
    # At the end: a script's own filters come before, and are left as they are.
    heed = ignore(r"Using `torch\.compile\(module\)` when there are global hooks", is_last=True)
    registered = ExitStack()
    is_on = True

    def register() -> None:
        registered.callback(register_module_forward_pre_hook(before).remove)
        if after is not None:
            registered.callback(register_module_forward_hook(after, always_call=True).remove)

    @contextmanager
    def left_out() -> Iterator[None]:
        registered.close()
        try:
            yield
        finally:
            if is_on:
                register()

    def remove() -> None:
        nonlocal is_on
        is_on = False
        leave_out_no_longer()
        registered.close()
        heed()

    register()
    leave_out_no_longer = torch_compile.around_ahead_of_time(left_out)
    return remove


_LEFT: list[Callable[[], None]] = []


def remove_hooks(removes: Iterable[Callable[[], None]]) -> None:
    """Remove hooks that are deaf already; inside an optimizer's step they stay until the next call outside of one.

    torch goes over its hooks without a copy: one that goes at the end of a step, when torch walks over them, ends the
    user's step with "OrderedDict mutated during iteration".
    """
    _LEFT.extend(removes)
    if not torch_modules.is_inside_step():
        while _LEFT:
            _LEFT.pop()()
