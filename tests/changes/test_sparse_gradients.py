"""Sparse gradients of large embeddings: for which optimizers, what they save, and that training stays the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tracer.changes.applied import AppliedChanges
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


_ROWS = 4096  # of 64 floats: 1 MiB


def trained(kind: Any, changes: list[str], **options: Any) -> tuple[nn.Module, list[bool], tuple[str, ...]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(_ROWS, 64), nn.Linear(64, 4))
    optimizer = kind(model.parameters(), lr=0.01, **options)
    sparse = []
    with AppliedChanges(changes) as applied:
        for step in range(3):
            model(torch.tensor([1, 2, 2, step])).square().sum().backward()
            sparse.append(bool(model[0].weight.grad.is_sparse))  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()
    return model, sparse, applied.notes


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("more", [[], ["fused-optimizer"]])
def test_training_with_them_is_the_same(kind: Any, more: list[str]) -> None:
    plain, dense, _ = trained(kind, [])
    changed, sparse, notes = trained(kind, ["sparse-gradients", *more])
    assert dense == [False] * 3 and sparse == [True] * 3 and notes == ()
    for own, other in zip(plain.parameters(), changed.parameters(), strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (torch.optim.AdamW, {}, "AdamW takes none; SparseAdam, SGD and Adagrad do."),
        (torch.optim.SGD, {"momentum": 0.9}, "SGD takes none with momentum."),
        (torch.optim.Adagrad, {"weight_decay": 0.1}, "Adagrad takes none with weight_decay."),
    ],
)
def test_what_an_optimizer_does_not_take_is_said(kind: Any, options: dict[str, Any], why: str) -> None:
    _, sparse, notes = trained(kind, ["sparse-gradients"], **options)
    assert sparse == [False] * 3 and notes == (f"sparse-gradients: {why}",)


def test_a_weight_that_another_layer_has_too_and_a_small_one_stay_dense() -> None:
    tied = nn.Sequential(nn.Embedding(_ROWS, 64), nn.Linear(64, _ROWS, bias=False))
    tied[1].weight = tied[0].weight
    for model in (tied, nn.Sequential(nn.Embedding(_ROWS - 1, 64))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with AppliedChanges(["sparse-gradients"]) as applied:
            model(torch.tensor([1])).sum().backward()
        assert not model[0].sparse and len(applied.notes) == 1
        assert applied.notes[0].endswith("the model has no large embedding with a weight of its own.")
        del optimizer


def test_without_an_optimizer_that_is_known_by_then_they_stay_dense() -> None:
    model = nn.Embedding(_ROWS, 64)
    with AppliedChanges(["sparse-gradients"]) as applied:
        model(torch.tensor([1]))
    assert not model.sparse
    assert applied.notes == ("sparse-gradients: no optimizer updates a large embedding before its first call.",)
