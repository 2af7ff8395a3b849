"""Weights whose random numbers are not drawn: by every function of torch's that would, and only those asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tracer.capture.torch_private.torch_modules import leave_unfilled

FILLS = (
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.trunc_normal_,
    nn.init.xavier_normal_,
    nn.init.xavier_uniform_,
    nn.init.kaiming_normal_,
    nn.init.kaiming_uniform_,
    nn.init.orthogonal_,
    lambda tensor: nn.init.sparse_(tensor, 0.1),
)


@pytest.mark.parametrize("fill", FILLS)
def test_what_is_asked_for_is_left_as_it_is(fill: Callable[..., Tensor]) -> None:
    name = getattr(fill, "__name__", "")
    end = leave_unfilled(lambda tensor: tensor.shape[0] == 8)
    try:
        state = torch.get_rng_state()
        call: Any = getattr(nn.init, name, fill)
        large, small = torch.zeros(8, 4), torch.zeros(4, 4)
        assert call(large) is large and not large.any() and torch.equal(torch.get_rng_state(), state)
        assert call(small) is small and small.any()
    finally:
        end()
    assert getattr(nn.init, name, fill)(large).any()


def test_modules_of_torchs_own_draw_nothing() -> None:
    end = leave_unfilled(lambda tensor: True)
    try:
        state = torch.get_rng_state()
        nn.ModuleList([nn.Embedding(4, 4), nn.Linear(4, 4), nn.Conv1d(2, 2, 1), nn.LSTM(2, 2)])
        nn.MultiheadAttention(4, 2)
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        end()
