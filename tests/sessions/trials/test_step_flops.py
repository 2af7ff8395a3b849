"""Operations of a step, counted while it runs, against what they are by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.utils.flop_counter import FlopCounterMode

from tracer.changes.applied import AppliedChanges
from tracer.changes.script_changes import CHECKPOINT
from tracer.sessions.trials.step_flops import StepFlops

ROWS, NARROW, WIDE, BLOCKS = 8, 16, 32, 3
LAYER = 2 * ROWS * NARROW * WIDE


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(NARROW, WIDE), nn.Linear(WIDE, NARROW)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.b(torch.tanh(self.a(x)))


def step(model: nn.Module) -> None:
    model(torch.ones(ROWS, NARROW)).square().sum().backward()


@pytest.mark.parametrize(("changes", "again"), [((), 0), ((CHECKPOINT,), BLOCKS)])
def test_a_step_of_linear_layers_has_what_they_have_by_hand(changes: tuple[()], again: int) -> None:
    """Forward once for each of two layers in a block, backward twice, but for the input's gradient.

    Of a block that computes again, the first layer does: backward needs its result, and not the second one's.
    """
    model = nn.Sequential(*[Block() for _ in range(BLOCKS)])
    flops = StepFlops()
    with AppliedChanges(changes):
        step(model)
        flops.begin()
        step(model)
        flops.end()
    step(model)
    assert flops.flops == (3 * 2 * BLOCKS - 1 + again) * LAYER
    with AppliedChanges(changes), FlopCounterMode(display=False) as torchs:
        step(model)
    assert torchs.get_total_flops() == flops.flops


def test_a_step_that_does_not_end_has_no_count() -> None:
    flops = StepFlops()
    flops.begin()
    step(Block())
    flops.stop()
    flops.stop()
    assert flops.flops is None and not flops.is_on


def test_of_a_sharded_tensor_the_part_of_this_rank_counts_once() -> None:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        weight = DTensor.from_local(torch.ones(NARROW, WIDE), mesh, [Replicate()])
        rows = DTensor.from_local(torch.ones(ROWS, NARROW), mesh, [Replicate()])
        flops = StepFlops()
        flops.begin()
        _ = rows @ weight
        flops.end()
        assert flops.flops == LAYER
    finally:
        distributed.destroy_process_group()


class Quarter(torch.Tensor):
    """Rows of which a quarter is here."""

    part: torch.Tensor

    @staticmethod
    def __new__(cls, rows: torch.Tensor) -> Any:
        self = torch.Tensor._make_wrapper_subclass(cls, rows.shape)  # type: ignore[attr-defined]
        self.part = rows[: ROWS // 4]
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(args[0].part, args[1])


def test_of_a_tensor_that_is_put_together_of_others_what_these_do_counts() -> None:
    flops = StepFlops()
    rows = Quarter(torch.ones(ROWS, NARROW))
    flops.begin()
    _ = torch.ops.aten.mm(rows, torch.ones(NARROW, WIDE))
    flops.end()
    assert flops.flops == LAYER // 4
