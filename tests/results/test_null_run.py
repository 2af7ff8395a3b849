"""What is said of a run on a GPU that computes nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.results import null_run


def notes_with(*operators: str) -> tuple[str, ...]:
    ops = SimpleNamespace(name=np.arange(len(operators)))
    findings: Any = SimpleNamespace(cycles=[SimpleNamespace(recording=SimpleNamespace(strings=operators, ops=ops))])
    return null_run.notes_of(findings)


@pytest.mark.parametrize(("operator", "is_said"), [("aten::convolution", True), ("prims::convert_element_type", False)])
def test_of_cudnn_is_spoken_where_there_is_a_convolution(
    operator: str, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(null_run, "answered_version", lambda: 0)
    monkeypatch.setattr(NcclBuffers, "of_this_process", NcclBuffers)
    assert any("cuDNN" in note for note in notes_with("aten::mm", operator)) == is_said
