"""Trainings without a model, on the meta device, and beside somebody else's profiler."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tracer.errors import TracerError
from tracer.sessions.profile_session import ProfileSession, Schedule


def test_tensors_in_no_module_are_parameters_of_their_optimizer() -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
    with ProfileSession(None, optimizer, schedule=Schedule(1, 0, 2, 1)) as session:
        for _ in range(4):
            (torch.randn(8, 64) @ weight).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    found = {row.name: (row.category, row.bytes) for row in session.findings.worst.peak.rows if row.name}
    assert found["SGD.0"] in [("PARAMETER", 64 * 64 * 4), ("GRADIENT", 64 * 64 * 4)]
    assert found["SGD.0.momentum_buffer"] == ("OPTIMIZER_STATE", 64 * 64 * 4)


def test_neither_model_nor_optimizer_is_a_sentence() -> None:
    with pytest.raises(TracerError, match="neither a model nor an optimizer"):
        ProfileSession(None)


def test_a_model_on_the_meta_device_is_said() -> None:
    with torch.device("meta"):
        model = nn.Linear(4096, 4096)
    with ProfileSession(model, schedule=Schedule(0, 0, 1, 1)) as session:
        for _ in range(2):
            model(torch.randn(4, 4096, device="meta")).sum().backward()
            session.step()
    assert [note for note in session.notes if "meta device" in note]


@pytest.mark.parametrize("num_wait_steps", [0, 1])
def test_somebody_elses_profile_is_left_alone(num_wait_steps: int) -> None:
    model = nn.Linear(8, 8)
    session = ProfileSession(model, schedule=Schedule(num_wait_steps, 0, 1, 1))
    with torch.profiler.profile() as others, session:
        for _ in range(3):
            model(torch.randn(4, 8))
            session.step()
    assert [event for event in others.events() or () if event.name == "aten::linear"]
    assert not session.has_recording
