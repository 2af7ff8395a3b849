"""What was done with each storage: used by backward, computed, brought in from outside, compared with a result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training_steps import record
from tracer.analysis.profiles.attribution import attribute
from tracer.analysis.profiles.storage_uses import StorageUses
from tracer.analysis.profiles.torch_categories import categorize
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import Recording


def uses_of(step: Callable[[], object]) -> tuple[Recording, StorageUses]:
    recording = read_recording(record(step)[0])
    return recording, StorageUses(recording, categorize(recording), attribute(recording))


def keys_of(recording: Recording, tensor: Tensor) -> list[int]:
    """Of a tensor that lives throughout."""
    return np.flatnonzero(recording.keys.address == tensor.untyped_storage().data_ptr()).tolist()


def made_by(recording: Recording, op: str) -> list[int]:
    """Keys of what an operator allocated, in order."""
    allocations = recording.allocations
    rows = np.flatnonzero((allocations.size_bytes > 0) & (allocations.key >= 0) & (allocations.op >= 0))
    return [int(allocations.key[row]) for row in rows.tolist() if op in callers(recording, int(allocations.op[row]))]


def callers(recording: Recording, op: int) -> set[str]:
    """Names of an operator and those that it runs in: `randn` calls `empty`, which allocates."""
    found = set()
    while op >= 0:
        found.add(recording.strings[recording.ops.name[op]])
        op = int(recording.ops.parent[op])
    return found


def test_what_backward_used_and_what_it_did_not() -> None:
    weight = torch.randn(64, requires_grad=True)
    kept: list[Tensor] = []

    def step() -> None:
        saved = weight.exp()  # exp keeps its result for backward
        kept.append(weight.detach() * 2)  # nobody goes back to this
        saved.sum().backward()

    recording, found = uses_of(step)
    (exp,), (mul, *_) = made_by(recording, "aten::exp"), made_by(recording, "aten::mul")
    assert found.used_by_backward[exp]
    assert found.last_used_by_backward_ns[exp] > 0
    assert not found.used_by_backward[mul]
    assert found.last_used_by_backward_ns[mul] == -1


def test_data_drawn_is_a_source_what_is_computed_from_it_is_not() -> None:
    model = nn.Linear(8, 8)

    def step() -> None:
        x = torch.randn(4, 8)
        mask = x > 0
        model(x * mask).sum().backward()

    recording, found = uses_of(step)
    (drawn, *_), (compared, *_) = made_by(recording, "aten::randn"), made_by(recording, "aten::gt")
    assert found.is_source[drawn]
    assert not found.is_computed[drawn]
    assert found.is_computed[compared]
    assert not found.is_source[compared]


def test_samples_that_are_put_together_are_one_source_and_they_are_pieces() -> None:
    model = nn.Linear(8, 8)

    def step() -> None:
        samples = [torch.randn(8) for _ in range(3)]
        batch = torch.stack(samples)
        model(batch).sum().backward()

    recording, found = uses_of(step)
    (whole,) = made_by(recording, "aten::cat") or made_by(recording, "aten::stack")
    assert found.is_source[whole]
    samples = made_by(recording, "aten::randn")
    assert len(samples) == 3
    assert not found.is_source[samples].any()


def test_a_target_is_what_meets_a_result_and_a_constant_that_meets_data_is_not() -> None:
    model, target, table = nn.Linear(8, 8), torch.randn(4, 8), torch.randn(8)

    def step() -> None:
        x = torch.randn(4, 8) * table
        F.mse_loss(model(x), target).backward()
        model.zero_grad()

    recording, found = uses_of(step)
    (of_target,), (of_table,) = keys_of(recording, target), keys_of(recording, table)
    assert found.is_target[of_target]
    assert not found.is_target[of_table]
    assert found.last_used_ns[of_target] > found.last_used_ns[of_table] > 0
