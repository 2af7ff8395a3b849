"""What an outcome gains, the cheapest set of changes that fits, and which calls are evaluation. By hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import nn

from tracer.changes.change import Change
from tracer.changes.planner import RehearsedChanges, _cheapest, _FirstBatch, _listed
from tracer.changes.recommendation import Group, Keeps, Measured, Recommendation
from tracer.rehearsal.rehearse import rehearse
from tracer.workloads.module_steps import StepWorkload

BASE_BYTES = 100


def change(
    name: str, *, keeps: Keeps = Keeps.BITS, cost: str = "", settings: str = "", group: Group = Group.MEMORY
) -> Change:
    """One of a family of its own."""
    return Change(name, name, group, keeps, (), cost=cost, settings=settings)


def outcome(changes: Sequence[Change], saved: int, saved_reserved: int | None = None) -> RehearsedChanges:
    reserved = None if saved_reserved is None else BASE_BYTES - saved_reserved
    return RehearsedChanges(tuple(changes), BASE_BYTES - saved, saved, reserved, saved_reserved, 0, 0.0)


class Sums:
    """Trials in which every change saves its own bytes, whatever else is changed."""

    def __init__(self, saves: dict[str, int]) -> None:
        self.saves, self.base = saves, outcome((), 0)

    def outcome(self, changes: Sequence[Change]) -> RehearsedChanges:
        return outcome(changes, sum(self.saves[change.name] for change in changes))


def cheapest(saves: dict[Change, int], target_bytes: int) -> list[str]:
    trials = Sums({change.name: saved for change, saved in saves.items()})
    alone = [trials.outcome((change,)) for change in saves]
    found = _cheapest(cast(Any, trials), alone, target_bytes)
    assert found is not None
    return [change.name for change in found.changes]


@pytest.mark.parametrize(
    ("saved", "saved_reserved", "settings", "gain"),
    [
        (30, None, "", 30),  # on the CPU nothing is reserved
        (30, 20, "", 30),
        (30, -5, "", -5),  # it fits worse into the device than before
        (-40, -5, "", -40),
        (0, 20, "expandable_segments:True", 20),  # what is only about the allocator saves reserved memory alone
    ],
)
def test_what_an_outcome_gains(saved: int, saved_reserved: int | None, settings: str, gain: int) -> None:
    assert outcome((change("it", settings=settings),), saved, saved_reserved).gain_bytes == gain


def test_what_the_last_change_has_made_superfluous_is_taken_out_the_dearest_first() -> None:
    """85 of 100 bytes must go: the first two were added before the third, which alone does not suffice."""
    bits, rounding = change("bits"), change("rounding", keeps=Keeps.ROUNDING)
    training = change("training", keeps=Keeps.CONVERGENCE)
    assert cheapest({bits: 10, rounding: 20, training: 80}, BASE_BYTES - 85) == ["bits", "training"]


def test_of_changes_that_keep_as_much_the_one_with_a_cost_is_taken_out_first() -> None:
    free, costly = change("free"), change("costly", cost="copies to the host")
    training = change("training", keeps=Keeps.CONVERGENCE)
    assert cheapest({free: 10, costly: 20, training: 80}, BASE_BYTES - 85) == ["free", "training"]


def test_what_is_still_needed_stays() -> None:
    bits, rounding = change("bits"), change("rounding", keeps=Keeps.ROUNDING)
    assert cheapest({bits: 10, rounding: 20}, BASE_BYTES - 30) == ["bits", "rounding"]


@pytest.mark.parametrize(("calls_a_part", "is_known"), [(False, True), (True, False)])
def test_where_parts_are_called_too_it_is_not_known_which_call_is_evaluation(
    calls_a_part: bool, is_known: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()

    def step() -> None:
        model(torch.randn(2, 4))
        if calls_a_part:
            model[0](torch.randn(2, 4))

    workload = StepWorkload(step, model, None, torch.device("cpu"))
    with (batches := _FirstBatch(workload)):
        rehearsal = rehearse(workload, device="cpu", num_steps=1)
    assert batches.evaluate_with_gradients(rehearsal) is is_known


def test_what_gives_up_less_is_listed_first_however_much_the_others_save() -> None:
    found = [outcome((change(group.key, group=group),), 10 + 10 * group) for group in reversed(Group)]
    assert [one.name for one in _listed(found, outcome((), 0))] == ["memory", "compute", "arithmetic", "training"]


def test_of_two_that_suffice_the_one_that_gives_up_less_is_taken() -> None:
    again = change("again", group=Group.COMPUTE, cost="time")
    assert cheapest({change("other training", group=Group.TRAINING): 50, again: 50}, 60) == ["again"]


# ------------------------------------------------------------------------------------------------------- recommendation
ROW = Recommendation("a change", (), 30, 20, 0, 0, "", "", "", "rehearsed")


def test_a_row_gains_what_is_allocated_less_or_else_what_is_reserved_less() -> None:
    assert ROW.gain_bytes == 30
    assert replace(ROW, saves_bytes=0).gain_bytes == 20
    assert replace(ROW, saves_bytes=0, saves_reserved_bytes=None).gain_bytes == 0


def test_what_was_measured_counts_and_not_what_was_rehearsed() -> None:
    measured = replace(ROW, measured=Measured(7, 0, 0.0, 0.0, (), ()))
    assert (measured.known_bytes, measured.gain_bytes) == (7, 7)
