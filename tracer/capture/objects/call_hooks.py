"""Hooks on a model's calls and on an optimizer's steps that no compiled code ever contains.

torch.compile reads a hook like the user's own code: it would break the graph, or have the model compiled again when the
hook comes or goes. So all hooks leave when a compilation begins, and come back only where compiled code does not look.
None is ever part of what pickle or a copy sees of a model or an optimizer.

torch keeps hooks in dictionaries in the object's state, so that a hook registered there is saved and copied with it. A
hook for all modules would be in no object, and would cost every submodule's call. So a dictionary is replaced by
one that shows torch's loop over hooks one more, and everybody else the dictionary that it stands for.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, KeysView, MutableMapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import chain
from operator import is_
from types import FunctionType
from typing import Any, Literal, TypeVar, cast

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from tracer.capture.ignored_warnings import ignore
from tracer.capture.torch_private import torch_compile, torch_modules
from tracer.collector import objects_with_type
from tracer.errors import first_line

_Object = TypeVar("_Object")
WeakReference = Callable[[], _Object | None]
"""Called, it gives the object, or None when it is gone."""


def weak_reference(target: _Object) -> WeakReference[_Object]:
    """A reference to an object; one whose class has slots alone can only be held."""
    try:
        return weakref.ref(target)
    except TypeError:
        return lambda: target


def alive(references: Iterable[WeakReference[_Object]]) -> list[_Object]:
    """The objects that are still there."""
    return [target for reference in references if (target := reference()) is not None]


Hook = Callable[..., Any]


class HooksBeside(MutableMapping[Any, Any], OrderedDict[Any, Any]):  # type: ignore[misc, metaclass]
    """A dictionary of hooks with further ones that only `items()` or `values()` shows, whichever torch's loop reads.

    All else is that of the dictionary below, which stays the one place of other people's hooks.
    """

    def __init__(self, below: OrderedDict[Any, Any], loop_reads: Literal["items", "values"]) -> None:
        super().__init__()
        self.below = below  # The dictionary in whose place this is
        self.beside: dict[object, Any] = {}  # Hooks of ours, by keys that nobody else has
        self._loop_reads = loop_reads

    def items(self) -> Any:
        """Theirs, and ours where torch's loop reads these."""
        return chain(self.below.items(), self.beside.items()) if self._loop_reads == "items" else self.below.items()

    def values(self) -> Any:
        """Theirs, and ours where torch's loop reads these."""
        return chain(self.below.values(), self.beside.values()) if self._loop_reads == "values" else self.below.values()

    def keys(self) -> KeysView[Any]:
        """Keys of the dictionary below."""
        return self.below.keys()

    def __bool__(self) -> bool:
        """Whether a call has to look for hooks."""
        return bool(self.beside or self.below)

    def __contains__(self, key: object) -> bool:
        """Whether it is a key of theirs, or of ours, which only torch's loop has."""
        return key in self.below or key in self.beside

    def __len__(self) -> int:
        return len(self.below)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.below)

    def __reversed__(self) -> Any:
        return reversed(self.below)

    def __getitem__(self, key: Any) -> Any:
        return self.below[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.below[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.below[key]

    def __eq__(self, other: object) -> bool:
        return self.below == (other.below if isinstance(other, HooksBeside) else other)

    def __repr__(self) -> str:
        return repr(self.below)

    def move_to_end(self, key: Any, last: bool = True) -> None:
        """Move an entry to one end of the dictionary below."""
        self.below.move_to_end(key, last)

    def popitem(self, last: bool = True) -> tuple[Any, Any]:
        """Remove and return an entry of the dictionary below."""
        return self.below.popitem(last)

    def copy(self) -> Any:
        """A copy of the dictionary below, without the hooks beside it."""
        return self.below.copy()

    __copy__ = copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Let pickle and `copy.deepcopy` see the dictionary below only.

        Where something refers to that one weakly, as the handle of a hook does, and is pickled too, both have to stay
        one object: `typing.cast` returns what it is given.
        """
        if weakref.getweakrefcount(self.below):
            return cast, (None, self.below)
        return self.below.__reduce_ex__(protocol)


def hook_call(module: nn.Module, hook: Hook) -> Callable[[], None]:
    """Have `hook(module, args, kwargs)` called before each call of a module.

    Raises:
        TypeError: The module has no such hooks.
    """
    key = object()
    before, with_kwargs = torch_modules.BEFORE_CALL_HOOKS
    ends = [_put(module, before, key, hook, "items"), _put(module, with_kwargs, key, True, "items")]
    return lambda: [end() for end in ends].clear()


def hook_after_call(module: nn.Module, hook: Hook) -> Callable[[], None]:
    """Have `hook(module, args, output)` called after each call of a module; returned and raised as `hook_call`."""
    return _put(module, torch_modules.AFTER_CALL_HOOKS, object(), hook, "items")


def hook_step(optimizer: torch.optim.Optimizer, before: Hook, after: Hook) -> Callable[[], None]:
    """Have `before` and `after` called with an optimizer, args and kwargs; returned and raised as `hook_call`."""
    pairs = zip(torch_modules.STEP_HOOKS, (before, after), strict=True)
    ends = [_put(optimizer, attribute, object(), hook, "values") for attribute, hook in pairs]
    return lambda: [end() for end in ends].clear()


def _put(
    owner: object, attribute: str, key: object, value: Any, loop_reads: Literal["items", "values"]
) -> Callable[[], None]:
    _have_them_skipped()
    state = getattr(owner, "__dict__", {})
    present = state.get(attribute)
    if not isinstance(present, OrderedDict):
        raise TypeError(f"{type(owner).__name__} has no {attribute}")
    hooks = present if isinstance(present, HooksBeside) else HooksBeside(present, loop_reads)
    hooks.beside[key] = value
    state[attribute] = hooks

    remember = weak_reference(owner)  # what is hooked is not kept by what would unhook it

    def remove() -> None:
        hooks.beside.pop(key, None)
        state = getattr(remember(), "__dict__", {})
        if not hooks.beside and state.get(attribute) is hooks:
            state[attribute] = hooks.below
            _hand_back(hooks)

    return remove


@cache
def _have_them_skipped() -> None:
    """Have torch.compile pass over what a call asks of the hooks, which it would compile with a model's call."""
    torch_compile.leave_uncompiled(value for value in vars(HooksBeside).values() if isinstance(value, FunctionType))


def _hand_back(hooks: HooksBeside) -> None:
    """Have the handles of hooks that others registered meanwhile refer to the dictionary where these hooks are."""
    if not weakref.getweakrefcount(hooks):
        return
    for handle in objects_with_type(partial(is_, RemovableHandle)):
        if handle.hooks_dict_ref() is hooks:
            handle.hooks_dict_ref = weakref.ref(hooks.below)
        handle.extra_dict_ref = tuple(
            weakref.ref(hooks.below) if extra() is hooks else extra for extra in handle.extra_dict_ref
        )


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
        """Whether optimizers' steps are seen: nothing was compiled in this process."""
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
        for module in (module for model in alive(self._models) for module in _outside_compiled_code(model)):
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
    """Whether it has another optimizer step, as Lightning's and Accelerate's wrappers do: that one has the hooks."""
    held = vars(target).values() if isinstance(target, torch.optim.Optimizer) else ()
    return any(isinstance(value, torch.optim.Optimizer) and value is not target for value in held)


def _outside_compiled_code(model: nn.Module) -> list[nn.Module]:
    """The model, and what torch.compile has put around it, whose hooks run outside the compiled code."""
    wrappers = torch_compile.compiled_wrappers(model)
    return wrappers if torch_compile.reads_hooks_in_compiled_code(model) else [model, *wrappers]


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
