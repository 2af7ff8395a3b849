"""The autograd graph: which node made a tensor, and what a node keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final

import torch

from tracer.capture.torch_private.torch_tensors import as_plain_tensors


def has_next_functions(kind: type) -> bool:
    """True if the objects of a class are nodes of an autograd graph."""
    return hasattr(kind, "next_functions") and hasattr(kind, "register_hook")


def made_by(tensor: torch.Tensor) -> Any:
    """The autograd node that made a tensor, or None; of a view that of its base, as a changed view makes a new one."""
    try:
        if tensor._is_view():
            return None if tensor._base is None else tensor._base.grad_fn
        return tensor.grad_fn
    except RuntimeError:  # torch does not tell the history of every tensor that was changed in place
        return None


def is_leaf(tensor: torch.Tensor) -> bool:
    """True if no autograd node made a tensor; False if torch cannot tell.

    torch cannot tell for a view that was made with gradients off, after its base was changed with gradients on.
    """
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


_is_leaf, _grad = attrgetter("is_leaf"), attrgetter("grad")


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor's gradient where it keeps one; to ask any other tensor for it makes torch warn."""
    return tensor.grad if is_leaf(tensor) or tensor.retains_grad else None


def gradients_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradient of each tensor, without a Python call for each, which a profiler would record."""
    with as_plain_tensors():
        try:
            are_leaves = all(map(_is_leaf, tensors))
        except RuntimeError:  # see `is_leaf`
            are_leaves = False
        return list(map(_grad, tensors)) if are_leaves else list(map(gradient_of, tensors))


@cache
def _saved_names(node_type: type) -> tuple[str, ...]:
    return tuple(name for name in dir(node_type) if name.startswith("_raw_saved"))


def saved_by(node: Any) -> Iterator[torch.Tensor]:
    """The tensors that an autograd node keeps for backward, as kept: no hook unpacks or recomputes anything."""
    node_type: type = type(node)
    for name in _saved_names(node_type):
        try:
            saved = getattr(node, name) if _TELLS_DATA else _unpacked(node, name)
        except RuntimeError:  # freed by a backward
            continue
        for value in saved if isinstance(saved, tuple | list) else (saved,):
            tensor = getattr(value, "data", None) if _TELLS_DATA else value
            if isinstance(tensor, torch.Tensor):
                yield tensor


_TELLS_DATA: Final = hasattr(torch._C._autograd.SavedTensor, "data")
"""True if torch returns the saved tensor, as 2.11 does; 2.9 returns the one for backward, which hooks unpack."""
_looking = threading.local()


def _unpacked(node: Any, name: str) -> Any:
    """Return the value that a node keeps without hooks.

    Raises:
        RuntimeError: Hooks keep it, or a backward has freed it.
    """
    given = name.removeprefix("_raw")
    _looking.is_on = True
    try:
        return getattr(node, given if hasattr(type(node), given) else given.removeprefix("_"))
    finally:
        _looking.is_on = False


def _let_hooks_refuse() -> None:
    """Have hooks by which a program keeps tensors, such as checkpoints, unpack nothing while somebody looks."""
    autograd: Any = torch._C._autograd
    push = autograd._push_saved_tensors_default_hooks

    def push_refusing(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        def unpack_for_backward(packed: Any) -> Any:
            if getattr(_looking, "is_on", False):
                raise RuntimeError("Kept by hooks")
            return unpack(packed)

        push(pack, unpack_for_backward)

    autograd._push_saved_tensors_default_hooks = push_refusing


if not _TELLS_DATA:  # before the program uses any, which is why it is done on import
    _let_hooks_refuse()


def accumulates_into(node: Any) -> Iterator[torch.Tensor]:
    """The leaf whose gradient an autograd node accumulates, which the node keeps alive; nothing of any other node."""
    if isinstance(leaf := getattr(node, "variable", None), torch.Tensor):
        yield leaf


def running_node() -> Any:
    """The autograd node at work on this thread, or None."""
    return torch._C._current_autograd_node()
