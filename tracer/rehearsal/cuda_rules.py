"""What a CUDA device does differently from the CPU: one table, a row for each difference, each with its source.

A rehearsal runs on fake tensors of the CPU, whose operators ask for what the CPU's would. Every row here can be left
out by name, so that what it explains can be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tracer.capture import torch_private
from tracer.rehearsal import convolution_workspaces as convolutions
from tracer.rehearsal import kernel_scratch as kernels
from tracer.rehearsal.recorder import OperatorCall, Scratch
from tracer.rehearsal.rule import Gpu, Rule
from tracer.units import MIB

# ---- optimizers ------------------------------------------------------------------------------------------------------


def _foreach(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        is_open = "foreach" in group and group["foreach"] is None
        if is_open and not group.get("fused") and not group.get("differentiable"):
            group["foreach"] = True


# ---- dropout and attention -------------------------------------------------------------------------------------------


def _dropout(on_cpu: Callable[..., Any]) -> Callable[..., Any]:
    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0.0 or inplace or not torch_private.is_fake(input):
            return on_cpu(input, p, training, inplace)  # type: ignore[no-any-return]
        return torch.native_dropout(input, p, True)[0]

    return dropout


def _plain_dropout(on_cpu: Callable[..., Any]) -> Callable[..., Any]:
    def dropout(input: Tensor, p: float, train: bool) -> Tensor:
        if not train or p == 0.0 or not torch_private.is_fake(input):
            return on_cpu(input, p, train)  # type: ignore[no-any-return]
        return torch.native_dropout(input, p, True)[0]

    return dropout


def _attention(on_cpu: Callable[..., Any]) -> Callable[..., Any]:
    flash = torch_private.operator("_scaled_dot_product_flash_attention")
    efficient = torch_private.operator("_scaled_dot_product_efficient_attention")

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        def cpu() -> Tensor:
            return on_cpu(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)  # type: ignore[no-any-return]

        if not torch_private.is_fake(query) or query.dim() != 4:
            return cpu()
        if enable_gqa:
            groups = query.shape[1] // key.shape[1]
            if groups > 1:
                key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
                attn_mask = zeros.masked_fill_(attn_mask.logical_not(), float("-inf"))
            attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        elif query.dtype in (torch.float16, torch.bfloat16):
            return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]  # type: ignore[no-any-return]
        keeps = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
        return efficient(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]

    return attention


# ---- libraries' workspaces -------------------------------------------------------------------------------------------

_MATRIX_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


def _cublas_workspace(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """One for each thread that multiplies: that of forward, and autograd's."""
    taken = gpu.memory.setdefault("cublas-workspace", set())
    if call.is_backward in taken:
        return
    taken.add(call.is_backward)
    yield Scratch(
        32 * MIB if gpu.compute_capability >= (9, 0) else 4096 * 1024 * 2 + 16 * 1024 * 8, kept=True, name="cuBLAS"
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "foreach",
        "torch/optim/optimizer.py, _default_to_fused_or_foreach",
        "Optimizers update all parameters at once, and hold temporary copies of that size, unless told otherwise.",
        optimizer=_foreach,
    ),
    Rule(
        "dropout-mask",
        "aten/src/ATen/native/Dropout.cpp, dropout; aten/src/ATen/native/cuda/Dropout.cu, native_dropout_cuda",
        "Dropout keeps a mask of one byte an element, where the CPU keeps one of the input's type.",
        functions={"torch.nn.functional.dropout": _dropout, "torch.dropout": _plain_dropout},
    ),
    Rule(
        "attention",
        "aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, select_sdp_backend",
        "Attention runs as one kernel, flash in 16 bits and efficient else, and keeps its log-sum-exp only.",
        functions={"torch.nn.functional.scaled_dot_product_attention": _attention},
    ),
    Rule(
        "cublas-workspace",
        "aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize",
        "cuBLAS keeps a workspace for every thread that multiplies: 8.125 MiB, from Hopper on 32 MiB.",
        scratch=dict.fromkeys(_MATRIX_PRODUCTS, _cublas_workspace),
    ),
    Rule(
        "cudnn-workspace",
        "aten/src/ATen/native/cudnn/Conv_v8.cpp, run_conv_plan; cuDNN's graph API",
        "cuDNN's engines take a workspace for each convolution: its own answer, where it could be asked for the card.",
        scratch={"aten::convolution": convolutions.forward, "aten::convolution_backward": convolutions.backward},
    ),
    Rule(
        "group-norm",
        "aten/src/ATen/native/cuda/group_norm_kernel.cu, GroupNorm(Backward)KernelImplInternal",
        "Group norm works with factors and sums for every channel of every sample.",
        scratch={
            "aten::native_group_norm": kernels.group_norm,
            "aten::native_group_norm_backward": kernels.group_norm_backward,
        },
    ),
    Rule(
        "layer-norm",
        "aten/src/ATen/native/cuda/layer_norm_kernel.cu, layer_norm_cuda, LaunchGammaBetaBackwardCUDAKernel",
        "Layer norm copies what is not contiguous; over more than 65,536 rows its backward keeps partial sums.",
        scratch={
            "aten::native_layer_norm": kernels.layer_norm,
            "aten::native_layer_norm_backward": kernels.layer_norm_backward,
        },
    ),
    Rule(
        "embedding-backward",
        "aten/src/ATen/native/cuda/Embedding.cu, embedding_dense_backward_cuda; EmbeddingBackwardKernel.cu",
        "More than 3,072 indices are sorted, and each has a row of partial sums. CUB's buffers are not in it.",
        scratch={"aten::embedding_dense_backward": kernels.embedding_backward},
    ),
    Rule(
        "index-put",
        "aten/src/ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel",
        "Adding at indices, as the backward of indexing does, sorts them. CUB's counters are not in it.",
        scratch=dict.fromkeys(
            ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"),
            kernels.index_put,
        ),
    ),
    Rule(
        "sort",
        "aten/src/ATen/native/cuda/Sort.cpp, sort_cuda_kernel; SortStable.cu",
        "More than 4,096 values along an axis are sorted by CUB, with a second pair of buffers.",
        scratch={"aten::sort": kernels.sort},
    ),
    Rule(
        "flash-backward",
        "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd",
        "Flash attention's backward adds up the query's gradient in float.",
        scratch={"aten::_scaled_dot_product_flash_attention_backward": kernels.flash_backward},
    ),
    Rule(
        "efficient-backward",
        "aten/src/ATen/native/transformers/cuda/attention_backward.cu, _efficient_attention_backward",
        "Efficient attention's backward multiplies output and gradient first; in 16 bits, tiles of 64 are assumed.",
        scratch={"aten::_scaled_dot_product_efficient_attention_backward": kernels.efficient_backward},
    ),
    Rule(
        "fft",
        "aten/src/ATen/native/cuda/SpectralOps.cpp, _fft_c2r_cufft, _fft_r2c_cufft, _fft_c2c_cufft",
        "Complex to real copies its input; many axes need a second result. What cuFFT's plans take is not known.",
        scratch=dict.fromkeys(("aten::_fft_c2r", "aten::_fft_r2c", "aten::_fft_c2c"), kernels.fft),
    ),
    Rule(
        "reduction",
        "aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig",
        "Sums and means of very many values are shared between blocks, which leave partial sums in memory.",
        scratch=dict.fromkeys(("aten::sum", "aten::mean"), kernels.reduction),
    ),
)
RULE_NAMES = tuple(rule.name for rule in RULES)
