"""What CUDA's kernels take beside their results, as far as it changes a peak.

Each function takes an operator's call and tells the sizes; all of it is freed when the operator ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil, log2, prod
from typing import Any

import torch
from torch import Tensor

from tracer.rehearsal.recorder import OperatorCall, Scratch
from tracer.rehearsal.rule import Gpu

_FLOAT_BYTES = 4
_SIXTEEN_BITS = (torch.float16, torch.bfloat16)
_MOST_THREADS, _WARP, _FEWEST_VALUES, _MOST_VALUES = 512, 32, 16, 256
_THREADS_OF_A_MULTIPROCESSOR = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}
_MOST_UNSORTED_INDICES, _INDICES_OF_A_SUM = 3072, 10
_TILE, _LARGE_TILE, _TILE_HEADER = 64, 128, 4
_LARGE_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Cards on which tiles of 128 rows fit into a multiprocessor's shared memory."""


def group_norm(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Two factors for each channel of each sample; in 16 bits statistics in float as well."""
    x, weight, bias, samples, channels, pixels, groups = call.args[:7]
    element = _accumulator_bytes(x)
    if x.dtype in _SIXTEEN_BITS:
        yield from map(Scratch, [samples * groups * element] * 2)
    if pixels > 1 and not (weight is None and bias is None):
        yield from map(Scratch, [samples * channels * element] * 2)


def group_norm_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Two sums and one factor for each channel of each sample, two factors for each group."""
    x, weight, (samples, channels, pixels, groups) = call.args[1], call.args[4], call.args[5:9]
    wants_input = call.args[9][0]
    of_channels, of_groups = (samples * count * _accumulator_bytes(x) for count in (channels, groups))
    if pixels > 1:
        yield from map(Scratch, (of_channels, of_channels))
    if wants_input:
        yield from map(Scratch, (of_groups, of_groups, of_channels if pixels > 1 and weight is not None else 0))


def softmax_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """The product of gradient and result, and what of it or of the result is not in order."""
    grad, output = call.args[:2]
    product = output.numel() * max(grad.element_size(), output.element_size())
    yield from map(Scratch, (product, product if _is_permuted(grad) else 0, *_copy_bytes(output)))


def log_softmax_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Gradient and result in order, where they are not."""
    return map(Scratch, _copy_bytes(*call.args[:2]))


def _is_permuted(tensor: Tensor) -> bool:
    """Whether an element by element result has its axes in another order, since this one has."""
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1 and stride > 0]
    return strides != sorted(strides, reverse=True)


def _copy_bytes(*tensors: Tensor | None) -> list[int]:
    """Sizes of the copies that `contiguous()` makes in a kernel; contiguous tensors are not copied."""
    return [tensor.nbytes for tensor in tensors if tensor is not None and not tensor.is_contiguous()]


def _accumulator_bytes(tensor: Tensor) -> int:
    """Bytes of an element in the type that CUDA adds up in: float for 16 bit types."""
    return _FLOAT_BYTES if tensor.dtype in _SIXTEEN_BITS else tensor.element_size()


def embedding_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """More than 3,072 indices are sorted; an index gets a row of partial sums, and each ten of the same index one."""
    grad, indices, num_weights, by_frequency = call.args[0], call.args[1], call.args[2], call.args[4]
    yield from map(Scratch, _copy_bytes(grad))
    number, columns = indices.numel(), grad.shape[-1]
    if number <= _MOST_UNSORTED_INDICES and not by_frequency:
        return
    index_bytes = indices.element_size()
    segments = min(number, num_weights)
    rows = number // _INDICES_OF_A_SUM + segments
    yield from map(Scratch, [number * index_bytes] * (4 if by_frequency else 3) + [segments * index_bytes] * 2)
    yield from map(Scratch, (rows * index_bytes, rows * columns * _accumulator_bytes(grad), 8, 8))


def efficient_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Sums in float, with the product of output and gradient, or with a 16 bit query's gradient.

    Where queries share keys and values, gradients of these are made for each query's head, and summed then.
    """
    grad, query, key, value = call.args[:4]
    batch, heads, length, _ = query.shape
    if key.shape[1] != heads:
        sharing = heads // key.shape[1]
        yield from map(Scratch, (sharing * key.nbytes, sharing * value.nbytes))
    yield from map(Scratch, _copy_bytes(grad.transpose(1, 2)))
    of_rows = batch * heads * length * _FLOAT_BYTES
    if query.dtype in _SIXTEEN_BITS:
        yield Scratch(of_rows)
    else:
        yield Scratch(grad.nbytes, beside=2)
        yield Scratch(of_rows, beside=1)
        yield Scratch(of_rows)
    yield Scratch(batch * heads * _FLOAT_BYTES * _efficient_workspace(query, key, value, gpu))


def _efficient_workspace(query: Tensor, key: Tensor, value: Tensor, gpu: Gpu) -> int:
    """Numbers for each head: tiles with a lock for the query's gradient; those of keys that registers do not hold.

    Source: Params.workspace_strideBH in mem_eff_attention/kernel_backward.h, BwdKernel.get_all in generate_kernels.py.
    """
    batch, heads, length, width = query.shape
    widest, is_half = max(width, value.shape[-1]), query.dtype in _SIXTEEN_BITS
    rows = _LARGE_TILE if widest > _TILE and gpu.card.capability in _LARGE_SHARED_MEMORY else _TILE
    in_registers = is_half and widest <= rows
    columns = rows if in_registers and gpu.card.capability >= (8, 0) else _TILE
    tiles = ceil(length / rows) * ceil(width / columns)
    of_query = tiles * (rows * columns + _TILE_HEADER)
    if in_registers or not is_half:
        return of_query
    keys = key.shape[2]
    splits = 1 if batch * heads >= 256 and keys <= 2 * columns else min(ceil(keys / columns), 200 // (batch * heads))
    padded = (_up_to(rows, width), _up_to(rows, value.shape[-1]))
    return max(splits, 1) * columns * sum(padded) + of_query


def _up_to(multiple: int, number: int) -> int:
    return ceil(number / multiple) * multiple


def reduction(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Few results of many values are added up by several blocks, which leave their sums in memory."""
    x, out = call.args[0], call.out
    if not isinstance(out, Tensor) or x.numel() == 0 or out.numel() == 0:
        return
    num_outputs, num_inputs = out.numel(), x.numel() // out.numel()
    axes = _axes_of(call)
    kept_strides = [stride for axis, stride in enumerate(x.stride()) if axis not in axes and x.shape[axis] > 1]
    summed = [stride for axis, stride in enumerate(x.stride()) if axis in axes and x.shape[axis] > 1]
    sums_fastest = not kept_strides or (bool(summed) and min(summed) < min(kept_strides))
    element = max(_accumulator_bytes(x), out.element_size())
    yield from map(Scratch, _reduction_sizes(element, num_outputs, num_inputs, sums_fastest, not kept_strides, gpu))


def _axes_of(call: OperatorCall) -> set[int]:
    x = call.args[0]
    axes = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    if axes is None or isinstance(axes, torch.dtype) or axes == []:
        return set(range(x.dim()))
    return {axis % max(x.dim(), 1) for axis in (axes if isinstance(axes, list | tuple) else [axes])}


def _power_of_two(number: int) -> int:
    return 1 << int(log2(max(number, 1)))


def _reduction_sizes(
    element: int, num_outputs: int, num_inputs: int, sums_fastest: bool, is_one_run: bool, gpu: Gpu
) -> list[int]:
    """`setReduceConfig` in aten/src/ATen/native/cuda/Reduce.cuh, down to the two buffers; 4 values a load."""
    across, down = (num_inputs, num_outputs) if sums_fastest else (num_outputs, num_inputs)
    vector = 1
    if sums_fastest and across > 128 and is_one_run:
        across //= 4
    elif not sums_fastest:
        while vector < 4 and num_outputs % (2 * vector) == 0:
            vector *= 2
        across //= vector
    threads = _MOST_THREADS // vector
    width_limit, height_limit = (min(_power_of_two(extent), threads) for extent in (across, down))
    width = min(width_limit, _WARP)
    height = min(height_limit, threads // width)
    width = min(width_limit, threads // height)
    step_input, step_output = (width, 1) if sums_fastest else (1, width)
    values = ceil(num_inputs / step_input)
    splits_rows = values >= height * _FEWEST_VALUES or values >= _MOST_VALUES
    step_input, step_output = (step_input * height, step_output) if splits_rows else (step_input, step_output * height)
    values = ceil(num_inputs / step_input)
    per_multiprocessor = _THREADS_OF_A_MULTIPROCESSOR.get(gpu.card.capability, 2048) // (width * height)
    target = gpu.card.num_sms * per_multiprocessor
    grid = ceil(num_outputs / vector / step_output)
    if not splits_rows or values < _MOST_VALUES or grid > target:
        return []
    blocks = max(min(ceil(target / grid), ceil(values / _FEWEST_VALUES)), ceil(values / _MOST_VALUES))
    if blocks <= 1:
        return []
    return [element * num_outputs * blocks * (1 if sums_fastest else width * vector), _FLOAT_BYTES * grid]


def convolution(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
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


def convolution_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
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
