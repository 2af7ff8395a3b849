"""Where torch's inside has another shape, the user's compilation goes on, and a note says what is missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tests.pieces import Pieces
from tracer.capture import torch_private
from tracer.capture.compile_watch import CompileWatch
from tracer.runs.session import ProfileSession, Schedule


def fail(*_: Any) -> Any:
    raise AttributeError("GraphLowering has no compile_to_module")


def test_a_torch_that_cannot_be_watched_is_a_fault_of_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = CompileWatch()
    monkeypatch.setattr(torch_private, "watch_inductor", fail)
    watch._compilation_begins()
    watch._compilation_begins()
    assert str(watch.fault) == "GraphLowering has no compile_to_module"
    watch.stop()


def test_a_graph_that_cannot_be_read_is_one(tmp_path: Path) -> None:
    watch = CompileWatch()
    watch._lowered(SimpleNamespace(module=None), str(tmp_path / "generated.py"), 1)
    assert isinstance(watch.fault, AttributeError)


def test_it_is_said_in_a_note() -> None:
    model = Pieces().model
    session = ProfileSession(nn.Sequential(model), schedule=Schedule(0, 1, 1, 1))
    assert not [note for note in session.notes if "torch.compile" in note]
    session._compile_watch.fault = AttributeError("no nodes")
    (note,) = (note for note in session.notes if "torch.compile" in note)
    assert note == "What torch.compile made could not be read and goes by its region: AttributeError: no nodes"
