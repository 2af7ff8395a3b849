"""Every tensor that Python can reach at one moment: a teacher, an average of weights, a cache, what a leak has left.

The CPU's allocator does not say what it holds, and an operator shows only what it touches. So the garbage collector's
list of objects is read once before each recorded cycle, without collecting anything, and the graphs behind the tensors
are followed to what they keep for backward. No code of a user's class is called.

The collector lists no frozen objects. vLLM freezes all when its engine has started, the KV cache among them, and
servers that fork do so before. So `gc.freeze` is replaced while a profile runs, and notes weakly what is about to go.
"""

from __future__ import annotations

import gc
import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.model_names import names_of
from tracer.capture.objects.storage_columns import address_or_none
from tracer.capture.objects.storage_observer import optimizer_tensors
from tracer.capture.sources.compiled_code import without_wrappers
from tracer.capture.torch_private import torch_compile, torch_distributed, torch_graph, torch_modules, torch_tensors
from tracer.collector import objects_with_type, one_look
from tracer.nested import leaves

_NOTED = (Tensor, torch.UntypedStorage, nn.Module, torch.optim.Optimizer)


class FrozenObjects:
    """Notes what is frozen while anybody has started it."""

    def __init__(self) -> None:
        self._num_starts = 0
        self._freeze: Callable[[], None] | None = None
        self._references: list[weakref.ref[Any]] = []

    def start(self) -> None:
        """Note what is frozen from now on; as often as it is called, `stop` has to be."""
        self._num_starts += 1
        if self._num_starts == 1:
            self._freeze = gc.freeze
            gc.freeze = self._note_and_freeze

    def stop(self) -> None:
        """Put `gc.freeze` back and forget all, if nobody else wants to know."""
        self._num_starts -= 1
        if not self._num_starts and self._freeze is not None:
            if gc.freeze == self._note_and_freeze:
                gc.freeze = self._freeze
            self._freeze = None
            self._references.clear()

    def alive(self) -> list[Any]:
        """Return the noted objects that are frozen and alive; without a Python call for each."""
        if not self._references:
            return []
        if not gc.get_freeze_count():  # the program has called gc.unfreeze
            self._references.clear()
            return []
        found = [thing for thing in map(operator.call, self._references) if thing is not None]
        return list({id(thing): thing for thing in found}.values())

    def _note_and_freeze(self) -> None:
        self._references += map(weakref.ref, objects_with_type(_NOTED))
        if self._freeze is not None:
            self._freeze()


FROZEN = FrozenObjects()


# Graphs that a leak has kept are followed this far, some two seconds; a note says where that was too little.
MAX_NODES = 200_000
_CACHE_OF_LAYER = "kv_cache"
"""Attribute of vLLM's attention layers: a tensor, or tensors, that are parts of what its worker allocated."""
Reached = tuple[Role, str, Tensor | torch.UntypedStorage]


@dataclass(frozen=True, slots=True)
class LiveTensors:
    """Findings of a walk."""

    # Role, name and tensor: modules' by class and dotted name, what else is trained, optimizers' state, what graphs
    # keep for backward, then all that has no name.
    tensors: tuple[Reached, ...]
    is_complete: bool  # Whether every graph was followed to its end
    # Sizes of the buckets of DistributedDataParallel modules. They are C++'s, and mostly no tensors of Python's.
    bucket_bytes: frozenset[int] = frozenset()
    # Dotted names by `id()` of modules in models that were not given.
    module_names: Mapping[int, str] = field(default_factory=dict)


def _static_caches() -> tuple[type, ...]:
    kind = getattr(sys.modules.get("transformers.cache_utils"), "StaticLayer", None)
    return () if kind is None else (kind,)


def looked_for_once() -> AbstractContextManager[None]:
    """Within the block, in which a session begins, one walk finds all that its parts look for: see `one_look`."""
    return one_look((*_NOTED, *_static_caches(), torch.autograd.profiler.profile))


def live_tensors(models: Mapping[str, nn.Module] | None = None) -> LiveTensors:
    """Find every tensor and storage that Python can reach now, and what graphs of theirs keep for backward."""
    static_caches = _static_caches()
    objects: list[Any] = objects_of((*_NOTED, *static_caches))
    caches = [object_ for object_ in objects if isinstance(object_, static_caches)]
    tensors = [object_ for object_ in objects if isinstance(object_, Tensor)]
    storages = torch_tensors.without_freed([each for each in objects if isinstance(each, torch.UntypedStorage)])
    optimizers = [object_ for object_ in objects if isinstance(object_, torch.optim.Optimizer)]
    with torch_tensors.as_plain_tensors():
        modules = [object_ for object_ in objects if isinstance(object_, nn.Module)]
        roots = _outermost(modules, models or {})
        named = [found for name, module in roots for found in _of_module(name, module)]
        names = {id(tensor): name for _, name, tensor in named}
        trained = list(_trained(tensors, optimizers))
        state = [tensor for optimizer in optimizers for tensor in optimizer_tensors(optimizer, names)]
        nodes, is_complete = nodes_behind(tensors)
        saved = [kept for node in nodes for kept in torch_graph.saved_by(node)]
    unnamed: list[Tensor | torch.UntypedStorage] = [*tensors, *storages]
    rest = [(Role.HELD, "", tensor) for tensor in unnamed]
    of_graphs = [(Role.SAVED, "", tensor) for tensor in saved]
    found = (*named, *trained, *state, *_caches(modules, caches), *of_graphs, *rest)
    buckets = torch_distributed.bucket_sizes(modules)
    return LiveTensors(found, is_complete, buckets, _module_names(roots, models or {}))


def _caches(modules: Iterable[nn.Module], static: Iterable[Any]) -> Iterator[tuple[Role, str, Tensor]]:
    """Tensors of KV caches that are allocated beforehand: of vLLM's attention layers, and transformers' static caches.

    A cache that grows gets other memory with each token, of which a walk sees only what is there at its moment.
    """
    held = (module.__dict__.get(_CACHE_OF_LAYER) for module in modules)
    for cache in (cache for cache in held if cache is not None):
        for _, tensor in leaves(cache, Tensor):
            yield Role.KV_CACHE, _CACHE_OF_LAYER, tensor
    for layer in static:
        for name, tensor in vars(layer).items():
            if isinstance(tensor, Tensor):
                yield Role.KV_CACHE, name, tensor


def objects_of(classes: tuple[type, ...]) -> list[Any]:
    """The objects of some classes; types decide, since a proxy's `__class__` would call the user's code.

    Without a call of Python's for each object, which a profiler would record. Those that `gc.freeze` has hidden are
    among them where `FROZEN` has noted them.
    """
    objects = objects_with_type(classes)
    return [*objects, *(thing for thing in FROZEN.alive() if issubclass(type(thing), classes))]


def _trained(tensors: Iterable[Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[Reached]:
    """Return tensors trained outside of modules: optimizers' parameters, and leaves that backward gave a gradient.

    A leaf that is no `nn.Parameter` may also be input, such as points at which an equation is to hold.
    """
    groups = (group for optimizer in optimizers for group in vars(optimizer).get("param_groups", ()))
    optimized = [(Role.PARAMETER, "parameter", parameter) for group in groups for parameter in group["params"]]
    plain = (each for each in tensors if not torch_tensors.is_wrapped_by_transform(each) and torch_graph.is_leaf(each))
    leaves = [tensor for tensor in plain if tensor.requires_grad and tensor.grad is not None]
    others = [
        (Role.PARAMETER, "parameter", tensor) if isinstance(tensor, nn.Parameter) else (Role.LEAF, "leaf", tensor)
        for tensor in leaves
    ]
    for role, name, tensor in (*optimized, *others):
        yield role, name, tensor
        if (gradient := torch_graph.gradient_of(tensor)) is not None:
            yield Role.GRADIENT, name, gradient


def _outermost(modules: Sequence[nn.Module], given: Mapping[str, nn.Module]) -> list[tuple[str, nn.Module]]:
    inner = {id(child) for module in modules for child in torch_modules.child_modules(module).values()}
    outermost = [module for module in modules if id(module) not in inner]
    names = names_of(outermost, given)
    return [(names[id(module)] or type(module).__name__, module) for module in outermost]


def _module_names(roots: Iterable[tuple[str, nn.Module]], given: Mapping[str, nn.Module]) -> dict[int, str]:
    """Dotted names by `id()` of all modules in outermost ones that have tensors, but for models that have names."""
    named = {id(model) for model in given.values()}
    names: dict[int, str] = {}
    for name, module in roots:
        if id(module) in named or torch_compile.is_graph_of_compiler(module):
            continue
        inside = list(dotted_modules(name, module))
        if any(True for _, each in inside for _ in torch_modules.parameters_and_buffers(each)):
            names = {id(each): without_wrappers(path) for path, each in reversed(inside)} | names
    return names


def dotted_modules(path: str, module: nn.Module, seen: set[int] | None = None) -> Iterator[tuple[str, nn.Module]]:
    """A module and all below it, each once, with its dotted name: `net`, `net.fc1`."""
    seen = set() if seen is None else seen
    if id(module) not in seen:
        seen.add(id(module))
        yield path, module
        for name, child in torch_modules.child_modules(module).items():
            yield from dotted_modules(f"{path}.{name}", child, seen)


def _of_module(root_name: str, root: nn.Module) -> Iterator[Reached]:
    for path, module in dotted_modules(root_name, root):
        for name, is_parameter, tensor in torch_modules.parameters_and_buffers(module):
            yield (Role.PARAMETER if is_parameter else Role.BUFFER), f"{path}.{name}", tensor
            if is_parameter and (gradient := torch_graph.gradient_of(tensor)) is not None:
                yield Role.GRADIENT, f"{path}.{name}", gradient


def nodes_behind(tensors: Iterable[Tensor]) -> tuple[list[Any], bool]:
    """The nodes of the graphs behind some tensors; and whether all of them were followed to the end."""
    nodes: dict[int, Any] = {}
    stack = [node for tensor in tensors if (node := torch_graph.made_by(tensor)) is not None]
    while stack:
        node = stack.pop()
        if id(node) in nodes:
            continue
        if len(nodes) >= MAX_NODES:
            return list(nodes.values()), False
        nodes[id(node)] = node  # kept, so that no other node gets its id
        stack += [inner for inner, _ in node.next_functions if inner is not None]
    return list(nodes.values()), True


_UNNAMED = (Role.HELD, Role.SAVED)
_MAX_ADDRESSES = 6


@dataclass(frozen=True, slots=True)
class Alike:
    """Storages of tensors that look the same."""

    bytes: int  # Together
    count: int  # Number of tensors
    addresses: tuple[int, ...]  # Addresses of some of them, spread over all


def unnamed_tensors(device: torch.device) -> Mapping[str, Alike]:
    """Return the tensors that are in no module and no optimizer, by `[512, 512] float32`, each storage once."""
    named: set[int] = set()
    by_look: dict[str, dict[int, int]] = {}
    with torch_tensors.as_plain_tensors():
        for role, _, tensor in live_tensors().tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.device != device or tensor.layout is not torch.strided:
                continue
            try:
                storage = tensor.untyped_storage()
            except (RuntimeError, NotImplementedError):  # what has other tensors inside may have none of its own
                continue
            address, size = address_or_none(storage), storage.nbytes()
            if address is None:
                continue
            if role not in _UNNAMED:
                named.add(address)
            elif address and size and address not in named:
                look = f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
                by_look.setdefault(look, {}).setdefault(address, size)
    return {
        look: Alike(sum(at.values()), len(at), tuple([*at][:: max(1, len(at) // _MAX_ADDRESSES)][:_MAX_ADDRESSES]))
        for look, at in by_look.items()
    }
