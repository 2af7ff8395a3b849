"""Bytes of a model's weights, as they are and with linear layers in 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from tracer.workloads.module_tensors import all_tensors

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
