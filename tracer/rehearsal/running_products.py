"""The gradient of running products, a quotient where no value is zero; fake tensors always take the other way.

Source: cumprod_backward in ATen/native/ReduceOps.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tracer.capture.torch_private import torch_fake
from tracer.rehearsal.rule import Gpu


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
