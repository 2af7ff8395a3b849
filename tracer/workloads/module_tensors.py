"""All tensors of a model: their bytes, also quantized, the type that they are made in, and memory in place of meta."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Within the block, weights and inputs are made in this type where none is named."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def all_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of a model and of the modules in it, though an attribute `buffers` may hide the method.

    Megatron-core's DistributedDataParallel has a list of that name. A model's own `parameters` is heeded.
    """
    return chain(model.parameters(), nn.Module.buffers(model))


def is_on_meta(model: nn.Module) -> bool:
    """Whether all of its parameters and buffers are there."""
    tensors = list(all_tensors(model))
    return bool(tensors) and all(tensor.is_meta for tensor in tensors)


def give_memory(model: nn.Module, device: torch.device) -> None:
    """Put its parameters and buffers on a device, unwritten.

    `to_empty` would make two of a weight that two modules share.
    """
    by_id: dict[int, Tensor] = {}

    def on_device(tensor: Tensor) -> Tensor:
        if id(tensor) not in by_id:
            empty = torch.empty_like(tensor, device=device)
            by_id[id(tensor)] = (
                nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
            )
        return by_id[id(tensor)]

    tensors = []  # an address that is free again could be taken for a shared weight's
    for module in model.modules():
        named = [*module.named_parameters(recurse=False, remove_duplicate=False)]
        named += [*module.named_buffers(recurse=False, remove_duplicate=False)]  # type: ignore[list-item]
        tensors += named
        for name, tensor in named:
            setattr(module, name, on_device(tensor))


_BLOCK = 64  # Weights of 4 bits that share a factor of 32 bits


def weights_bytes(model: nn.Module | None) -> int:
    """Return the bytes of all parameters and buffers; shared ones count once."""
    return 0 if model is None else sum(tensor.nbytes for tensor in all_tensors(model))


def quantized_bytes(model: nn.Module | None, bits: int) -> int:
    """Return the bytes of all parameters and buffers where linear layers are quantized to 8 or 4 bits.

    The layer that makes the logits stays as it is, as do embeddings and norms.

    Source:
        bitsandbytes: Linear8bitLt has a factor of 32 bits a row, Linear4bit one for 64 weights; transformers'
        BitsAndBytesConfig leaves out the output embedding.
    """
    if model is None:
        return 0
    saved = sum(layer.weight.nbytes - _linear_bytes(layer, bits) for layer in _quantized(model))
    return weights_bytes(model) - saved


def _linear_bytes(layer: nn.Linear, bits: int) -> int:
    num_weights = layer.weight.numel()
    num_factors = layer.out_features if bits == 8 else -(-num_weights // _BLOCK)
    return num_weights * bits // 8 + 4 * num_factors


def _quantized(model: nn.Module) -> Iterable[nn.Linear]:
    output = getattr(model, "get_output_embeddings", lambda: None)()
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer is not output]
    return {id(layer.weight): layer for layer in layers}.values()
