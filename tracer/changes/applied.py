"""Makes changes of an unchanged script while it runs, by hooks on its modules and optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Self

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tracer.capture.objects.call_hooks import hook_every_module
from tracer.changes.hooks import Hooks, Reached
from tracer.changes.kinds import all_kinds
from tracer.changes.script_changes import SCRIPT_CHANGES
from tracer.workloads.module_steps import repeated_blocks


class AppliedChanges:
    """Makes changes for as long as it is entered; what they have changed in models and optimizers stays."""

    def __init__(self, changes: Sequence[str], *, choose: Callable[[], Sequence[str]] | None = None) -> None:
        """Set up; the changes are in effect while this is entered.

        Args:
            choose: Asked for them instead, before the first call of a module, or in `decide`.
        """
        all_kinds()
        there = [name for name in SCRIPT_CHANGES if name in Hooks.of]
        self._all = {name: Hooks.of[name]() for name in there}
        self.hooks = self._of(changes)
        """Hooks by the name of the change that they make."""
        self._choose = choose
        self._early: dict[str, ExitStack] = {}
        self._until_chosen, self._end, self._in_call = ExitStack(), ExitStack(), ExitStack()
        self._around: list[Hooks] = []
        self._depth = 0
        self._reached = Reached.START
        # Weak: what a program has replaced is not kept, and its `id` is another's soon.
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def _of(self, changes: Iterable[str]) -> dict[str, Hooks]:
        wanted = {name for name in changes if not SCRIPT_CHANGES[name].settings}
        return {name: self._all[name] for name in self._all if name in wanted}

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence on each change that could not be made, and lines for the script where a library was used."""
        # A program whose memory ended before its first step has not come to its loss yet, say.
        known = ((name, hooks) for name, hooks in self.hooks.items() if hooks.known_after <= self._reached)
        not_applicable = [f"{name}: {why}" for name, hooks in known if (why := hooks.why_not())]
        return (*not_applicable, *(hooks.in_script for hooks in self.hooks.values() if hooks.in_script))

    def __enter__(self) -> Self:
        """Register the hooks that make the changes, or those that find out when they have to be chosen."""
        for name, hooks in (self.hooks if self._choose is None else self._all).items():
            hooks.is_on = self._choose is None
            self._early[name] = ExitStack()
            self._early[name].enter_context(hooks.early())
        if self._choose is None:
            self._register()
        else:
            self._until_chosen.callback(hook_every_module(self._before_first_call))
        return self

    def decide(self) -> None:
        """Ask for the changes now, and make them from here on; nothing where they are known."""
        choose, self._choose = self._choose, None
        if choose is None:
            return
        self._until_chosen.close()
        self.hooks = self._of(choose())
        for name, early in self._early.items():
            self._all[name].is_on = name in self.hooks
            if name not in self.hooks:
                early.close()
        self._register()

    def _before_first_call(self, module: nn.Module, args: Any) -> None:
        self.decide()
        if self._is_on_modules():  # the hooks of this call were read before ours was among them
            self._before_call(module, args)

    def _with(self, *names: str) -> list[Hooks]:
        return [
            hooks
            for hooks in self.hooks.values()
            if any(getattr(type(hooks), name) is not getattr(Hooks, name) for name in names)
        ]

    def _is_on_modules(self) -> bool:
        return bool(self._with("on_model", "in_call", "before_call", "after_call"))

    def _register(self) -> None:
        self._around = self._with("before_call", "after_call")
        if self._is_on_modules():
            self._end.callback(hook_every_module(self._before_call, self._after_call))
        self._end.callback(register_optimizer_step_post_hook(self.step_ended).remove)
        for hooks in self.hooks.values():
            self._end.enter_context(hooks.entered())
        # The first that makes a step leaves the optimizer without parameters for the others, and gives them back last.
        for hooks in self._with("before_step"):
            self._end.callback(register_optimizer_step_pre_hook(hooks.before_step).remove)
        for hooks in reversed(self._with("after_step")):
            self._end.callback(register_optimizer_step_post_hook(hooks.after_step).remove)

    def __exit__(self, *_: object) -> None:
        for stack in (self._in_call, self._until_chosen, *self._early.values(), self._end):
            stack.close()

    def _before_call(self, module: nn.Module, args: Any) -> None:
        self._depth += 1
        for hooks in self._around:
            hooks.before_call(module)
        if self._depth > 1:
            return
        self._reached = max(self._reached, Reached.CALL)
        if module not in self._seen:
            blocks = [block for block in repeated_blocks(module) if block not in self._seen]
            for hooks in self.hooks.values():
                hooks.on_model(module, blocks)
            # All inside, too: backward calls them by themselves where they compute again.
            self._seen.update(module.modules())
        for hooks in self.hooks.values():
            if (context := hooks.in_call(module)) is not None:
                self._in_call.enter_context(context)

    def _after_call(self, module: nn.Module, args: Any, output: Any) -> Any:
        for hooks in self._around:
            output = hooks.after_call(module, output)
        self._depth -= 1
        if self._depth == 0:
            self._in_call.close()
        return output

    def step_ended(self, *_: object) -> None:
        """Take a change that was not made by now as one that cannot be; called after each step of an optimizer, too."""
        self._reached = Reached.STEP
