"""Operations of a step, by hand."""

from __future__ import annotations

import math

import torch

from tracer.changes.flops import flops_of


def counted(name: str, *args: object, out: object = None) -> int:
    return flops_of(f"aten::{name}", args, {}, out)


def test_a_matrix_product_has_two_operations_for_each_product_of_numbers() -> None:
    a, b = torch.zeros(3, 5), torch.zeros(5, 7)
    assert counted("mm", a, b, out=a @ b) == 2 * 3 * 5 * 7


def test_one_of_complex_numbers_has_four_times_as_many() -> None:
    a, b = (torch.zeros(2, 3, 5, dtype=torch.complex64), torch.zeros(2, 5, 7, dtype=torch.complex64))
    assert counted("bmm", a, b, out=a @ b) == 4 * 2 * 2 * 3 * 5 * 7


def test_a_transform_has_five_n_log_n_and_a_real_one_half() -> None:
    real, whole = torch.zeros(3, 16, 8), torch.zeros(3, 16, 8, dtype=torch.complex64)
    half = torch.fft.rfft2(real)
    count = 5 * 3 * 128 * math.log2(128)
    assert counted("_fft_c2c", whole, [1, 2], 0, True, out=whole) == count
    assert counted("_fft_r2c", real, [1, 2], 0, True, out=half) == count / 2
    assert counted("_fft_c2r", half, [1, 2], 0, 8, out=real) == count / 2


def test_what_has_no_formula_counts_nothing() -> None:
    one = torch.zeros(3)
    assert counted("relu", one, out=one) == 0
    assert flops_of("mine::mm", (one, one), {}, one) == 0
