"""Sessions that `run` begins by itself, in somebody else's script."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.truth.isolate import in_fresh_process
from tracer.errors import TracerError
from tracer.runs.script_run import ScriptProfile


def num_steps(profile: ScriptProfile) -> int:
    """Of a loop under it."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    done = 0
    with profile:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            done += 1
    return done


def with_a_fault() -> tuple[int, tuple[str, ...]]:
    def make_session(*_: Any) -> Any:
        raise ValueError("no such thing")

    profile = ScriptProfile(make_session)
    return num_steps(profile), profile.notes


def test_a_fault_of_ours_in_the_beginning_does_not_end_the_script() -> None:
    returned = in_fresh_process(with_a_fault)
    assert returned.value is not None, returned.error
    steps, (note,) = returned.value
    assert steps == 3
    assert note.startswith("The script was not profiled, and went on: an internal fault.\nTraceback")
    assert "ValueError: no such thing" in note


def test_a_users_mistake_ends_it() -> None:
    def make_session(*_: Any) -> Any:
        raise TracerError("The folder is not there.", hint="Name another.")

    with pytest.raises(TracerError, match="The folder is not there"):
        num_steps(ScriptProfile(make_session))
