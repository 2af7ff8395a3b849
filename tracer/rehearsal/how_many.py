"""Operators whose result is as large as the numbers in a tensor say: a rehearsal takes the largest that it can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_Answer = Callable[[], Any]


def _nonzero(args: tuple[Any, ...]) -> _Answer:
    """Every element is there."""
    tensor: Tensor = args[0]
    return lambda: torch.empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _masked_select(args: tuple[Any, ...]) -> _Answer:
    tensor, mask = args[:2]
    number = torch.broadcast_shapes(tensor.shape, mask.shape).numel()  # type: ignore[no-untyped-call]
    return lambda: tensor.new_empty(number)


def _unique(args: tuple[Any, ...]) -> _Answer:
    """All elements differ."""
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
