"""Parameters and buffers of a model in one."""

from __future__ import annotations

from torch import nn

from tracer.workloads.module_tensors import all_tensors


def test_a_list_that_hides_the_method_hides_no_buffer() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    expected = [*model.parameters(), *model.buffers()]
    model.buffers = ["mine"]  # type: ignore[assignment,method-assign,list-item]
    found = list(all_tensors(model))
    assert len(found) == len(expected) == 7
    assert all(one is other for one, other in zip(found, expected, strict=True))
