"""Tensors without memory: which objects a step holds on to, turned into such where they are, and printed as numbers."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tracer.capture.torch_private import torch_fake, torch_modules, torch_tensors
from tracer.nested import leaves
from tracer.workloads.module_tensors import all_tensors


def turn_all_fake(
    mode: Any, modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer], others: Iterable[Tensor] = ()
) -> None:
    """Let go of the memory of parameters, buffers, gradients and optimizers' state.

    What cannot be turned, since something else holds on to it, is replaced in the modules and optimizers.

    Args:
        others: Tensors of no module.
    """
    modules, optimizers = list(modules), list(optimizers)
    bases: dict[int, Tensor] = {}
    replaced: dict[int, Tensor] = {}
    for tensor in {id(real): real for real in (*_tensors(modules, optimizers), *others)}.values():
        if torch_fake.is_fake(tensor) or tensor.layout is not torch.strided:
            continue
        storage = tensor.untyped_storage()
        key = torch_tensors.storage_key(storage)
        if key not in bases:
            bases[key] = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")
        if not torch_fake.turn_fake(mode, tensor, bases[key]):
            replaced[id(tensor)] = _stand_in(mode, tensor)
    if replaced:
        _replace(modules, optimizers, replaced)


def _tensors(modules: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> Iterator[Tensor]:
    for tensor in (member for model in modules for member in all_tensors(model)):
        if tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad
        yield tensor
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
        yield from (tensor for _, tensor in leaves(dict(optimizer.state), Tensor))


def _stand_in(mode: Any, tensor: Tensor) -> Tensor:
    fake = torch_fake.fake_copy(mode, tensor)
    return nn.Parameter(fake.detach(), tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake


def _replace(modules: list[nn.Module], optimizers: list[torch.optim.Optimizer], by: dict[int, Tensor]) -> None:
    for module in (part for model in modules for part in model.modules()):
        for name, _, tensor in list(torch_modules.parameters_and_buffers(module)):
            if id(tensor) in by:
                setattr(module, name, by[id(tensor)])
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [by.get(id(parameter), parameter) for parameter in group["params"]]
        for parameter in [tensor for tensor in optimizer.state if id(tensor) in by]:
            optimizer.state[by[id(parameter)]] = optimizer.state.pop(parameter)


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


@contextmanager
def formatted() -> Iterator[None]:
    """Inside, a tensor with one value is formatted as the number that the program would read.

    torch does so for its own tensors, and has no format for a fake one. A mode that sees calls of torch's functions
    would do as well, but under one they hold arguments that they let go of otherwise.
    """
    by_torch = Tensor.__format__

    def by_value(tensor: Tensor, format_spec: str) -> str:
        if tensor.dim() == 0:
            return format(tensor.detach().item(), format_spec)
        return str(by_torch(tensor, format_spec))  # type: ignore[no-untyped-call]

    Tensor.__format__ = by_value  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.__format__ = by_torch  # type: ignore[method-assign]
