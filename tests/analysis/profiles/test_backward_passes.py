"""When backward ran, which calls of a model it went back to, and when a loader was asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.training_steps import WORKLOADS, Recorded, record
from tracer.analysis.profiles.attribution import Attribution, Phase, attribute
from tracer.analysis.profiles.storage_uses import backward_passes, loader_calls, outermost_calls, records_grad
from tracer.analysis.profiles.time_spans import enclosing
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import OpKind, Recording


def recorded_step(step: Callable[[], object]) -> tuple[Recording, Attribution]:
    recording = read_recording(record(step)[0])
    return recording, attribute(recording)


def test_a_call_that_is_trained_one_that_is_not_and_one_without_gradients() -> None:
    model = nn.Linear(4, 4)

    def step() -> None:
        model(torch.randn(2, 4)).sum().backward()
        model(torch.randn(2, 4))
        with torch.no_grad():
            model(torch.randn(2, 4))

    calls = outermost_calls(*recorded_step(step))
    assert calls.records_grad.tolist() == [True, True, False]
    assert calls.went_back.tolist() == [True, False, False]
    assert (calls.start_ns < calls.end_ns).all()


def test_every_call_of_backward_is_a_pass() -> None:
    weight = torch.randn(4, requires_grad=True)

    def step() -> None:
        for _ in range(3):
            (weight * 2).sum().backward()
        torch.autograd.grad((weight * 3).sum(), weight)

    recording, attribution = recorded_step(step)
    start, end = backward_passes(recording, attribution)
    assert len(start) == 4
    nodes = recording.ops.kind != OpKind.OPERATOR
    assert (enclosing(start, end, recording.ops.start_ns[nodes]) >= 0).all()


@pytest.mark.parametrize("name", WORKLOADS)
def test_all_work_of_the_engine_lies_within_a_pass(name: str, recorded: Callable[[str], Recorded]) -> None:
    for recording in recorded(name).recordings:
        attribution = attribute(recording)
        start, end = backward_passes(recording, attribution)
        of_engine = attribution.op_node >= 0
        assert (enclosing(start, end, recording.ops.start_ns[of_engine]) >= 0).all()
        assert (attribution.op_phase[of_engine] != Phase.FORWARD).all()


def test_operators_that_record_a_graph() -> None:
    weight = torch.randn(4, requires_grad=True)

    def step() -> None:
        weight.mul(2)
        with torch.no_grad():
            weight.add(1)

    recording, _ = recorded_step(step)
    of_name = {recording.strings[name]: row for row, name in enumerate(recording.ops.name.tolist())}
    found = records_grad(recording)
    assert (bool(found[of_name["aten::mul"]]), bool(found[of_name["aten::add"]])) == (True, False)


def test_a_loader_is_asked_once_a_batch() -> None:
    loader = DataLoader(TensorDataset(torch.randn(6, 3)), batch_size=2)

    def step() -> None:
        for (batch,) in loader:
            batch.sum()

    recording, _ = recorded_step(step)
    start, end = loader_calls(recording)
    assert len(start) == 4  # three batches, and the question that ends the loop
    stacks = [row for row, name in enumerate(recording.ops.name.tolist()) if recording.strings[name] == "aten::stack"]
    assert len(stacks) == 3
    assert enclosing(start, end, recording.ops.start_ns[stacks]).tolist() == [0, 1, 2]
