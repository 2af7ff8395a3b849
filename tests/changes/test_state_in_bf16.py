"""State in bfloat16 between steps: what it loses, and what it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.changes.programs import PROGRAMS
from tracer.changes.applied import AppliedChanges
from tracer.changes.kinds.state_in_bf16 import StateInBf16, candidates
from tracer.changes.planner import _Trials


def test_its_mean_is_right_and_each_value_a_neighbour() -> None:
    # From 1 bfloat16 goes on in steps of 1/128. 1 + 1/1024 is 1 in seven of eight, and 1 + 1/128 in one.
    value = torch.full((64, 1024), 1 + 1 / 1024)
    place = StateInBf16().put_away(value.clone(), None)
    assert place.dtype == torch.bfloat16 and place.unique().tolist() == [1, 1 + 1 / 128]
    assert place.float().mean().item() == pytest.approx(1 + 1 / 1024, abs=1e-4)
    again = StateInBf16().put_away(value.clone(), place)
    assert again is place


def test_numbers_that_bfloat16_has_stay_and_so_does_infinity() -> None:
    value = torch.tensor([0.0, -0.0, 1.5, -3.0, float("inf"), -float("inf"), 2.0**-130, float("nan")])
    place = StateInBf16().put_away(value.clone(), None)
    assert torch.equal(place[:-1].float(), value[:-1]) and place[-1].isnan()


def test_pieces_are_all_of_it_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.changes.kinds.state_in_bf16._PIECE_ELEMENTS", 5)
    value = torch.arange(12.0).reshape(3, 4)
    for tensor in (value, value.t().contiguous().t()):  # columns one behind the other
        assert torch.equal(StateInBf16().put_away(tensor.clone(), None).float(), value)
        place = torch.empty(3, 4, dtype=torch.bfloat16)
        assert torch.equal(StateInBf16().put_away(tensor.clone(), place).float(), value)


def test_an_average_that_shrinks_by_a_thousandth_a_step_shrinks() -> None:
    """Rounded to nearest it would stay at 1: a thousandth is less than half of bfloat16's 1/256 below 1."""
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = torch.optim.AdamW([weight], lr=0.0)
    with AppliedChanges(["bf16-state"]) as applied:
        for step in range(300):
            weight.grad = torch.full_like(weight, 100.0 if step == 0 else 0.0)
            optimizer.step()
    squares = optimizer.state[weight]["exp_avg_sq"]
    assert squares.dtype == torch.bfloat16 and applied.notes == ()
    # 0.001 x 100 x 100 in the first step, and 299 times 0.999 of it.
    assert squares.float().mean().item() == pytest.approx(10 * 0.999**299, rel=0.02)


def test_small_state_and_what_waits_on_the_host_stay() -> None:
    weight = nn.Parameter(torch.zeros(63, 65))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.ones_like(weight)
    with AppliedChanges(["bf16-state"]) as applied:
        optimizer.step()
    assert optimizer.state[weight]["exp_avg"].dtype == torch.float32
    (note,) = applied.notes
    assert note == "bf16-state: no optimizer has state in float32 that another change has not moved."


def test_state_that_is_on_the_host_is_left_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracer.changes import host_copies

    monkeypatch.setattr(host_copies, "is_worth_moving", lambda tensor: tensor.ndim > 0)
    monkeypatch.setattr(host_copies, "copied_to_host", torch.clone)
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = torch.optim.AdamW([weight])
    with AppliedChanges(["state-on-host", "bf16-state"]) as applied:
        for _ in range(2):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
    assert optimizer.state[weight]["exp_avg"].dtype == torch.float32
    assert optimizer.param_groups[0]["params"] == [weight] and float(optimizer.state[weight]["step"]) == 2
    assert [note.partition(":")[0] for note in applied.notes] == ["bf16-state"]


def test_a_model_is_offered_it_and_its_weights_stay_finite() -> None:
    (change,) = candidates(_Trials(PROGRAMS["lstm"], "cuda", {}).situation)
    workload = change.made_to(PROGRAMS["lstm"]())
    for _ in range(2):
        workload.backward(workload.forward(workload.next_batch()))
        workload.optimizer_step()
    assert workload.optimizer is not None
    for values in workload.optimizer.state.values():
        assert values["exp_avg"].dtype == values["exp_avg_sq"].dtype == torch.bfloat16
    assert all(bool(weight.isfinite().all()) for weight in workload.model.parameters())
