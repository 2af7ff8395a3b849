"""A look at all tensors and graphs when memory ran out: memory that graphs keep, and tensors of float64.

A graph is untrained, such as a teacher's, if no optimizer updates any of its leaves and no backward has given them a
gradient; before the first backward of an optimizer's own parameters, only if its modules are in evaluation mode, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tracer.capture.objects.known_storages import ObjectsAtFailure
from tracer.capture.objects.live_tensors import nodes_behind, objects_of
from tracer.capture.objects.storage_columns import storages_with_memory
from tracer.capture.torch_private import torch_graph, torch_modules, torch_tensors


def look_at_failure(device: torch.device, error: BaseException | None, *, is_evaluating: bool) -> ObjectsAtFailure:
    """Look at every tensor and graph that Python can reach now.

    Where graphs have more than `MAX_NODES` nodes, none counts as untrained, and nothing is known of all that they keep.
    """
    called = torch_modules.outermost_called(error) if error is not None else None
    objects: list[Any] = objects_of((Tensor, nn.Module, torch.optim.Optimizer))
    tensors = [each for each in objects if isinstance(each, Tensor)]
    with torch_tensors.as_plain_tensors():
        nodes, is_complete = nodes_behind(tensors)
        saved = [tensor for node in nodes for tensor in torch_graph.saved_by(node)]
        wide = [tensor for tensor in (*tensors, *saved) if tensor.dtype is torch.float64]
        return ObjectsAtFailure(
            is_evaluating=is_evaluating or _is_inference(called, objects),
            is_training=called is not None and called.training,
            in_graphs=frozenset(_addresses(saved, device)) if is_complete else None,
            untrained=_kept_by_untrained(objects, nodes, device) if is_complete else frozenset(),
            float64=frozenset(_addresses(wide, device)),
        )


def _is_inference(called: nn.Module | None, objects: Sequence[Any]) -> bool:
    """Whether a call failed of a model in evaluation mode, in a program without any optimizer or gradient."""
    if called is None or called.training or any(isinstance(each, torch.optim.Optimizer) for each in objects):
        return False
    parameters = [*called.parameters()]
    return any(each.requires_grad for each in parameters) and all(each.grad is None for each in parameters)


def _kept_by_untrained(objects: Sequence[Any], nodes: Sequence[Any], device: torch.device) -> frozenset[int]:
    """Return the addresses of memory that only untrained graphs keep; none where there is no optimizer."""
    optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
    trained = {id(parameter) for each in optimizers for group in each.param_groups for parameter in group["params"]}
    if not trained:
        return frozenset()
    stepped = {id(parameter) for each in optimizers for parameter in each.state}
    modules = [each for each in objects if isinstance(each, nn.Module)]
    owned = [
        (tensor, module.training) for module in modules for *_, tensor in torch_modules.parameters_and_buffers(module)
    ]
    without_gradient = {id(tensor) for tensor, _ in owned if torch_graph.gradient_of(tensor) is None}
    ours = {id(tensor) for tensor, _ in owned} & trained
    learning = set(trained)
    if not ours & stepped and ours <= without_gradient:  # A model in training mode may still get its optimizer
        learning |= {id(tensor) for tensor, is_training in owned if is_training}
    at_rest = without_gradient - learning
    leaves = [(id(node), id(leaf) in at_rest) for node in nodes for leaf in torch_graph.accumulates_into(node)]
    idle, learns = (_leading_to(nodes, [node for node, rests in leaves if rests is of]) for of in (True, False))
    kept, needed = set[int](), _addresses((tensor for tensor, _ in owned), device)
    for node in nodes:
        into = kept if id(node) in idle and id(node) not in learns else needed
        into |= _addresses(torch_graph.saved_by(node), device)
    return frozenset(kept - needed)


def _leading_to(nodes: Sequence[Any], leaves: Iterable[int]) -> set[int]:
    """Return the `id()`s of nodes from which a backward reaches one of some nodes."""
    above: dict[int, list[int]] = {}
    for node in nodes:
        for inner, _ in node.next_functions:
            if inner is not None:
                above.setdefault(id(inner), []).append(id(node))
    found, level = set[int](), list(leaves)
    while level:
        node = level.pop()
        if node not in found:
            found.add(node)
            level += above.get(node, ())
    return found


def _addresses(tensors: Iterable[Tensor], device: torch.device) -> set[int]:
    storages = (storage for tensor in tensors for storage in _storages(tensor))
    return {storage.data_ptr() for storage in storages if storage.device == device}


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    try:
        return storages_with_memory(tensor)
    except Exception:  # A subclass of other people's raises what it likes; the walk notes it as not observed.
        return []
