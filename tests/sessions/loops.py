"""A training loop without a session, and what a session has to leave switched off behind one."""

from __future__ import annotations

from typing import Any

import torch

from tests.pieces import Pieces


def plain_run(workload: Any, num_steps: int) -> list[float]:
    """The same training with nobody looking."""
    losses = []
    for _ in range(num_steps):
        loss = workload.forward(workload.next_batch())
        workload.backward(loss)
        losses.append(float(loss.detach()))
        workload.optimizer_step()
    return losses


def assert_all_off(workload: Pieces) -> None:
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    assert not workload.optimizer._optimizer_step_pre_hooks  # type: ignore[union-attr]
