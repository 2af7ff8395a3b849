"""What graphs keep for a backward that would give gradients to nothing that is trained, such as a teacher's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tracer.capture.objects.live_tensors import nodes_behind, objects_of
from tracer.capture.objects.plain_tensors import storages_with_memory
from tracer.capture.torch_private import torch_graph, torch_modules, torch_tensors


def kept_by_untrained_graphs(device: torch.device) -> frozenset[int]:
    """Addresses of the memory on a device that only such graphs keep for backward.

    A graph is one of these where all leaves that it ends in are of modules in evaluation mode, no optimizer updates
    them and no backward has given them a gradient. Where there is no optimizer, or a graph is too large, none is.
    """
    objects: list[Any] = objects_of((Tensor, nn.Module, torch.optim.Optimizer))
    groups = (group for each in objects if isinstance(each, torch.optim.Optimizer) for group in each.param_groups)
    trained = {id(parameter) for group in groups for parameter in group["params"]}
    tensors = [each for each in objects if isinstance(each, Tensor)]
    with torch_tensors.as_plain_tensors():
        nodes, is_complete = nodes_behind(tensors)
        if not trained or not is_complete:
            return frozenset()
        owned = [
            (tensor, module.training)
            for module in objects
            if isinstance(module, nn.Module)
            for _, _, tensor in torch_modules.parameters_and_buffers(module)
        ]
        learning = trained | {id(tensor) for tensor, is_training in owned if is_training}
        at_rest = {id(tensor) for tensor, _ in owned if torch_graph.gradient_of(tensor) is None} - learning
        leaves = [(id(node), id(leaf) in at_rest) for node in nodes for leaf in torch_graph.accumulates_into(node)]
        idle, learns = (_leading_to(nodes, [node for node, rests in leaves if rests is of]) for of in (True, False))
        for_nothing = idle - learns
        kept = [_addresses(torch_graph.saved_by(node), device) for node in nodes if id(node) in for_nothing]
        needed = [_addresses(torch_graph.saved_by(node), device) for node in nodes if id(node) not in for_nothing]
        own = _addresses((tensor for tensor, _ in owned), device)
    return frozenset(set().union(*kept).difference(own, *needed))


def _leading_to(nodes: Sequence[Any], leaves: Iterable[int]) -> set[int]:
    """Nodes from which a backward comes to one of some nodes, by `id()`."""
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
    storages = (storage for tensor in tensors for storage in storages_with_memory(tensor))
    return {storage.data_ptr() for storage in storages if storage.device == device}
