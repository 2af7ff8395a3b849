"""Which kernel a CUDA device runs attention with, and what that keeps: cuDNN's, flash, efficient, or single operators.

Source: select_sdp_backend, check_prefer_cudnn_attention and the checks that they name in
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp; scaled_dot_product_attention in attention.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tracer.capture.torch_private import torch_dispatch, torch_fake
from tracer.rehearsal.rule import Gpu

_SIXTEEN_BITS = (torch.float16, torch.bfloat16)
_FIRST_OF_FLASH = (8, 0)
_PREFER_CUDNN = (9, 10)
"""Major compute capabilities on which cuDNN newer than 9.15, as torch brings it since 2.9, goes first."""
_WIDEST_FLASH, _WIDEST_CUDNN = 256, 128
PREFERS_CUDNN = "cudnn-attention"


@dataclass(frozen=True, slots=True)
class _Question:
    """What decides; tensors are [batch, heads, tokens, width]."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    is_causal: bool
    gpu: Gpu

    @property
    def wants_gradients(self) -> bool:
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (self.query, self.key, self.value))


def attention(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    """A replacement of `scaled_dot_product_attention`."""

    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if not torch_fake.is_fake(query) or query.dim() != 4:
            return on_cpu(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)  # type: ignore[no-any-return]
        if torch.is_autocast_enabled("cpu"):
            query, key, value, attn_mask = map(_in_16_bits, (query, key, value, attn_mask))
        question = _Question(query, key, value, attn_mask, dropout_p, is_causal, gpu)
        with torch_dispatch.below_autocast():
            return _run(question, scale, enable_gqa)

    return scaled_dot_product_attention


def _in_16_bits(tensor: Tensor | None) -> Any:
    is_other = tensor is not None and tensor.is_floating_point() and tensor.dtype is not torch.float64
    return tensor.to(torch.get_autocast_dtype("cpu")) if is_other and tensor is not None else tensor


def _run(question: _Question, scale: float | None, enable_gqa: bool) -> Tensor:
    query, key, value, mask = question.query, question.key, question.value, _added(question.mask, question.query.dtype)
    common: dict[str, Any] = {"dropout_p": question.dropout, "is_causal": question.is_causal}
    if _can_be_cudnns(question):
        of_cudnn = torch_dispatch.operator("_scaled_dot_product_cudnn_attention")
        return of_cudnn(query, key, value, mask, question.wants_gradients, **common, scale=scale)[0]  # type: ignore[no-any-return]
    if _can_be_flash(question):
        width = query.shape[-1]
        padded = [_padded(tensor, 8) for tensor in (query, key, value)]
        scale = scale if scale is not None else width**-0.5
        flash = torch_dispatch.operator("_scaled_dot_product_flash_attention")
        return flash(*padded, **common, scale=scale)[0][..., :width]  # type: ignore[no-any-return]
    if _can_be_efficient(question):
        if mask is not None:
            mask = _aligned(mask).expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        efficient = torch_dispatch.operator("_scaled_dot_product_efficient_attention")
        attended, _, *of_dropout = efficient(query, key, value, mask, question.wants_gradients, **common, scale=scale)
        if question.dropout:
            question.gpu.put_on_host(of_dropout)
        return attended  # type: ignore[no-any-return]
    single = torch_dispatch.operator("_scaled_dot_product_attention_math")
    return single(query, key, value, mask, **common, scale=scale, enable_gqa=enable_gqa)[0]  # type: ignore[no-any-return]


def _can_be_cudnns(question: _Question) -> bool:
    gpu, width, of_values = question.gpu, question.query.shape[-1], question.value.shape[-1]
    return (
        gpu.memory.get(PREFERS_CUDNN, False)
        and gpu.card.capability[0] in _PREFER_CUDNN
        and torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
        and question.query.dtype in _SIXTEEN_BITS
        and question.dropout * 16 == int(question.dropout * 16)
        and max(width, of_values) <= _WIDEST_CUDNN
        and width % 8 == of_values % 8 == 0
        and question.key.shape[2] != 1
        and not (question.dropout and question.query.shape[2] == 1)
    )


def _can_be_flash(question: _Question) -> bool:
    query, key, capability = question.query, question.key, question.gpu.card.capability
    width = query.shape[-1]
    # The smaller cards of Ampere, Ada and Blackwell lack the memory for the backward of wide heads.
    is_small = (8, 6) <= capability <= (8, 9) or capability[0] == 12
    is_too_wide = is_small and question.wants_gradients and width > 192 and (question.dropout > 0 or width <= 224)
    return (
        torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        and capability >= _FIRST_OF_FLASH
        and query.dtype in _SIXTEEN_BITS
        and question.mask is None
        and width == key.shape[-1] == question.value.shape[-1] <= _WIDEST_FLASH
        and not is_too_wide
        and not (question.is_causal and query.shape[2] != key.shape[2])
    )


def _can_be_efficient(question: _Question) -> bool:
    query, major = question.query, question.gpu.card.capability[0]
    is_16_bits = query.dtype in _SIXTEEN_BITS
    alignment = max(4 if major >= 8 else 1, 128 // (16 if is_16_bits else 32) if major >= 8 or is_16_bits else 1)
    dtypes = (*_SIXTEEN_BITS, torch.float32) if major >= 8 else (torch.float16, torch.float32)
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
        and query.dtype in dtypes
        and query.shape[-1] == question.key.shape[-1]
        and query.shape[-1] % alignment == question.value.shape[-1] % alignment == 0
    )


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or mask.dtype is not torch.bool:
        return mask
    zeros = torch.zeros_like(mask, dtype=dtype)
    return zeros.masked_fill_(mask.logical_not(), float("-inf"))


def _aligned(mask: Tensor) -> Tensor:
    """The mask in a buffer whose rows are multiples of 16 values; source: pad_bias in attention.cpp."""
    length = mask.shape[-1]
    if length % 16 == 0 or length == 1:
        return mask
    return torch.nn.functional.pad(mask, (0, 16 - length % 16))[..., :length]


def _padded(tensor: Tensor, multiple: int) -> Tensor:
    missing = -tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor
