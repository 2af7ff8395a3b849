"""What operators return where their fake kernels do not know: sizes and numbers that values decide, more memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_Answer = Callable[[], Any]

# ---- as large as the numbers in a tensor say: the largest that it can be ---------------------------------------------


def _nonzero(args: tuple[Any, ...]) -> _Answer:
    tensor: Tensor = args[0]
    return lambda: torch.empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _masked_select(args: tuple[Any, ...]) -> _Answer:
    tensor, mask = args[:2]
    number = torch.broadcast_shapes(tensor.shape, mask.shape).numel()  # type: ignore[no-untyped-call]
    return lambda: tensor.new_empty(number)


def _unique(args: tuple[Any, ...]) -> _Answer:
    tensor: Tensor = args[0]

    def answer() -> tuple[Tensor, Tensor, Tensor]:
        number = tensor.numel()
        inverse = torch.empty(tensor.shape, dtype=torch.int64)
        return tensor.new_empty(number), inverse, torch.empty(number, dtype=torch.int64)

    return answer


def _with_indices(args: tuple[Any, ...], call: Callable[[list[Any]], Any]) -> _Answer | None:
    """With every element that a mask could choose; None where no mask is among the indices."""
    indices = args[1]
    if not any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return None

    def answer() -> Any:
        plain: list[Any] = []
        for index in indices:
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                plain += [torch.empty(index.numel(), dtype=torch.int64) for _ in range(index.dim())]
            else:
                plain.append(index)
        return call(plain)

    return answer


def _index(args: tuple[Any, ...]) -> _Answer | None:
    return _with_indices(args, lambda indices: torch.ops.aten.index.Tensor(args[0], indices))


def _index_put(args: tuple[Any, ...]) -> _Answer | None:
    return _with_indices(args, lambda indices: torch.ops.aten.index_put.default(args[0], indices, *args[2:]))


def _index_put_in_place(args: tuple[Any, ...]) -> _Answer | None:
    return _with_indices(args, lambda indices: torch.ops.aten.index_put_.default(args[0], indices, *args[2:]))


ASKS_HOW_MANY: Mapping[str, Callable[[tuple[Any, ...]], _Answer | None]] = {
    "aten::nonzero": _nonzero,
    "aten::masked_select": _masked_select,
    "aten::_unique2": _unique,
    "aten::index": _index,
    "aten::index_put": _index_put,
    "aten::index_put_": _index_put_in_place,
    "aten::_index_put_impl_": _index_put_in_place,
}
"""By operator, from its arguments to what gives its result; None from those that say how many."""

# ---- a number that is drawn between bounds, and read: the largest of them --------------------------------------------

_Drawn = Callable[[Sequence[Any], Mapping[str, Any]], float | int | None]


def _uniform(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    low, high = (*args[1:3], *(0.0, 1.0)[len(args) - 1 :])[:2]
    return _below(float(kwargs.get("from", low)), float(kwargs.get("to", high)))


def _below(low: float, high: float) -> float:
    """The largest number of 32 bits below one of two bounds."""
    return max(low, high - (high - low) * 2.0**-24)


def _rand(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    return _below(0.0, 1.0)


def _randint(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    bounds = [arg for arg in args if isinstance(arg, int)]
    return int(kwargs.get("high", bounds[-1] if bounds else 1)) - 1


def _random(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Without bounds it is any number of the type."""
    bounds = [arg for arg in args[1:] if isinstance(arg, int)]
    high = kwargs.get("to", bounds[-1] if bounds else None)
    return None if high is None else int(high) - 1


DRAWN: Mapping[str, _Drawn] = {
    "aten::uniform_": _uniform,
    "aten::rand": _rand,
    "aten::randint": _randint,
    "aten::random_": _random,
}
"""By operator, from its arguments to the largest number that it draws."""

# ---- what backward formulas do in place, but for subclasses of tensors, which fake ones are --------------------------
# Source: torch/csrc/autograd/FunctionsManual.cpp; areAnyTensorSubclassLike in ATen/TensorSubclassLikeUtils.h.

MAKES_ZEROS = frozenset({"aten::zeros", "aten::new_zeros", "aten::zeros_like"})
FILLS_ZEROS = {
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
    torch.ops.aten.index_add.default: torch.ops.aten.index_add_.default,
    torch.ops.aten.index_copy.default: torch.ops.aten.index_copy_.default,
    torch.ops.aten.put.default: torch.ops.aten.put_.default,
}
"""Operators on new zeros, as in value_selecting_reduction_backward."""
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


# ---- results of kernels that are larger than their shape says, on every device ---------------------------------------

_NO_REDUCTION = 0


def _elements_of_both(args: tuple[Any, ...]) -> int:
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
