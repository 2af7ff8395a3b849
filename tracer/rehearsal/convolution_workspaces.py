"""What cuDNN takes for convolutions: its own answer for a card by name, see `tracer.null_gpu.cudnn`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from tracer.rehearsal.recorder import OperatorCall, Scratch
from tracer.rehearsal.rule import Gpu


def forward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """The workspace of forward, which is allocated after the result."""
    x, weight, _, stride, padding, dilation, is_transposed, _, groups = call.args[:9]
    if not isinstance(call.out, Tensor):
        return
    if is_transposed:
        problem = _problem("backward_data", call.out, weight, x, stride, padding, dilation, groups)
    else:
        problem = _problem("forward", x, weight, call.out, stride, padding, dilation, groups)
    if problem is not None:
        yield _workspace(problem, gpu)


def backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """The workspaces of the gradients of input and weight, each taken when its gradient is there, before the next."""
    grad, x, weight, _, stride, padding, dilation, is_transposed, _, groups, wanted = call.args[:11]
    large, small = (grad, x) if is_transposed else (x, grad)
    of_input = "forward" if is_transposed else "backward_data"
    for operation, is_wanted, result in zip((of_input, "backward_filter"), wanted[:2], call.out[:2], strict=True):
        problem = _problem(operation, large, weight, small, stride, padding, dilation, groups)
        if is_wanted and problem is not None and isinstance(result, Tensor):
            yield replace(_workspace(problem, gpu), after=result)


def _workspace(problem: dict[str, Any], gpu: Gpu) -> Scratch:
    """What cuDNN said that it takes, nothing where it was not asked; at most a copy of all in another layout.

    Many of its engines work on channels last: where tensors are not, they copy input, weight and output.
    """
    size_bytes = gpu.cudnn.workspace_bytes(problem) if gpu.cudnn is not None else 0
    copies = sum(prod(problem[name][0]) for name in ("x", "w", "y")) * _DTYPES[problem["dtype"]]
    return Scratch(size_bytes, at_most_bytes=copies)


def _problem(
    operation: str,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> dict[str, Any] | None:
    """Description of a convolution for cuDNN; None where torch uses its own depthwise kernels."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = formats.get(x.dim())
    is_last = last is not None and any(
        tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous() for tensor in (x, weight, y)
    )
    is_depthwise = x.dim() == 4 and 1 < groups == x.shape[1] and weight.shape[0] % groups == 0
    if (is_depthwise and not is_last) or str(x.dtype).removeprefix("torch.") not in _DTYPES:
        return None
    sizes = {name: list(operand.shape) for name, operand in (("x", x), ("w", weight), ("y", y))}
    stride, padding, dilation = list(stride), list(padding), list(dilation)
    if x.dim() == 3:  # torch puts an axis of 1 before the only one
        sizes = {name: [*size[:2], 1, size[2]] for name, size in sizes.items()}
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    return {
        "operation": operation,
        "dtype": str(x.dtype).removeprefix("torch."),
        "allow_tf32": torch.backends.cudnn.allow_tf32,
        "deterministic": torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled(),
        **{name: [size, _strides(size, is_last)] for name, size in sizes.items()},
        "padding": padding,
        "stride": stride,
        "dilation": dilation,
    }


_DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def _strides(sizes: list[int], channels_last: bool) -> list[int]:
    order = [1, *range(len(sizes) - 1, 1, -1), 0] if channels_last else range(len(sizes) - 1, -1, -1)
    strides, step = [0] * len(sizes), 1
    for axis in order:
        strides[axis] = step
        step *= sizes[axis]
    return strides
