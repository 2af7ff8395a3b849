"""Every tensor that Python can reach at one moment: a teacher, an average of weights, a cache, what a leak has left.

The CPU's allocator does not say what it holds, and an operator shows only what it touches. So the garbage collector's
list of objects is read once before each recorded cycle, without collecting anything, and the graphs behind the tensors
are followed to what they keep for backward. No code of a user's class is called.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.storage_observer import optimizer_tensors
from tracer.capture.torch_private import torch_distributed, torch_graph, torch_modules, torch_tensors

# Graphs that a leak has kept are followed this far, some two seconds; a note says where that was too little.
MAX_NODES = 200_000
Reached = tuple[Role, str, Tensor | torch.UntypedStorage]


@dataclass(frozen=True, slots=True)
class LiveTensors:
    """What a walk found.

    Attributes:
        tensors: Role, name and tensor: modules' by class and dotted name, what else is trained, optimizers' state, what
            graphs keep for backward, then all that has no name.
        is_complete: Whether every graph was followed to its end.
        bucket_bytes: Sizes of the buckets of DistributedDataParallel modules. They are C++'s, and mostly no tensors of
            Python's.
    """

    tensors: tuple[Reached, ...]
    is_complete: bool
    bucket_bytes: frozenset[int] = frozenset()


def live_tensors() -> LiveTensors:
    """Find every tensor and storage that Python can reach now, and what graphs of theirs keep for backward."""
    objects: list[Any] = objects_of((Tensor, torch.UntypedStorage, nn.Module, torch.optim.Optimizer))
    tensors = [object_ for object_ in objects if isinstance(object_, Tensor)]
    storages = [object_ for object_ in objects if isinstance(object_, torch.UntypedStorage)]
    optimizers = [object_ for object_ in objects if isinstance(object_, torch.optim.Optimizer)]
    with torch_tensors.as_plain_tensors():
        modules = [object_ for object_ in objects if isinstance(object_, nn.Module)]
        named = list(_of_modules(modules))
        names = {id(tensor): name for _, name, tensor in named}
        trained = list(_trained(tensors, optimizers))
        state = [tensor for optimizer in optimizers for tensor in optimizer_tensors(optimizer, names)]
        saved, is_complete = _saved_for_backward(tensors)
    unnamed: list[Tensor | torch.UntypedStorage] = [*tensors, *storages]
    rest = [(Role.HELD, "", tensor) for tensor in unnamed]
    of_graphs = [(Role.SAVED, "", tensor) for tensor in saved]
    found = (*named, *trained, *state, *of_graphs, *rest)
    return LiveTensors(found, is_complete, torch_distributed.bucket_sizes(modules))


def objects_of(classes: tuple[type, ...]) -> list[Any]:
    """The objects of some classes; types decide, since a proxy's `__class__` would call the user's code.

    Without a call of Python's for each object, which a profiler would record.
    """
    objects = gc.get_objects()
    wanted = {kind for kind in set(map(type, objects)) if issubclass(kind, classes)}
    return list(compress(objects, map(wanted.__contains__, map(type, objects))))


def _trained(tensors: Iterable[Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[Reached]:
    """What is trained outside of modules: an optimizer's parameters, and leaves that backward has given a gradient.

    A leaf that is no `nn.Parameter` may as well be points at which an equation is asked to hold.
    """
    groups = (group for optimizer in optimizers for group in vars(optimizer).get("param_groups", ()))
    optimized = [(Role.PARAMETER, "parameter", parameter) for group in groups for parameter in group["params"]]
    leaves = [tensor for tensor in tensors if _has_accumulated(tensor)]
    others = [
        (Role.PARAMETER, "parameter", tensor) if isinstance(tensor, nn.Parameter) else (Role.LEAF, "leaf", tensor)
        for tensor in leaves
    ]
    for role, name, tensor in (*optimized, *others):
        yield role, name, tensor
        if (gradient := torch_graph.gradient_of(tensor)) is not None:
            yield Role.GRADIENT, name, gradient


def _has_accumulated(tensor: Tensor) -> bool:
    """Whether a backward has given a leaf its gradient."""
    if torch_tensors.is_wrapped_by_transform(tensor) or not torch_graph.is_leaf(tensor):
        return False
    return tensor.requires_grad and tensor.grad is not None


def _of_modules(modules: Iterable[nn.Module]) -> Iterator[Reached]:
    """Parameters, their gradients and buffers of all modules that are in no other, by class and dotted name."""
    modules = list(modules)
    inner = {id(child) for module in modules for child in torch_modules.child_modules(module).values()}
    for module in modules:
        if id(module) not in inner:
            yield from _of_module(type(module).__name__, module, set())


def _of_module(path: str, module: nn.Module, seen: set[int]) -> Iterator[Reached]:
    if id(module) in seen:
        return
    seen.add(id(module))
    for name, is_parameter, tensor in torch_modules.parameters_and_buffers(module):
        yield (Role.PARAMETER if is_parameter else Role.BUFFER), f"{path}.{name}", tensor
        if is_parameter and (gradient := torch_graph.gradient_of(tensor)) is not None:
            yield Role.GRADIENT, f"{path}.{name}", gradient
    for name, child in torch_modules.child_modules(module).items():
        yield from _of_module(f"{path}.{name}", child, seen)


def _saved_for_backward(tensors: Iterable[Tensor]) -> tuple[list[Tensor], bool]:
    """What the graphs behind some tensors keep; and whether all of them were followed to the end."""
    saved: list[Tensor] = []
    nodes: dict[int, Any] = {}
    stack = [node for tensor in tensors if (node := torch_graph.made_by(tensor)) is not None]
    while stack:
        node = stack.pop()
        if id(node) in nodes:
            continue
        if len(nodes) >= MAX_NODES:
            return saved, False
        nodes[id(node)] = node  # kept, so that no other node gets its id
        saved += torch_graph.saved_by(node)
        stack += [inner for inner, _ in node.next_functions if inner is not None]
    return saved, True
