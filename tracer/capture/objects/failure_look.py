"""A look at the program's objects while an out of memory is on its way: graphs, holders, owners, operands.

A graph is untrained, such as a teacher's, if no optimizer updates any of its leaves and no backward has given them a
gradient; before the first backward of an optimizer's own parameters, only if its modules are in evaluation mode, too.
No code of a user's class is called.
"""

from __future__ import annotations

import ast
import linecache
import random
import re
import textwrap
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from tracer.capture.device.memory_counters import read_counters
from tracer.capture.objects.at_failure import IdleModel, ListedState, ObjectsAtFailure, Operand
from tracer.capture.objects.holder_links import attributes_of, is_users_frame, locals_of
from tracer.capture.objects.holders import find_holders
from tracer.capture.objects.later_uses import SecondRun
from tracer.capture.objects.live_tensors import dotted_modules, nodes_behind, objects_of
from tracer.capture.objects.padding import find_padding
from tracer.capture.objects.storage_columns import address_or_none, storages_with_memory
from tracer.capture.sources.syntax import dotted_name
from tracer.capture.torch_private import torch_graph, torch_history, torch_modules, torch_tensors

_MOST_ASKED: Final = 48
"""Pieces of memory whose holders are looked for: of a graph with thousands of nodes each takes a tenth of a second."""
_OF_ONE_SIZE: Final = 6
_MANY_NODES: Final = 5_000
"""Nodes of graphs, from which on no more are asked of a size that has much of the memory."""
_LEAST_ASKED: Final = 1 << 20
"""Bytes of all pieces of a size."""
_MOST_OPERANDS: Final = 32
_MOST_ITEMS: Final = 10_000


RunAgain: TypeAlias = Callable[[torch.device, int], SecondRun | None]
"""Runs the program again: the device that failed, and its allocations so far; None if that cannot be done."""


def look_at_failure(
    device: torch.device,
    error: BaseException | None,
    *,
    is_evaluating: bool,
    run_again: RunAgain = lambda device, num_allocations: None,
) -> ObjectsAtFailure:
    """Look at every tensor and graph that Python can reach now.

    Where graphs have more than `MAX_NODES` nodes, none counts as untrained, and nothing is known of all that they keep.
    """
    counters = read_counters(device)
    # In a function of its own: what looks for holders would find its lists of tensors.
    found, sizes, idle, num_nodes = _without_holders(device, error, is_evaluating=is_evaluating)
    first_of_idle = [model.addresses[0] for model in idle]
    asked_about = _asked_about(sizes, _OF_ONE_SIZE if num_nodes > _MANY_NODES else _MOST_ASKED // 2)
    holders = find_holders({*asked_about, *first_of_idle}, device=device, error=error)
    paths = {address: holder.path for holder in holders for address in holder.addresses}
    return replace(
        found,
        second_run=run_again(device, counters.num_allocations) if counters is not None else None,
        holders=tuple(sorted(holders, key=lambda holder: -sum(sizes.get(at, 0) for at in holder.addresses))),
        idle_models=tuple(
            IdleModel(model.name, _path_of(paths.get(model.addresses[0], ""), model.first), model.addresses)
            for model in idle
        ),
    )


def _without_holders(
    device: torch.device, error: BaseException | None, *, is_evaluating: bool
) -> tuple[ObjectsAtFailure, dict[int, int], list[_Idle], int]:
    """Return the objects without holders, bytes of memory by address, the models not in use, and the size of graphs."""
    called = torch_modules.outermost_called(error) if error is not None else None
    objects: list[Any] = objects_of((Tensor, nn.Module, torch.optim.Optimizer))
    tensors = [each for each in objects if isinstance(each, Tensor)]
    optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
    with torch_tensors.as_plain_tensors():
        nodes, is_complete = nodes_behind(tensors)
        saved = [tensor for node in nodes for tensor in torch_graph.saved_by(node)]
        wide = [tensor for tensor in (*tensors, *saved) if tensor.dtype is torch.float64]
        sizes = _sizes((*tensors, *saved), device)
        trained, of_modules = _trained(optimizers), list(_own_tensors(objects))
        unowned = [
            (f"{type(module).__name__}.{name}", gradient)
            for module, name, is_parameter, tensor in of_modules
            if trained and is_parameter and id(tensor) not in trained
            if (gradient := torch_graph.gradient_of(tensor)) is not None
        ]
        # Of floating point and masks: others are weights of a quantized model.
        buffers = [
            tensor
            for *_, is_parameter, tensor in of_modules
            if not is_parameter and (tensor.is_floating_point() or tensor.dtype is torch.bool)
        ]
        owned = {id(tensor) for *_, tensor in of_modules} | trained
        to_inputs = any(id(leaf) not in owned for node in nodes for leaf in torch_graph.accumulates_into(node))
        parameters = [each for each in tensors if type(each) is nn.Parameter]
        found = ObjectsAtFailure(
            # A program that differentiates by its inputs, as an attack does, needs the graph in evaluation mode, too.
            is_evaluating=(is_evaluating or _is_inference(called, objects)) and not to_inputs,
            is_training=called is not None and called.training,
            in_graphs=frozenset(_addresses(saved, device)) if is_complete else None,
            untrained=_kept_by_untrained(objects, nodes, device) if is_complete else frozenset(),
            float64=frozenset(_addresses(wide, device)),
            parameters=frozenset(_addresses(parameters, device)),
            gradients=frozenset(_addresses(filter(torch.is_tensor, torch_graph.gradients_of(parameters)), device)),
            float32=frozenset(_addresses((each for each in parameters if each.dtype is torch.float32), device)),
            buffers=frozenset(_addresses(buffers, device)),
            unowned_gradients=frozenset(_addresses((gradient for _, gradient in unowned), device)),
            unowned_name=unowned[0][0] if unowned else "",
            operands=tuple(_operands(error)) if error is not None else (),
            padding=find_padding(error) if error is not None else None,
            seen=frozenset(sizes),
            num_raised=torch_history.RAISED.number,
            collected_bytes=torch_history.RAISED.collected_bytes,
            listed_states=tuple(_listed_states(optimizers, device)),
            dense_embeddings=frozenset(_addresses(_dense_embeddings(objects, optimizers), device)),
        )
        return found, sizes, list(_idle(objects, called, trained, device)), len(nodes)


def _asked_about(sizes: Mapping[int, int], most_of_one: int) -> list[int]:
    """Addresses of some pieces of each size, drawn from all of them; of the sizes with most bytes in all.

    Every fourth piece, say, would always be of the same layer.

    Args:
        most_of_one: Pieces of a size that has all of the memory; others have their share, and a few at least.
    """
    of_size: dict[int, list[int]] = {}
    for address, size in sizes.items():
        of_size.setdefault(size, []).append(address)
    much = (pair for pair in of_size.items() if pair[0] * len(pair[1]) >= _LEAST_ASKED)
    most = sorted(much, key=lambda pair: -pair[0] * len(pair[1]))
    total = sum(size * len(alike) for size, alike in most)
    number = (max(_OF_ONE_SIZE, most_of_one * size * len(alike) // total) for size, alike in most)
    draw = random.Random(0).sample  # the same ones in each run
    some = [draw(alike, min(count, len(alike))) for (_, alike), count in zip(most, number, strict=True)]
    return list(chain.from_iterable(some))[:_MOST_ASKED]


def _is_inference(called: nn.Module | None, objects: Sequence[Any]) -> bool:
    """True if a call of a model in evaluation mode failed, in a program without any optimizer or gradient.

    Where the error left the call before it was made, as in a thread, all modules have to be in that mode.
    """
    modules = objects if called is None else [module for _, module in dotted_modules("", called)]
    models = [each for each in modules if isinstance(each, nn.Module)] if called is None else [called]
    if any(each.training for each in models) or any(isinstance(each, torch.optim.Optimizer) for each in objects):
        return False
    parameters = [tensor for *_, is_parameter, tensor in _own_tensors(modules) if is_parameter]
    return any(each.requires_grad for each in parameters) and all(each.grad is None for each in parameters)


def _trained(optimizers: Sequence[torch.optim.Optimizer]) -> set[int]:
    """The `id()`s of the parameters that optimizers have."""
    groups = (group for optimizer in optimizers for group in vars(optimizer).get("param_groups", ()))
    return {id(parameter) for group in groups for parameter in group["params"]}


def _own_tensors(modules: Iterable[Any]) -> Iterator[tuple[nn.Module, str, bool, Tensor]]:
    for module in modules:
        if isinstance(module, nn.Module):
            for name, is_parameter, tensor in torch_modules.parameters_and_buffers(module):
                yield module, name, is_parameter, tensor


@dataclass(frozen=True, slots=True)
class _Idle:
    name: str
    addresses: tuple[int, ...]
    first: str  # Dotted name of the tensor at the first of these


def _path_of(path: str, name: str) -> str:
    """The path to a module, of the path to a tensor in it and that tensor's dotted name; empty if that is another one.

    `self.text_encoder[21].linear2.weight` and `21.linear2.weight` are `self.text_encoder`.
    """
    dotted = re.sub(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", r".\1", re.sub(r"\[(\d+)\]", r".\1", path))
    return dotted.removesuffix(f".{name}") if dotted.endswith(f".{name}") else ""


def _idle(objects: Sequence[Any], called: nn.Module | None, trained: set[int], device: torch.device) -> Iterator[_Idle]:
    """Outermost modules with memory on the device that are not in the call that failed, and that nothing trains.

    A container that has what is called and what is not as children, as a pipeline that is a module, is looked into.
    """
    if called is None:
        return
    used = trained | {id(tensor) for *_, tensor in _own_tensors(module for _, module in dotted_modules("", called))}
    children = [torch_modules.child_modules(each).values() for each in objects if isinstance(each, nn.Module)]
    inner = {id(child) for of in children for child in of}
    beside = {id(child) for of in children if any(child is called for child in of) for child in of}
    for root in objects:
        if not isinstance(root, nn.Module) or (id(root) in inner and id(root) not in beside):
            continue
        named = [
            (f"{path}.{name}".lstrip("."), tensor)
            for path, module in dotted_modules("", root)
            for name, _, tensor in torch_modules.parameters_and_buffers(module)
        ]
        if any(id(tensor) in used or torch_graph.gradient_of(tensor) is not None for _, tensor in named):
            continue
        places = {at: name for name, tensor in reversed(named) for at in _addresses([tensor], device)}
        if places:
            *_, first = places
            yield _Idle(type(root).__name__, (first, *(at for at in places if at != first)), places[first])


def _dense_embeddings(objects: Sequence[Any], optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[Tensor]:
    """Gradients and optimizer state of whole embeddings whose gradients are not sparse, and might be."""
    embeddings = [each for each in objects if isinstance(each, nn.Embedding | nn.EmbeddingBag) and not each.sparse]
    others = (each for each in objects if not isinstance(each, nn.Embedding | nn.EmbeddingBag))
    tied = {id(tensor) for *_, tensor in _own_tensors(others)}  # such a gradient has values everywhere
    weights = {id(tensor): tensor for *_, tensor in _own_tensors(embeddings) if id(tensor) not in tied}
    for tensor in weights.values():
        if (gradient := torch_graph.gradient_of(tensor)) is not None:
            yield gradient
    for optimizer in optimizers:
        for parameter, state in vars(optimizer).get("state", {}).items():
            if id(parameter) in weights and isinstance(state, Mapping):
                yield from (value for value in state.values() if isinstance(value, Tensor))


def _listed_states(optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> Iterator[ListedState]:
    """Lists of tensors in the state of optimizers."""
    for optimizer in optimizers:
        of_key: dict[str, list[Tensor]] = {}
        for state in vars(optimizer).get("state", {}).values():
            for key, value in state.items() if isinstance(state, Mapping) else ():
                if type(value) is list:
                    of_key.setdefault(str(key), []).extend(each for each in value if isinstance(each, Tensor))
        for key, listed in of_key.items():
            if addresses := tuple(sorted(_addresses(listed, device))):
                yield ListedState(type(optimizer).__name__, key, addresses)


def _kept_by_untrained(objects: Sequence[Any], nodes: Sequence[Any], device: torch.device) -> frozenset[int]:
    """Return the addresses of memory that only untrained graphs keep; none where there is no optimizer."""
    optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
    trained = _trained(optimizers)
    if not trained:
        return frozenset()
    stepped = {id(parameter) for each in optimizers for parameter in each.state}
    owned = [(tensor, module.training) for module, *_, tensor in _own_tensors(objects)]
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
    return set(_sizes(tensors, device))


def _sizes(tensors: Iterable[Tensor], device: torch.device) -> dict[int, int]:
    """Bytes of each piece of memory by its address."""
    storages = (storage for tensor in tensors for storage in _storages(tensor))
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.device == device}


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    try:
        return storages_with_memory(tensor)
    except Exception:  # A subclass of other people's raises what it likes; the walk notes it as not observed.
        return []


# ------------------------------------------------------------------------------------------------------------ operands
def _operands(error: BaseException) -> Iterator[Operand]:
    """Tensors that the lines of the user's frames name, the innermost frame first."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_users_frame(frame)]
    number = 0
    with torch_tensors.as_plain_tensors():
        for frame, line in reversed(frames):
            for operand in _of_line(frame, line):
                yield operand
                number += 1
                if number == _MOST_OPERANDS:
                    return


def _of_line(frame: types.FrameType, line: int) -> Iterator[Operand]:
    variables = dict(locals_of(frame)) if frame.f_code.co_name != "<module>" else frame.f_globals
    file = frame.f_code.co_filename
    for name in _names_of_line(file, line):
        first, *attributes = name.split(".")
        value = variables.get(first)
        for attribute in attributes:
            value = _attribute(value, attribute)
        if (found := _of_value(name, value, file, line)) is not None:
            yield found


def _names_of_line(file: str, line: int) -> list[str]:
    """Variables and attributes that a line reads: `batch`, `self.weight`; none where it cannot be parsed alone."""
    text = linecache.getline(file, line).strip().rstrip(":")
    for wrapped in (text, f"{text}\n pass", f"({text})", text.rstrip("([{,"), f"({text.rstrip('([{,')})"):
        try:
            tree = ast.parse(textwrap.dedent(wrapped))
        except (SyntaxError, ValueError):
            continue
        read = [node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Load)]
        return list(dict.fromkeys(filter(None, map(dotted_name, read))))
    return []


def _attribute(value: Any, name: str) -> Any:
    """The value of an attribute, read where the object keeps it: no code of its class runs."""
    own = attributes_of(value) or {}
    tables = (own, *(own.get(table) or {} for table in ("_parameters", "_buffers") if type(own.get(table)) is dict))
    return next((table[name] for table in tables if name in table), None)


def _of_value(name: str, value: Any, file: str, line: int) -> Operand | None:
    if isinstance(value, Tensor):
        listed = [value]
    elif type(value) in (list, tuple) and len(value) <= _MOST_ITEMS:
        listed = [each for each in value if isinstance(each, Tensor)]
    else:
        return None
    sizes = [(_size(each), each) for each in listed]
    if not sizes or not sum(size for size, _ in sizes):
        return None
    _, largest = max(sizes, key=lambda pair: pair[0])
    dtype = str(largest.dtype).removeprefix("torch.")
    return Operand(name, file, line, sum(size for size, _ in sizes), tuple(largest.shape), dtype, len(listed))


def _size(tensor: Tensor) -> int:
    """Bytes of its elements, each once; 0 where it has no memory."""
    try:
        if tensor.layout is not torch.strided or address_or_none(tensor.untyped_storage()) is None:
            return sum(storage.nbytes() for storage in _storages(tensor))
        return min(tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size())
    except (RuntimeError, NotImplementedError):
        return 0
