"""Sparse gradients on the list: for which optimizers, what they save, and that the lines do it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tracer.changes.kinds import sparse_gradients
from tracer.changes.planner import _Trials, advise
from tracer.workloads.module_steps import ModuleWorkload

ROWS, WIDTH = 100_000, 64


def program(kind: Any = torch.optim.SGD) -> ModuleWorkload:
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, 8))

    def next_batch() -> Any:
        return (torch.randint(ROWS, (16,)),), {}

    return ModuleWorkload(
        model=model,
        optimizer=kind(model.parameters(), lr=0.1),
        next_batch=next_batch,
        device=torch.device("cpu"),
        loss=lambda output: output.square().mean(),
    )


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_a_table_is_listed_first_and_saves_its_gradient(kind: Any) -> None:
    advice = advise(partial(program, kind), device="cuda")
    outcome = next(outcome for outcome in advice.best if outcome.changes[0].family == "sparse gradients")
    # The dense gradient, as large as the table, less what a product of matrices works in when it is not there.
    assert outcome.saved_bytes >= 0.6 * ROWS * WIDTH * 4 and outcome.group == 0
    (change,) = outcome.changes
    workload = program(kind)
    exec("\n".join(change.lines), {"model": workload.model})
    workload.backward(workload.forward(workload.next_batch()))
    assert workload.model[0].weight.grad.is_sparse  # type: ignore[index, union-attr]
    workload.optimizer_step()


def test_of_an_optimizer_that_takes_none_a_line_says_so() -> None:
    situation = _Trials(partial(program, torch.optim.AdamW), "cuda", {}).situation
    assert not list(sparse_gradients.candidates(situation))
    reason = "AdamW takes none; SparseAdam, SGD and Adagrad do."
    assert list(sparse_gradients.not_tried(situation)) == [("sparse gradients of 0", reason)]
