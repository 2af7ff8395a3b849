"""What CUDA's kernels take beside their results: statistics, partial sums, sorted indices, copies in another order.

Each function takes an operator's call and tells the sizes; all of it is freed when the operator ends. The sizes are
those of torch 2.6 to 2.15; where a library decides (CUB's sort, cuFFT's plans), the row of the table says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, log2, prod
from typing import Any

import torch
from torch import Tensor

from tracer.rehearsal.recorder import OperatorCall, Scratch
from tracer.rehearsal.rule import Gpu

FLOAT_BYTES = 4
INDEX_BYTES = 8
_SIXTEEN_BITS = (torch.float16, torch.bfloat16)
_NO_REDUCTION, _MEAN = 0, 1
_WITHOUT_WEIGHTS: tuple[Any, ...] = (None, None, _MEAN)
RUNNING = ("aten::cumsum", "aten::cumprod")


def scratch(*sizes_bytes: int) -> Iterator[Scratch]:
    """So many pieces, in this order."""
    return (Scratch(size) for size in sizes_bytes)


def size_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor without gaps."""
    return tensor.numel() * tensor.element_size()


def accumulator_bytes(tensor: Tensor) -> int:
    """Bytes of an element in the type that CUDA adds up in: float for 16 bit types."""
    return FLOAT_BYTES if tensor.dtype in _SIXTEEN_BITS else tensor.element_size()


def copy_bytes(*tensors: Tensor | None) -> list[int]:
    """Sizes of the copies that `contiguous()` makes in a kernel; contiguous tensors are not copied."""
    return [size_bytes(tensor) for tensor in tensors if tensor is not None and not tensor.is_contiguous()]


# ---- norms -----------------------------------------------------------------------------------------------------------


def group_norm(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Two factors for each channel of each sample; in 16 bits statistics in float as well."""
    x, weight, bias, samples, channels, pixels, groups = call.args[:7]
    element = accumulator_bytes(x)
    if x.dtype in _SIXTEEN_BITS:
        yield from scratch(*[samples * groups * element] * 2)
    if pixels > 1 and not (weight is None and bias is None):
        yield from scratch(*[samples * channels * element] * 2)


def group_norm_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Two sums and one factor for each channel of each sample, two factors for each group."""
    x, weight, (samples, channels, pixels, groups) = call.args[1], call.args[4], call.args[5:9]
    wants_input = call.args[9][0]
    of_channels, of_groups = (samples * count * accumulator_bytes(x) for count in (channels, groups))
    if pixels > 1:
        yield from scratch(of_channels, of_channels)
    if wants_input:
        yield from scratch(of_groups, of_groups, of_channels if pixels > 1 and weight is not None else 0)


def layer_norm(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """The input in order, where it is not."""
    return scratch(*copy_bytes(call.args[0]))


_ROWS_OF_A_SUM, _COLUMNS_OF_A_BLOCK, _MOST_BLOCKS = 32, 32, 64 * 1024 // 2


def layer_norm_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Gradient and input in order; of many rows also partial sums of 32 rows each for weight and bias."""
    grad, x, shape = call.args[:3]
    yield from scratch(*copy_bytes(grad, x))
    columns = prod(shape)
    rows = x.numel() // columns if columns else 0
    if rows <= 64 * 1024 or columns // _COLUMNS_OF_A_BLOCK >= gpu.card.num_sms // 2:
        return
    across = ceil(columns / _COLUMNS_OF_A_BLOCK)
    down = min(_MOST_BLOCKS // across, ceil(rows / _ROWS_OF_A_SUM))
    for parameter, is_wanted in zip(call.args[5:7], call.args[7][1:], strict=True):
        if parameter is not None and is_wanted:
            yield Scratch(down * columns * parameter.element_size())


# ---- softmax ---------------------------------------------------------------------------------------------------------


def softmax_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """The product of gradient and result, and what of it or of the result is not in order."""
    grad, output = call.args[:2]
    product = output.numel() * max(grad.element_size(), output.element_size())
    yield from scratch(product, product if _is_permuted(grad) else 0, *copy_bytes(output))


def log_softmax_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Gradient and result in order, where they are not."""
    return scratch(*copy_bytes(*call.args[:2]))


def _is_permuted(tensor: Tensor) -> bool:
    """Whether an element by element result has its axes in another order, since this one has."""
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1 and stride > 0]
    return strides != sorted(strides, reverse=True)


# ---- indices that are sorted -----------------------------------------------------------------------------------------

_MOST_UNSORTED_INDICES = 3072
_INDICES_OF_A_SUM = 10


def radix_sort(num_items: int, key_bytes: int) -> int:
    """CUB's second pair of buffers for keys and 64-bit values; its counters are not in it.

    Args:
        key_bytes: Bytes of one key.
    """
    return num_items * (key_bytes + INDEX_BYTES)


def embedding_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """More than 3,072 indices are sorted; an index gets a row of partial sums, and each ten of the same index one."""
    grad, indices, num_weights, by_frequency = call.args[0], call.args[1], call.args[2], call.args[4]
    yield from scratch(*copy_bytes(grad))
    number, columns = indices.numel(), grad.shape[-1]
    if number <= _MOST_UNSORTED_INDICES and not by_frequency:
        return
    index_bytes = indices.element_size()
    segments = min(number, num_weights)
    rows = number // _INDICES_OF_A_SUM + segments
    yield from scratch(*[number * index_bytes] * (4 if by_frequency else 3), *[segments * index_bytes] * 2)
    yield from scratch(rows * index_bytes, rows * columns * accumulator_bytes(grad), 8, 8)


def index_put(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Sorted offsets and expanded values, if values are accumulated."""
    self, indices, values, *rest = call.args
    if not (rest[0] if rest else call.kwargs.get("accumulate", False)):
        return
    indices_given = [index for index in indices if index is not None]
    if not indices_given or any(part.dtype is torch.bool for part in indices_given):
        return  # how many are chosen is in the values of the mask
    number = prod(torch.broadcast_shapes(*(part.shape for part in indices_given)))  # type: ignore[no-untyped-call]
    indexed = prod(size for size, index in zip(self.shape, indices, strict=False) if index is not None)
    rows = number * (self.numel() // max(indexed, 1))
    is_whole = values.is_contiguous() and values.numel() == rows
    of_indices = number * INDEX_BYTES
    yield from scratch(0 if is_whole else rows * values.element_size(), *[of_indices] * 4)
    yield Scratch(radix_sort(number, INDEX_BYTES))


_LARGEST_SMALL_SORT = 4096
_FEW_SEGMENTS = 128
_LONG_SEGMENT = 1_000_000


def sort(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Up to 4,096 along the axis in place; more in CUB, with the indices beside the keys."""
    return _sort(call.args[0], call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else -1))


def _sort(x: Tensor, dim: int) -> Iterable[Scratch]:
    length = x.shape[dim] if x.dim() else 1
    if x.numel() == 0 or length <= _LARGEST_SMALL_SORT:
        yield Scratch(length * INDEX_BYTES)
        return
    if x.stride(dim) != 1:
        yield from scratch(size_bytes(x), size_bytes(x), x.numel() * INDEX_BYTES)
    segments = x.numel() // length
    is_segment_by_segment = segments == 1 or length >= _LONG_SEGMENT
    num_items = length if is_segment_by_segment else x.numel()
    num_columns = 2 if segments < _FEW_SEGMENTS and not is_segment_by_segment else 1
    yield from scratch(*[num_items * INDEX_BYTES] * num_columns, radix_sort(num_items, x.element_size()))


def median(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Sorted values and their indices, where it is the median of all; along an axis none."""
    x = call.args[0]
    if isinstance(call.out, Tensor) and x.numel():
        yield from scratch(0 if x.is_contiguous() else size_bytes(x), size_bytes(x), x.numel() * INDEX_BYTES)
        yield from _sort(x.flatten(), 0)


def topk(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Up to 4,096 values are found and sorted in place; more are sorted as `sort` does. Counters are not in it."""
    is_sorted = call.args[4] if len(call.args) > 4 else call.kwargs.get("sorted", True)
    values, indices = call.out
    if call.args[1] <= _LARGEST_SMALL_SORT or not is_sorted or values.numel() <= 1:
        return
    of_indices = size_bytes(indices)
    yield from scratch(of_indices, size_bytes(values))
    yield from _sort(values, call.args[2] if len(call.args) > 2 else call.kwargs.get("dim", -1))
    yield Scratch(of_indices)


# ---- attention -------------------------------------------------------------------------------------------------------


def _up_to(multiple: int, number: int) -> int:
    return ceil(number / multiple) * multiple


def flash_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """The query's gradient in float, a sum for each row; with fewer key heads, gradients for every query head."""
    grad, query, key, _, out = call.args[:5]
    batch, heads, length, width = query.shape
    yield from scratch(*copy_bytes(grad.transpose(1, 2), out.transpose(1, 2)))
    padded = _up_to(32 if width <= 128 else 64, _up_to(8, width))
    rows = _up_to(128, length)
    yield from scratch(batch * heads * rows * FLOAT_BYTES, batch * rows * heads * padded * FLOAT_BYTES)
    if key.shape[1] != heads:
        of_all_heads = batch * key.shape[2] * heads * width * query.element_size()
        yield from scratch(of_all_heads, of_all_heads)


def cudnn_attention_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """The query's gradient in float and a sum for each row; with fewer key heads, gradients for every query head."""
    query, key, value = call.args[1:4]
    batch, heads, length, width = query.shape
    sizes = [batch * heads * length * width * FLOAT_BYTES, batch * heads * length * FLOAT_BYTES]
    if key.shape[1] != heads:
        rows = batch * heads * key.shape[2] * query.element_size()
        sizes += [rows * key.shape[3], rows * value.shape[3]]
    yield Scratch(sum(sizes))  # of one workspace, the pieces one behind the other


def efficient_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Sums in float, with the product of output and gradient, or with a 16 bit query's gradient.

    Where queries share keys and values, gradients of these are made for each query's head, and summed then.
    """
    grad, query, key, value = call.args[:4]
    batch, heads, length, _ = query.shape
    if key.shape[1] != heads:
        sharing = heads // key.shape[1]
        yield from scratch(sharing * size_bytes(key), sharing * size_bytes(value))
    yield from scratch(*copy_bytes(grad.transpose(1, 2)))
    of_rows = batch * heads * length * FLOAT_BYTES
    if query.dtype in _SIXTEEN_BITS:
        yield Scratch(of_rows)
    else:
        yield Scratch(size_bytes(grad), beside=2)
        yield Scratch(of_rows, beside=1)
        yield Scratch(of_rows)
    yield Scratch(batch * heads * FLOAT_BYTES * _efficient_workspace(query, key, value, gpu))


_TILE, _LARGE_TILE, _TILE_HEADER = 64, 128, 4
_LARGE_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Cards on which tiles of 128 rows fit into a multiprocessor's shared memory."""


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


# ---- Fourier transforms ----------------------------------------------------------------------------------------------

_MOST_AXES_AT_ONCE = 3


def _goes_at_once(axes: Sequence[int]) -> bool:
    return len(axes) <= _MOST_AXES_AT_ONCE and tuple(axes[:2]) != (0, 1)


def fft(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """A second result where the axes are not transformed at once; complex to real always copies its input."""
    x, axes = call.args[0], [axis % max(call.args[0].dim(), 1) for axis in call.args[1]]
    if call.name == "aten::_fft_c2r":
        yield from scratch(size_bytes(x), size_bytes(x) if len(axes) - 1 > _MOST_AXES_AT_ONCE else 0)
    elif call.name == "aten::_fft_c2c":
        yield Scratch(size_bytes(x) if len(axes) > _MOST_AXES_AT_ONCE else 0)
    elif not _goes_at_once(axes) and len(axes) > 1:
        yield Scratch(size_bytes(call.out))


# ---- sums in another type --------------------------------------------------------------------------------------------


def in_result_type(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Flags and integers are copied into the type of their sum; 16 bits are read as they are."""
    x, out = call.args[0], call.out
    if not isinstance(out, Tensor) or x.dtype == out.dtype:
        return
    if call.name in RUNNING or x.dtype not in _SIXTEEN_BITS or out.dtype != torch.float32:
        yield Scratch(x.numel() * out.element_size())


# ---- losses ----------------------------------------------------------------------------------------------------------


def cross_entropy_with_logits(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """The logarithm of a sigmoid, a positives' weight of every element, and the losses that are reduced."""
    given = (*call.args, *_WITHOUT_WEIGHTS[len(call.args) - 2 :])
    x, target, of_positives, reduced = given[0], given[1], given[3], given[4]
    yield Scratch(size_bytes(x))
    if of_positives is not None:
        yield Scratch(size_bytes(of_positives), beside=1)
        shape = torch.broadcast_shapes(of_positives.shape, target.shape)  # type: ignore[no-untyped-call]
        yield Scratch(shape.numel() * target.element_size(), beside=0)
    if reduced == _NO_REDUCTION:
        return
    yield Scratch(size_bytes(target))
    yield from _sum_of(target, call, gpu)


def soft_margin_loss(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """The mean or sum of the losses, before it is copied into the result."""
    x, reduced = call.args[0], call.args[2] if len(call.args) > 2 else _MEAN
    if reduced != _NO_REDUCTION:
        yield Scratch(x.element_size())
        yield from _sum_of(x, call, gpu)


def soft_margin_loss_backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """Target and product beside the exponential; the gradient comes where only the exponential is left."""
    target = call.args[2]
    return scratch(size_bytes(target), size_bytes(call.out))


def _sum_of(losses: Tensor, call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    return reduction(OperatorCall("aten::mean", (losses,), {}, call.out, call.is_backward), gpu)


# ---- sums over many blocks -------------------------------------------------------------------------------------------

_MOST_THREADS, _WARP, _FEWEST_VALUES, _MOST_VALUES = 512, 32, 16, 256
_THREADS_OF_A_MULTIPROCESSOR = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}


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
    yield from scratch(
        *_reduction_sizes(
            max(accumulator_bytes(x), out.element_size()), num_outputs, num_inputs, sums_fastest, not kept_strides, gpu
        )
    )


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
    return [element * num_outputs * blocks * (1 if sums_fastest else width * vector), FLOAT_BYTES * grid]


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
    """Return the workspace that cuDNN answered, 0 bytes without cuDNN; at most it is copies of all three tensors.

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
