"""Results of kernels that are larger than their shape says, on every device: fake kernels know the shape only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_NO_REDUCTION = 0


def _elements_of_both(args: tuple[Any, ...]) -> int:
    """Bytes of a value for each element of both arguments broadcast together."""
    first, second = args[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape)  # type: ignore[no-untyped-call]
    return int(shape.numel() * torch.promote_types(first.dtype, second.dtype).itemsize)


def _loss(args: tuple[Any, ...]) -> int | None:
    reduction = next(
        (argument for argument in args[2:] if isinstance(argument, int) and not isinstance(argument, bool)), 1
    )
    return None if reduction == _NO_REDUCTION or not isinstance(args[1], Tensor) else _elements_of_both(args)


RESULT_BYTES: Mapping[str, Callable[[tuple[Any, ...]], int | None]] = {
    # `TORCH_META_FUNC` makes the result as large as the arguments and resizes it to a scalar, which keeps its memory.
    "aten::mse_loss": _loss,
    "aten::smooth_l1_loss": _loss,
    # `binary_cross_entropy_out_cpu` and `_cuda` reduce into another tensor and resize the first.
    "aten::binary_cross_entropy": _loss,
    # `soft_margin_loss_out` makes every loss in its result, and resizes it.
    "aten::soft_margin_loss": _loss,
}
"""By operator, the bytes of its first result from its arguments; None where they are what the shape says.

Source: aten/src/ATen/native/BinaryOps.cpp and Loss.cpp, native/cuda/Loss.cu.
"""
