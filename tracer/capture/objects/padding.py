"""Batches that are filled up: columns in which every row has one and the same value, to the end or from the begin."""

from __future__ import annotations

import traceback
import types
from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tracer.arrays import Bools, Ints
from tracer.capture.objects.at_failure import Padding
from tracer.capture.objects.holder_links import locals_of

_LEAST_COLUMNS: Final = 32
_MOST_TENSORS: Final = 64
_MOST_ELEMENTS: Final = 1 << 22
_TYPES: Final = (torch.int64, torch.int32, torch.bool)


def find_padding(error: BaseException) -> Padding | None:
    """Of the batches of token numbers or masks on the way to a failure that are filled up by half, the largest.

    Example: rows (5, 7, 0, 0) and (3, 0, 0, 0) have 2 columns of 4 that are used.
    """
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    tensors = {id(tensor): (name, tensor) for frame in frames for name, tensor in _tensors_of(frame)}
    found = (_of_tensor(name, tensor) for name, tensor in islice(tensors.values(), _MOST_TENSORS))
    of_shape: dict[tuple[int, int], Padding] = {}
    for each in filter(None, found):  # a mask of what a loss counts says nothing of the numbers that it is for
        shape = each.num_rows, each.num_columns
        of_shape[shape] = max(of_shape.get(shape, each), each, key=lambda one: one.num_used)
    filled = (each for each in of_shape.values() if each.num_used * 2 <= each.num_columns)
    return max(filled, key=lambda each: each.num_rows * each.num_columns, default=None)


def _tensors_of(frame: types.FrameType) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are variables of a frame, or values of a dictionary that is one."""
    variables = dict(locals_of(frame)) if frame.f_code.co_name != "<module>" else frame.f_globals
    for name, value in list(variables.items()):
        named = value.items() if type(value) is dict else [(name, value)]
        for key, each in list(named):
            if type(each) is Tensor and each.dtype in _TYPES and each.dim() == 2 and each.layout is torch.strided:
                yield str(key), each


def _of_tensor(name: str, tensor: Tensor) -> Padding | None:
    num_rows, num_columns = tensor.shape
    if num_rows < 2 or num_columns < _LEAST_COLUMNS or tensor.numel() > _MOST_ELEMENTS or tensor.is_meta:
        return None
    try:
        values = tensor.detach().cpu().numpy()
    except RuntimeError:  # one that torch.func wraps, or in a CUDA graph's capture
        return None
    if (values == values[0]).all():
        return None  # places, which are the same in each row
    return Padding(name, num_rows, num_columns, min(_num_used(values), _num_used(values[:, ::-1])))


def _num_used(values: Ints) -> int:
    """The columns up to the last one that is used; all, where rows do not end alike, or one begins like that."""
    fill = values[0, -1]
    if (values[:, -1] != fill).any() or (values[:, 0] == fill).any():
        return int(values.shape[1])
    is_used: Bools = (values != fill).any(0)
    return 1 + int(np.flatnonzero(is_used).max())
