"""What a CUDA device does differently from the CPU: one table, a row for each difference, each with its source.

A rehearsal runs on fake tensors of the CPU, whose operators ask for what the CPU's would. Every row here can be left
out by name, so that what it explains can be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tracer.capture import torch_private
from tracer.rehearsal.recorder import OperatorCall, Scratch
from tracer.units import MIB

Replacement = Callable[[Callable[..., Any]], Callable[..., Any]]
"""From a function of torch's to the one that stands in its place while a rehearsal runs."""


@dataclass(slots=True)
class Gpu:
    """The device that is imitated, and what has been taken of it for good.

    Attributes:
        compute_capability: Such as (8, 0).
        memory: For rules that have to remember something during a rehearsal, by the rule's name.
    """

    compute_capability: tuple[int, int] = (8, 0)
    memory: dict[str, Any] = field(default_factory=dict)


ScratchOfGpu = Callable[[OperatorCall, Gpu], Iterable[Scratch]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One difference. A row may have any of the last three parts.

    Attributes:
        name: By which it can be left out.
        source: torch's file and function, or a library's manual.
        does: What a CUDA device does, in a sentence.
        optimizer: Called with every optimizer before the first step.
        functions: What stands in for functions of torch's, by dotted name such as `torch.nn.functional.dropout`.
        scratch: What operators take beside their results, by name such as `aten::mm`.
    """

    name: str
    source: str
    does: str
    optimizer: Callable[[torch.optim.Optimizer], None] | None = None
    functions: Mapping[str, Replacement] = field(default_factory=dict)
    scratch: Mapping[str, ScratchOfGpu] = field(default_factory=dict)


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
    yield Scratch(32 * MIB if gpu.compute_capability >= (9, 0) else 4096 * 1024 * 2 + 16 * 1024 * 8, kept=True)


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
)
RULE_NAMES = tuple(rule.name for rule in RULES)
