"""What is listed was tried, saves what it says, and costs no more than something else that saves as much."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.changes.programs import PROGRAMS, advice_for, stack
from tracer.changes.planner import LEAST_SHARE, advise, applied, report_of
from tracer.changes.recommendation import Group, Keeps
from tracer.errors import TracerError
from tracer.rehearsal.rehearse import rehearse
from tracer.workloads.module_steps import SupervisedWorkload
from tracer.workloads.workload import Workload


@pytest.mark.parametrize("name", ["stack", "lstm"])
def test_every_row_says_what_a_rehearsal_of_its_own_says(name: str) -> None:
    advice = advice_for(name)
    base = rehearse(PROGRAMS[name](), device="cpu", num_steps=2).memory.peak_requested_bytes
    assert advice.base.peak_bytes == base
    for one in (*advice.best, advice.together):
        if one is not None:
            again = rehearse(applied(PROGRAMS[name](), one.changes), device="cpu", num_steps=2).memory
            assert again.peak_requested_bytes == one.peak_bytes
            assert one.saved_bytes == base - one.peak_bytes


def test_nothing_on_the_list_saves_less_than_a_hundredth_and_what_gives_up_least_is_first() -> None:
    for name in ("stack", "lstm"):
        advice = advice_for(name)
        ranks = [(one.group, -one.gain_bytes) for one in advice.outcomes]
        assert ranks == sorted(ranks)
        gains = [one.gain_bytes for one in advice.outcomes]
        assert min(gains) >= LEAST_SHARE * advice.base.peak_bytes
        alone = [one.gain_bytes for one in advice.outcomes if one.group < Group.ARITHMETIC]
        assert advice.together is None or advice.together.gain_bytes > max(alone)


def test_of_a_family_nothing_is_listed_that_another_one_beats_in_bytes_and_in_cost() -> None:
    rows = [one for one in advice_for("stack").outcomes if one.changes[0].family == "checkpoint"]
    by_gain = sorted(rows, key=lambda one: -one.gain_bytes)
    costs = [one.more_flops for one in by_gain]
    assert costs == sorted(costs, reverse=True)


def test_the_last_block_is_not_checkpointed_where_that_saves_nothing() -> None:
    best = next(one for one in advice_for("stack").outcomes if one.changes[0].family == "checkpoint")
    assert "blocks.3" not in best.name


@pytest.mark.slow
def test_a_target_is_met_by_the_cheapest_that_suffices() -> None:
    base = advice_for("stack").base.peak_bytes
    easy = advice_for("stack", round(0.95 * base))
    assert easy.fit is not None
    assert easy.fit.peak_bytes <= 0.95 * base
    assert len(easy.fit.changes) == 1
    assert easy.fit.keeps == Keeps.BITS
    as_it_is = advice_for("stack", base)
    assert as_it_is.fit is not None and as_it_is.fit.changes == ()
    assert report_of(as_it_is).fits and report_of(as_it_is).fit is None
    never = advice_for("stack", 1)
    assert never.fit is None and never.target_bytes is not None
    assert not report_of(never).fits


@pytest.mark.slow
def test_a_target_that_one_change_does_not_meet_is_met_by_several() -> None:
    alone = min(one.peak_bytes for one in advice_for("stack").outcomes)
    advice = advice_for("stack", alone - (alone >> 5))
    assert advice.fit is not None
    assert len(advice.fit.changes) > 1
    assert advice.fit.peak_bytes <= alone - (alone >> 5)


class _NeedsWhole(nn.Module):
    """A model that cannot be fed a part of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x.view(8, 16, 64))
        return y


def test_what_cannot_be_tried_is_told_and_costs_the_others_nothing() -> None:
    def build() -> Workload:
        model = _NeedsWhole()
        return SupervisedWorkload(
            model=model,
            optimizer=torch.optim.Adam(model.parameters()),
            next_batch=lambda: (torch.zeros(128, 64), torch.zeros(8, 16, 64)),
            loss=nn.functional.mse_loss,
            device=torch.device("cpu"),
            description={},
        )

    advice = advise(build, device="cpu")
    assert [name for name, _ in advice.not_tried] == [f"accumulate over {n} parts of the batch" for n in (2, 4)]
    assert all("view" in reason or "shape" in reason for _, reason in advice.not_tried)
    assert any("SGD" in one.name for one in advice.outcomes)


def test_a_step_that_cannot_be_rehearsed_is_the_callers_to_tell() -> None:
    def build() -> Workload:
        workload = stack()
        workload.model.forward = None  # type: ignore[method-assign, assignment]
        return workload

    with pytest.raises(TracerError):
        advise(build, device="cpu")
