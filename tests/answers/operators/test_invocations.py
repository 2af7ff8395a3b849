"""Which operators a forward consists of, in program order, and where it begins and ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.answers.operators.test_run_times import cycles
from tests.training_steps import Recorded, record
from tracer.answers.operators.invocations import op_instances, rows_starting_at, short_op_name, sum_at
from tracer.answers.operators.run_times import instance_times
from tracer.blocks.from_recording.attribution import attribute
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import OpKind


def test_names_are_those_of_the_functions_that_people_call() -> None:
    named = {"aten::conv2d": "conv2d", "aten::cross_entropy_loss": "cross_entropy", "_ScaledSquare": "_ScaledSquare"}
    assert {name: short_op_name(name) for name in named} == named


def test_rows_are_found_by_the_nanosecond_at_which_they_start() -> None:
    starts = np.array([30, 10, 20], np.int64)
    assert rows_starting_at(starts, np.array([10, 11, 20, 30, 31, 9], np.int64)).tolist() == [1, -1, 2, 0, -1, -1]


PROGRAM: dict[str, list[str]] = {
    "custom_function": ["linear", "_ScaledSquare", "linear", "broadcast_tensors", "mse_loss"],
    "functional_model": ["matmul", "add", "relu", "broadcast_tensors", "mse_loss"],
    "inference_no_grad": ["linear", "relu", "linear"],
    "checkpointing_reentrant": ["CheckpointFunction", "linear", "gelu", "dropout", "linear", "add"] * 2
    + ["broadcast_tensors", "mse_loss"],
    "sparse_and_resize": [],
}


@pytest.mark.parametrize("name", sorted(PROGRAM))
def test_operators_of_forward_in_program_order(name: str, recorded: Callable[[str], Recorded]) -> None:
    recording = recorded(name).recordings[0]
    instances = op_instances(recording, attribute(recording))
    ops = instances.op[instances.step == 0]
    assert [short_op_name(recording.strings[recording.ops.name[op]]) for op in ops] == PROGRAM[name]


def test_forward_lies_in_what_the_program_calls_forward() -> None:
    """A span around the forward of a program, by hand, holds ours, and no operator that ours does not."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))

    def step() -> None:
        x = torch.randn(256, 256)
        with torch.profiler.record_function("my forward"):
            loss = F.mse_loss(model(x), x)
        loss.backward()
        model.zero_grad()

    recording = read_recording(record(step, n_active=3)[0])
    names = [recording.strings[name] for name in recording.spans.name]
    mine = [row for row, name in enumerate(names) if name == "my forward"]
    passes = op_instances(recording, attribute(recording)).passes
    assert (recording.spans.start_ns[mine] <= passes.start_ns).all()
    assert (passes.end_ns <= recording.spans.end_ns[mine]).all()
    ops = recording.ops
    for span, start_ns, end_ns in zip(mine, passes.start_ns, passes.end_ns, strict=True):
        begun = (ops.start_ns >= recording.spans.start_ns[span]) & (ops.start_ns <= recording.spans.end_ns[span])
        called = np.flatnonzero(begun & (ops.kind == OpKind.OPERATOR) & (ops.parent < 0))
        assert [short_op_name(recording.strings[name]) for name in ops.name[called]] == [
            *["linear"] * 8,
            "broadcast_tensors",
            "mse_loss",
        ]
        assert ((ops.start_ns[called] >= start_ns) & (ops.end_ns[called] <= end_ns)).all()


def test_sums_at_rows_by_hand() -> None:
    assert sum_at(np.array([2, 0, 2]), np.array([5, 7, 11]), 4).tolist() == [7, 0, 16, 0]


def test_a_retained_graph_runs_backward_twice() -> None:
    for recording, attribution in cycles("retain_graph"):
        instances, ops = op_instances(recording, attribution), recording.ops
        names = [short_op_name(recording.strings[name]) for name in ops.name[instances.op]]
        nodes = (ops.kind == OpKind.ENGINE) & (instances.row_of_op == names.index("relu"))
        assert nodes.sum() == 2
        durations = (ops.end_ns - ops.start_ns)[nodes]
        assert instance_times(recording, instances).backward_ns[names.index("relu")] == durations.sum()
