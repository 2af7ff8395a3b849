"""Operations of a step, by hand."""

from __future__ import annotations

import math

import torch
from torch import nn

from tracer.changes.flops import FlopCount, flops_of
from tracer.rehearsal.recorder import OperatorCall
from tracer.rehearsal.rehearse import rehearse
from tracer.workloads.module_steps import SupervisedWorkload


def call(name: str, *args: object, out: object = None) -> OperatorCall:
    return OperatorCall(f"aten::{name}", args, {}, out, False)


def test_a_matrix_product_has_two_operations_for_each_product_of_numbers() -> None:
    a, b = torch.zeros(3, 5), torch.zeros(5, 7)
    assert flops_of(call("mm", a, b, out=a @ b)) == 2 * 3 * 5 * 7


def test_one_of_complex_numbers_has_four_times_as_many() -> None:
    a, b = (torch.zeros(2, 3, 5, dtype=torch.complex64), torch.zeros(2, 5, 7, dtype=torch.complex64))
    assert flops_of(call("bmm", a, b, out=a @ b)) == 4 * 2 * 2 * 3 * 5 * 7


def test_a_transform_has_five_n_log_n_and_a_real_one_half() -> None:
    real, whole = torch.zeros(3, 16, 8), torch.zeros(3, 16, 8, dtype=torch.complex64)
    half = torch.fft.rfft2(real)
    count = 5 * 3 * 128 * math.log2(128)
    assert flops_of(call("_fft_c2c", whole, [1, 2], 0, True, out=whole)) == count
    assert flops_of(call("_fft_r2c", real, [1, 2], 0, True, out=half)) == count / 2
    assert flops_of(call("_fft_c2r", half, [1, 2], 0, 8, out=real)) == count / 2


def test_what_has_no_formula_counts_nothing() -> None:
    one = torch.zeros(3)
    assert flops_of(call("relu", one, out=one)) == 0
    assert flops_of(OperatorCall("mine::mm", (one, one), {}, one, False)) == 0


def test_a_step_counts_backward_too_and_a_part_its_forward_pass_alone() -> None:
    """Two linear layers without bias: forward is 2 B I O each; backward twice that, but nothing for the input."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU()), nn.Linear(8, 2, bias=False))
    workload = SupervisedWorkload(
        model=model,
        optimizer=None,
        next_batch=lambda: (torch.zeros(16, 4), torch.zeros(16, 2)),
        loss=nn.functional.mse_loss,
        device=torch.device("cpu"),
        description={},
    )
    count = FlopCount()
    count.follow(model, ["0"])
    rehearse(workload, device="cpu", num_steps=1, watch=count.watch)
    first, second = 2 * 16 * 4 * 8, 2 * 16 * 8 * 2
    assert count.by_part == {"0": first}
    assert count.total == first * 2 + second * 3
