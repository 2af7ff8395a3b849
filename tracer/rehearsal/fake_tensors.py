"""Turns a model and its optimizer into tensors without memory: all that refers to them stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
        mode: The mode of `torch_fake.fake_tensors`.
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
