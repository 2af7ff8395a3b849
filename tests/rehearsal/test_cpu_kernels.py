"""What CPU kernels take for themselves: asked of the kernels, and then the rehearsed peak is the measured one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.changes.programs import PROGRAMS
from tests.truth.isolate import value_in_fresh_process
from tracer.changes.kinds.accumulate import Accumulated
from tracer.rehearsal import cpu_kernels
from tracer.rehearsal.cpu_kernels import CpuKernels
from tracer.rehearsal.recorder import OperatorCall
from tracer.rehearsal.rehearse import rehearse
from tracer.sessions.trials.advising import run_for_real
from tracer.workloads.module_steps import StepWorkload
from tracer.workloads.workload import Workload


def accumulated_unet() -> Workload:
    """Convolutions of parts of a batch."""
    return Accumulated(PROGRAMS["unet"](), 4)


class ComplexProduct(nn.Module):
    """Its backward multiplies by what is conjugated."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 32, 32, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        """[64, 32, 32] to the same."""
        return torch.bmm(x * self.weight.real, self.weight).abs()


def complex_products() -> Workload:
    """Larger than what is multiplied without a copy."""
    model = ComplexProduct()
    x = torch.ones(64, 32, 32, dtype=torch.complex64)
    return StepWorkload(lambda: model(x).sum().backward(), model, None, torch.device("cpu"))


@pytest.mark.parametrize(
    "build",
    [
        PROGRAMS["lstm"],
        complex_products,
        *(
            pytest.param(build, marks=pytest.mark.slow)
            for build in (PROGRAMS["resnet"], PROGRAMS["fno"], accumulated_unet)
        ),
    ],
)
def test_with_them_the_rehearsed_peak_is_the_measured_one(build: Callable[[], Workload]) -> None:
    measured, with_them, without = value_in_fresh_process(_peaks, build)
    assert with_them == measured
    assert without < measured


def _peaks(build: Callable[[], Workload]) -> tuple[int, int, int]:
    """Measured, rehearsed with the kernels' answers, and without; nothing else is in the process."""
    torch.set_num_threads(2)  # of the FNO's kernels only those of two threads take something for themselves
    measured = run_for_real(build).peak_bytes
    with_them = rehearse(build(), device="cpu", num_steps=2, cpu_kernels=CpuKernels()).memory
    without = rehearse(build(), device="cpu", num_steps=2).memory
    return measured, with_them.peak_requested_bytes, without.peak_requested_bytes


def test_a_call_is_made_once_for_all_that_are_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers alike, three steps, and another rehearsal; a batch of another size is another call."""
    kernels, asked, run = CpuKernels(), [], cpu_kernels._run
    monkeypatch.setattr(cpu_kernels, "_run", lambda *call: asked.append(call) or run(*call))

    def rehearsed(batch_size: int) -> None:
        model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1))

        def step() -> None:
            model(torch.randn(batch_size, 8, 16, 16))

        rehearse(StepWorkload(step, model, None, torch.device("cpu")), device="cpu", cpu_kernels=kernels)

    for batch_size in (2, 2, 4):
        rehearsed(batch_size)
    assert len(asked) == 2


def test_the_workspace_of_a_recurrent_layer_is_as_large_as_it_is() -> None:
    """A fake kernel says that it has no elements; what backward is given decides what backward takes."""
    model = nn.LSTM(8, 16)
    seen: list[int] = []

    def step() -> None:
        model(torch.randn(5, 3, 8))[0].sum().backward()

    def watch(call: OperatorCall) -> None:
        if call.name == "aten::mkldnn_rnn_layer":
            seen.append(call.out[3].numel())

    of = StepWorkload(step, model, None, torch.device("cpu"))
    rehearse(of, device="cpu", num_steps=1, cpu_kernels=CpuKernels(), watch=watch)
    x, h = torch.zeros(5, 3, 8), torch.zeros(3, 16)
    weights = (torch.zeros(64, 8), torch.zeros(64, 16), torch.zeros(64), torch.zeros(64))
    options: tuple[Any, ...] = (False, [], 2, 16, 1, True, False, False, True)  # an LSTM of one layer, in training
    real = torch.ops.aten.mkldnn_rnn_layer(x, *weights, h, h, *options)
    assert seen == [real[3].numel()] and seen[0] > 0


def test_what_is_asked_draws_no_random_numbers_and_leaves_no_mode() -> None:
    model = nn.Conv2d(3, 4, 3)

    def step() -> None:
        model(torch.zeros(1, 3, 8, 8))

    before = torch.get_rng_state()
    rehearse(StepWorkload(step, model, None, torch.device("cpu")), device="cpu", cpu_kernels=CpuKernels())
    assert torch.equal(torch.get_rng_state(), before)
    assert type(torch.zeros(1)) is torch.Tensor
