"""torch.func: what the profiler would keep alive by itself is neither in the peak nor in what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from tracer.sessions.output_files import OUTPUTS
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import TrainingProfile, profile_training

BATCH, WIDTH = 256, 64
ACTIVATION_BYTES = BATCH * WIDTH * 4


def train(folder: Path, schedule: Schedule) -> TrainingProfile:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(functional_call(model, weights, (x,)), y)

    def step() -> None:
        x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 1)
        gradients = grad(loss_of)({name: one.detach() for name, one in model.named_parameters()}, x, y)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
        optimizer.zero_grad()

    leave_out = [output.name for output in OUTPUTS]
    with profile_training(
        model, optimizer, save_dir=folder, schedule=schedule, screen="none", leave_out=leave_out
    ) as session:
        for _ in range(schedule.num_steps):
            step()
            session.step()
    return session


@pytest.mark.parametrize("schedule", [Schedule(1, 0, 3, 1), Schedule(0, 1, 3, 1)], ids=str)
def test_the_peak_is_without_what_the_profiler_would_keep(tmp_path: Path, schedule: Schedule) -> None:
    """Of one step at most: kept, there are three of them. What other tests left was there before the recording."""
    session = train(tmp_path, schedule)
    findings = session.findings
    assert findings.worst.peak.counted.counter_bytes < 9 * ACTIVATION_BYTES
    assert findings.worst.peak.unexplained_bytes == 0
    assert findings.growth is None
    assert [note for note in session.notes if "torch.func" in note]
    of_kind = {"ACTIVATION": 0, "INPUT": 0}
    for row in findings.worst.peak.rows:
        if row.category in of_kind:
            of_kind[row.category] += row.bytes
    assert of_kind["INPUT"] == ACTIVATION_BYTES + BATCH * 4
    assert of_kind["ACTIVATION"] >= 2 * ACTIVATION_BYTES


def test_where_it_is_kept_nothing_that_follows_is_said(tmp_path: Path) -> None:
    """All is recorded before the first transform is seen."""
    session = train(tmp_path, Schedule(0, 0, 3, 1))
    assert session.findings.worst.peak.counted.counter_bytes > 12 * ACTIVATION_BYTES
    assert session.findings.growth is None
    (note,) = (note for note in session.notes if "torch.func" in note)
    assert "its peak is larger" in note
