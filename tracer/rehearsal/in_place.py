"""Operators that backward formulas call in place, but for subclasses of tensors, which fake ones are.

Source: torch/csrc/autograd/FunctionsManual.cpp; areAnyTensorSubclassLike in ATen/TensorSubclassLikeUtils.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_OVER_ITSELF = {
    torch.ops.aten.mul.Tensor: torch.ops.aten.mul_.Tensor,
    torch.ops.aten.sub.Tensor: torch.ops.aten.sub_.Tensor,
}
_MASKS = {
    torch.ops.aten.logical_and.default: torch.ops.aten.logical_and_.default,
    torch.ops.aten.logical_or.default: torch.ops.aten.logical_or_.default,
}
_NODES: Mapping[str, Mapping[Any, Any]] = {
    "MaxBackward1": _MASKS,
    "MedianBackward0": _MASKS,
    "MinBackward1": _MASKS,
    "BinaryCrossEntropyWithLogitsBackward0": _OVER_ITSELF,
}


def in_place_in(node: str, operator: Any) -> Any:
    """The operator that a node's formula calls on tensors of its own in the place of another; None for the same one."""
    return _NODES.get(node, {}).get(operator)


def fits_in_place(args: tuple[Any, ...]) -> bool:
    """Whether the result of an operator has the shape of its first argument."""
    first, *others = (argument for argument in args if isinstance(argument, Tensor))
    return all(torch.broadcast_shapes(first.shape, other.shape) == first.shape for other in others)  # type: ignore[no-untyped-call]
