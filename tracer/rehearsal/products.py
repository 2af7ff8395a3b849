"""Gradients of products, which CUDA makes of a quotient where no value is zero; fake tensors take the other way always.

Source: prod_backward in torch/csrc/autograd/FunctionsManual.cpp; cumprod_backward in ATen/native/ReduceOps.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tracer.capture.torch_private import torch_fake
from tracer.rehearsal.rule import Gpu


class _Product(torch.autograd.Function):
    """Of all values, or along an axis. By operators with `out`: the others are replaced, also when called from here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None) -> Tensor:
        is_whole = not x.dtype.is_floating_point and not x.dtype.is_complex
        empty = torch.empty(
            _shape(x, dim, keepdim), dtype=dtype or (torch.int64 if is_whole else x.dtype), device=x.device
        )
        if dim is None:
            out = torch.ops.aten.prod.out(x, dtype=dtype, out=empty)
        else:
            out = torch.ops.aten.prod.int_out(x, dim, keepdim, dtype=dtype, out=empty)
        ctx.dim, ctx.keepdim = dim, keepdim
        ctx.save_for_backward(x, out)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (grad,), (x, out) = gradients, ctx.saved_tensors
        if x.dim() == 0:
            return grad, None, None, None
        x = x.to(grad.dtype)
        if ctx.dim is not None and not ctx.keepdim:
            grad, out = grad.unsqueeze(ctx.dim), out.unsqueeze(ctx.dim)
        is_zero = x == 0
        if ctx.dim is None:
            del is_zero
        else:  # it is held to the end, with the numbers of zeros
            zeros = is_zero.sum(ctx.dim, True)
            zeros.sum()
        quotient = out / x
        return grad * quotient.conj(), None, None, None


def _shape(x: Tensor, dim: int | None, keepdim: bool) -> list[int]:
    if dim is None or x.dim() == 0:
        return []
    shape = list(x.shape)
    shape[dim : dim + 1 or None] = [1] if keepdim else []
    return shape


def product(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    """A replacement of the product of all values."""

    def applied(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        result: Tensor = _Product.apply(self, None, False, dtype)
        return result

    return applied


def product_along(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    """A replacement of the products along an axis."""

    def applied(self: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        result: Tensor = _Product.apply(self, dim, keepdim, dtype)
        return result

    return applied


def running_product_backward(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    """A replacement of the gradient of running products."""

    def gradient(grad: Tensor, input: Tensor, dim: int, output: Tensor) -> Tensor:
        if not torch_fake.is_fake(input) or input.numel() <= 1 or input.shape[dim] == 1:
            return on_cpu(grad, input, dim, output)  # type: ignore[no-any-return]
        weighted = output.conj() * grad
        is_zero = input == 0
        is_zero.any()
        # As in C++, each of these is held until the last one is there.
        flipped = weighted.flip(dim)
        summed = flipped.cumsum(dim)
        reversed_sums = summed.flip(dim)
        del flipped, summed
        return reversed_sums.div(input.conj())

    return gradient
