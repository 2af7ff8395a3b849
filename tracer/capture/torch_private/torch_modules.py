"""Attributes of modules and optimizers, read without calling methods that a user may override."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import itemgetter
from types import FrameType
from typing import Any

import torch


def parameters_and_buffers(module: torch.nn.Module) -> Iterator[tuple[str, bool, torch.Tensor]]:
    """Name, whether it is a parameter, and tensor of a module's own, without calling a method that it may override."""
    if isinstance(module, torch.jit.ScriptModule):
        yield from ((name, True, tensor) for name, tensor in module.named_parameters(recurse=False))
        yield from ((name, False, tensor) for name, tensor in module.named_buffers(recurse=False))
        return
    for attribute, is_parameter in (("_parameters", True), ("_buffers", False)):
        for name, tensor in (module.__dict__.get(attribute) or {}).items():
            if isinstance(tensor, torch.Tensor):
                yield str(name), is_parameter, tensor


def outermost_called(error: BaseException) -> torch.nn.Module | None:
    """The outermost module in whose call an exception arose; None if it arose in none."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "_call_impl" and isinstance(module := frame.f_locals.get("self"), torch.nn.Module):
            return module
    return None


_of_parameters, _of_modules = itemgetter("_parameters"), itemgetter("_modules")


def parameters_by_id(modules: Iterable[torch.nn.Module]) -> dict[int, torch.nn.Parameter] | None:
    """Every parameter in some modules by `id()`, level by level; None where one keeps them elsewhere, as in scripts.

    What `Module.named_parameters` gives takes some forty calls of Python's for a module, which a profiler records; this
    takes some ten for a level.
    """
    level, seen = list(modules), set[int]()
    parameters: dict[int, torch.nn.Parameter] = {}
    while level:
        try:
            inside = list(map(vars, level))
            own = list(chain.from_iterable(map(dict.values, map(_of_parameters, inside))))
            children = list(chain.from_iterable(map(dict.values, map(_of_modules, inside))))
        except (KeyError, TypeError):
            return None
        parameters |= zip(map(id, own), own, strict=True)
        by_id = dict(zip(map(id, children), children, strict=True))
        level = [child for number, child in by_id.items() if child is not None and number not in seen]
        seen |= by_id.keys()
    parameters.pop(id(None), None)
    return parameters


def child_modules(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """A module's children by name, without calling a method that it may override."""
    if isinstance(module, torch.jit.ScriptModule):
        return dict(module.named_children())
    children = module.__dict__.get("_modules") or {}
    return {str(name): child for name, child in children.items() if isinstance(child, torch.nn.Module)}


def calls_hooks_of_all_optimizers(optimizer: object) -> bool:
    """True if an optimizer's step calls the hooks registered for every optimizer: torch has wrapped it."""
    return hasattr(getattr(type(optimizer), "step", None), "hooked")


def is_inside_step() -> bool:
    """True if an optimizer of torch's kind is stepping in this thread, its hooks included."""
    step = torch.optim.Optimizer.profile_hook_step(calls_hooks_of_all_optimizers).__code__
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        # What torch.compile resumes behind a break in its graph has a longer name.
        if code.co_filename == step.co_filename and step.co_name in code.co_name:
            return True
        frame = frame.f_back
    return False


BEFORE_CALL_HOOKS = "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"
"""Attributes of a module with the hooks that are called before it, and with those that get its keywords."""
AFTER_CALL_HOOKS = "_forward_hooks"
STEP_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
"""Attributes of an optimizer with the hooks that are called before and after its step."""


def around_truncated_draws(call: Callable[..., torch.Tensor]) -> Callable[[], None]:
    """Have `torch.nn.init.trunc_normal_` go through a function.

    Args:
        call: Given torch's own function, the tensor, mean, standard deviation, lower and upper bound; and its generator
            by name.
    """
    init: Any = torch.nn.init
    original = init._no_grad_trunc_normal_

    def draw(*args: Any, **kwargs: Any) -> torch.Tensor:
        return call(original, *args, **kwargs)

    def end() -> None:
        init._no_grad_trunc_normal_ = original

    init._no_grad_trunc_normal_ = draw
    return end


_RANDOM_FILLS = (
    "_no_grad_normal_",
    "_no_grad_uniform_",
    "_no_grad_trunc_normal_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "orthogonal_",
    "sparse_",
)
"""Functions of `torch.nn.init` by which all of them that draw numbers fill a tensor, their first argument."""


def leave_unfilled(is_left: Callable[[torch.Tensor], bool]) -> Callable[[], None]:
    """Have `torch.nn.init` leave some tensors as they are where it would fill them with random numbers."""
    init: Any = torch.nn.init
    originals = {name: getattr(init, name) for name in _RANDOM_FILLS}

    def end() -> None:
        for name, original in originals.items():
            setattr(init, name, original)

    for name, original in originals.items():
        setattr(init, name, _unless(original, is_left))
    return end


def _unless(fill: Callable[..., torch.Tensor], is_left: Callable[[torch.Tensor], bool]) -> Callable[..., torch.Tensor]:
    @functools.wraps(fill)
    def filled(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if is_left(tensor) else fill(tensor, *args, **kwargs)

    return filled
