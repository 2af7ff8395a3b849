"""Hooks that torch's loop over an object's hooks reads, and that nothing else ever sees.

torch keeps hooks in dictionaries in the object's state, so that a hook registered there is saved and copied with it. A
hook for all modules would be in no object, and would cost every submodule's call. So the dictionary is replaced by a
`HooksBeside`. torch's loop goes over `items()` (a module's calls) or `values()` (an optimizer's steps): that one method
shows one hook more. Whatever else is asked, the dictionary below answers, which is the guarantee:

    >>> model = nn.Linear(2, 2)
    >>> unhooked = pickle.dumps(model)
    >>> end = hook_call(model, lambda module, args, kwargs: print("called"))
    >>> _ = model(torch.ones(1, 2))
    called
    >>> len(model._forward_pre_hooks), list(model._forward_pre_hooks), pickle.dumps(model) == unhooked
    (0, [], True)
    >>> copy.deepcopy(model)._forward_pre_hooks
    OrderedDict()
    >>> theirs = model.register_forward_pre_hook(lambda module, args: None)
    >>> end()
    >>> type(model._forward_pre_hooks).__name__, list(model._forward_pre_hooks) == [theirs.id]
    ('OrderedDict', True)

`bool()` and `in` know the hook too: a call asks `bool()` whether there are hooks, and `in` how to call one.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, KeysView, MutableMapping
from functools import cache
from itertools import chain
from types import FunctionType
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tracer.capture.objects.weak_references import weak_reference
from tracer.capture.torch_private import torch_compile, torch_modules
from tracer.collector import objects_with_type

Hook = Callable[..., Any]


class HooksBeside(MutableMapping[Any, Any], OrderedDict[Any, Any]):  # type: ignore[misc, metaclass]
    """A dictionary of hooks with further ones that only `items()` or `values()` shows, whichever torch's loop reads."""

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
        """True if a call has to look for hooks."""
        return bool(self.beside or self.below)

    def __contains__(self, key: object) -> bool:
        """True if a key is in the dictionary below, or one of ours, which only torch's loop has."""
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
    for handle in objects_with_type((RemovableHandle,)):
        if handle.hooks_dict_ref() is hooks:
            handle.hooks_dict_ref = weakref.ref(hooks.below)
        handle.extra_dict_ref = tuple(
            weakref.ref(hooks.below) if extra() is hooks else extra for extra in handle.extra_dict_ref
        )
