"""What cuDNN does not say of a described card, as measured on an H100: products of matrices, and shared sums."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from tracer.null_gpu.cudnn_answers import of_matrix_product, with_shared_sums


def pointwise(operation: str, x: tuple[int, ...], channels: int, *, kernel: int = 1, last: bool = False) -> Any:
    sizes, weight, y = list(x), [channels, x[1], kernel, kernel], [x[0], channels, *x[2:]]
    strides = [x[1] * x[2] * x[3], 1, x[1] * x[3], x[1]] if last else [x[1] * x[2] * x[3], x[2] * x[3], x[3], 1]
    tensors = {"x": (sizes, strides), "w": (weight, [1] * 4), "y": (y, [1] * 4)}
    return {"operation": operation, "dtype": "float32", "padding": [0, 0], "stride": [1, 1], **tensors}


# Of ResNet-50 and others on an H100, float32 with TF32: bytes, or None where cuDNN took what it says.
@pytest.mark.parametrize(
    ("x", "channels", "of_weights"),
    [
        ((32, 64, 56, 56), 256, 2097152),
        ((32, 512, 28, 28), 256, 16777216),
        ((32, 1024, 14, 14), 256, 33554432),
        ((32, 512, 13, 13), 1000, 65536000),
        ((16, 768, 17, 17), 128, 6291456),
        ((32, 1024, 14, 14), 512, None),  # 64 MiB
        ((32, 2048, 7, 7), 512, None),  # three times as much as it reads and writes
        ((32, 16, 112, 112), 64, None),  # of few channels
    ],
)
def test_a_kernel_of_one_element_is_a_product_of_matrices(
    x: tuple[int, ...], channels: int, of_weights: int | None
) -> None:
    assert of_matrix_product(pointwise("backward_filter", x, channels)) == of_weights
    assert of_matrix_product(pointwise("forward", x, channels)) == 0
    assert of_matrix_product(pointwise("backward_data", x, channels)) == 0
    for other in ({"kernel": 3}, {"last": True}):
        assert of_matrix_product(pointwise("forward", x, channels, **other)) is None  # type: ignore[arg-type]


# Of VGG-16 and Inception, gradients of weights: what cuDNN says behind copies of the tensors, and what it took.
@pytest.mark.parametrize(
    ("x", "channels", "said", "took"),
    [
        ((16, 64, 224, 224), 64, 295123, 2065063),
        ((16, 128, 56, 56), 256, 16, 8258215),
        ((16, 256, 56, 56), 256, 16, 7078495),
        ((16, 256, 28, 28), 512, 147, 4326127),
        ((16, 512, 28, 28), 512, 147, 8651503),
        ((16, 128, 8, 8), 384, 147, 147),  # of few summands
    ],
)
def test_sums_are_shared_by_all_multiprocessors(x: tuple[int, ...], channels: int, said: int, took: int) -> None:
    problem = pointwise("backward_filter", x, channels, kernel=3)
    copies = 4 * sum(prod(problem[name][0]) for name in "xwy")
    assert with_shared_sums(problem, copies + said, 132) == pytest.approx(copies + took, abs=1024)
    assert with_shared_sums(problem, copies + said, 0) == copies + said  # another kind of card
