"""The modules, optimizers and parameters that a step function holds on to, which nobody has named."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tracer.capture.torch_private import torch_modules
from tracer.nested import leaves

_MAX_DEPTH = 3


def held_by(things: Iterable[Any]) -> tuple[list[nn.Module], list[torch.optim.Optimizer], list[Tensor]]:
    """What functions, methods and objects refer to: modules, optimizers, and leaf tensors that want a gradient.

    Followed are what a function closes over, its defaults, the globals that it names, what a method is bound to, and
    containers of these.
    """
    objects_by_id: dict[int, Any] = {}
    seen: set[int] = set()
    for thing in things:
        _follow(thing, objects_by_id, seen, 0)
    objects = list(objects_by_id.values())
    return (
        [object_ for object_ in objects if isinstance(object_, nn.Module)],
        [object_ for object_ in objects if isinstance(object_, torch.optim.Optimizer)],
        [object_ for object_ in objects if isinstance(object_, Tensor)],
    )


def in_order_of_moving(module: nn.Module) -> Iterator[Tensor]:
    """Parameters, their gradients and buffers as `Module.to` comes to them: those of inner modules first."""
    for inner in torch_modules.child_modules(module).values():
        yield from in_order_of_moving(inner)
    for _, _, tensor in torch_modules.parameters_and_buffers(module):
        if tensor.layout is torch.strided:
            yield tensor
            if tensor.is_leaf and tensor.grad is not None:
                yield tensor.grad


def _follow(thing: Any, objects_by_id: dict[int, Any], seen: set[int], depth: int) -> None:
    if id(thing) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(thing))
    if isinstance(thing, nn.Module | torch.optim.Optimizer):
        objects_by_id[id(thing)] = thing
    elif isinstance(thing, Tensor):
        if thing.requires_grad and thing.is_leaf:
            objects_by_id[id(thing)] = thing
    else:
        for inner in _referred_to(thing):
            _follow(inner, objects_by_id, seen, depth + 1)


def _referred_to(thing: Any) -> Iterator[Any]:
    if isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, types.MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, types.FunctionType):
        yield from (cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell))
        yield from thing.__defaults__ or ()
        names = thing.__code__.co_names
        yield from (thing.__globals__[name] for name in names if _is_ours_to_see(thing.__globals__.get(name)))
    elif isinstance(thing, list | tuple | dict):
        for kind in (nn.Module, torch.optim.Optimizer, Tensor):
            yield from (leaf for _, leaf in leaves(thing, kind))
    elif is_dataclass(thing) and not isinstance(thing, type):
        yield from (getattr(thing, field.name, None) for field in fields(thing))
    elif hasattr(thing, "__dict__") and not isinstance(thing, type | types.ModuleType):
        yield from vars(thing).values()


def _is_ours_to_see(value: Any) -> bool:
    return isinstance(value, nn.Module | torch.optim.Optimizer | Tensor | list | dict | types.FunctionType)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
