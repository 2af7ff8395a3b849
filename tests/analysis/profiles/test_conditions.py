"""What follows from a block's role, phases and category: each value of a number in one condition, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.profiles.test_classify_blocks import facts
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.attribution import Phase
from tracer.analysis.profiles.conditions import NONE, Conditions
from tracer.analysis.profiles.torch_categories import Category
from tracer.capture.objects.known_storages import Role

OBSERVED = ("has_no_role", "was_named", "was_saved_before", "is_librarys")
BATCHES = ("is_observed_batch", "is_observed_argument", "is_observed_gradient", "is_lent")
MADE = ("not_seen_made", "made_in_forward", "made_in_backward", "made_in_optimizer", "made_in_loop")
FREED = ("freed_in_backward", "freed_in_loop")
TORCHS = ("torch_says_parameter", "torch_says_input")


@pytest.mark.parametrize(
    ("names", "block", "true"),
    [
        (OBSERVED, {"role": NONE}, "has_no_role"),
        (OBSERVED, {"role": Role.PARAMETER}, "was_named"),
        (OBSERVED, {"role": Role.SAVED}, "was_saved_before"),
        (OBSERVED, {"role": Role.WORKSPACE}, "is_librarys"),
        (BATCHES, {"role": Role.INPUT}, "is_observed_batch"),
        (BATCHES, {"role": Role.LEAF}, "is_observed_batch"),
        (BATCHES, {"role": Role.LEAF, "is_trained": True}, ""),
        (BATCHES, {"role": Role.ARGUMENT}, "is_observed_batch is_observed_argument is_lent"),
        (BATCHES, {"role": Role.GRADIENT}, "is_observed_gradient"),
        (BATCHES, {"role": Role.PARAMETER}, "is_lent"),
        (MADE, {"made": NONE}, "not_seen_made"),
        (MADE, {"made": Phase.FORWARD}, "made_in_forward"),
        (MADE, {"made": Phase.BACKWARD}, "made_in_backward"),
        (MADE, {"made": Phase.OPTIMIZER}, "made_in_optimizer"),
        (MADE, {"made": Phase.OTHER}, "made_in_loop"),
        (FREED, {"freed": NONE}, ""),
        (FREED, {"freed": Phase.BACKWARD}, "freed_in_backward"),
        (FREED, {"freed": Phase.OPTIMIZER}, ""),
        (FREED, {"freed": Phase.OTHER}, "freed_in_loop"),
        (TORCHS, {"category": Category.PARAMETER}, "torch_says_parameter"),
        (TORCHS, {"category": Category.INPUT}, "torch_says_input"),
        (TORCHS, {"category": Category.TEMPORARY}, ""),
    ],
)
def test_what_holds_of_a_number(names: tuple[str, ...], block: dict[str, Any], true: str) -> None:
    table = facts(block)
    assert [name for name in names if getattr(table, name)[0]] == true.split()


def test_every_condition_of_a_number_is_seen_here() -> None:
    names = {name for name, value in vars(Conditions).items() if isinstance(value, property)}
    assert names == {
        *OBSERVED,
        *BATCHES,
        *MADE,
        *FREED,
        *TORCHS,
        "kind_of_role",
        "kind_of_category",
        "kind_of_gradient",
    }


def test_kinds_of_numbers() -> None:
    assert facts({"role": Role.BUFFER}, {"role": Role.ARGUMENT}).kind_of_role.tolist() == [Kind.BUFFER, Kind.INPUT]
    leaves = facts({"role": Role.LEAF}, {"role": Role.LEAF, "is_trained": True})
    assert leaves.kind_of_role.tolist() == [Kind.INPUT, Kind.PARAMETER]
    categories = facts({"category": Category.GRADIENT}, {"category": Category.UNTAGGED})
    assert categories.kind_of_category.tolist() == [Kind.GRADIENT, Kind.UNKNOWN]
    assert facts({}, {"is_gradient": True}).kind_of_gradient.tolist() == [Kind.AUTOGRAD_DETAIL, Kind.GRADIENT]
