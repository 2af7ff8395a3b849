"""What a backward makes for another one: it is saved, and on its way until both are over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.answers.test_snapshot_findings import BACKWARD, BASE, ENGINE, FREE_BACKWARD, MAIN, MIB, UNWIND
from tests.blocks.from_snapshot.test_held_and_fed import FORWARD, HIDDEN, OTHER, RAN, STEP, gone, kinds, made
from tests.snapshot.dumps import Row, block, entry, freed, segment

SAVED, SECOND = BASE + 512 * MIB, BASE + 640 * MIB
IN_FREE = [UNWIND, ENGINE]
SIZES = {SAVED: 13 * MIB, SECOND: 3 * MIB}  # the second as large as the weight


def of(address: int, frames: list[Row]) -> Row:
    return entry("alloc", address, SIZES[address], frames=frames)


def left(*addresses: int) -> list[Row]:
    return [segment(one, SIZES[one], [block(one, SIZES[one])]) for one in addresses]


BETWEEN = made(OTHER, [UNWIND, MAIN])  # the program's own, between two runs of backward


def first_backward(saved_in: list[Row]) -> list[Row]:
    return [*FORWARD, of(SAVED, saved_in), BETWEEN, *gone(OTHER, [UNWIND, MAIN])]


@pytest.mark.parametrize(("release", "kind"), [(FREE_BACKWARD, "activation"), (IN_FREE, "temporary")])
def test_what_a_second_backward_lets_go_of_was_saved_for_it(tmp_path: Path, release: list[Row], kind: str) -> None:
    trace = [*first_backward(BACKWARD), *freed(SAVED, SIZES[SAVED], frames=release), *gone(HIDDEN, FREE_BACKWARD)]
    assert kinds(tmp_path, [*trace, *STEP])[SAVED] == [kind]


def test_what_is_let_go_of_in_the_same_backward_was_not_saved_for_another(tmp_path: Path) -> None:
    trace = [*FORWARD, of(SAVED, BACKWARD), *freed(SAVED, SIZES[SAVED], frames=FREE_BACKWARD), *RAN, *STEP]
    assert kinds(tmp_path, trace)[SAVED] == ["temporary"]


@pytest.mark.parametrize("is_second", [True, False])
def test_of_a_second_derivative_nothing_that_is_not_over_is_told(tmp_path: Path, is_second: bool) -> None:
    """Of a weight's size: its gradient, or what it gets from one of its two uses."""
    begun = [*first_backward(BACKWARD), *freed(SAVED, SIZES[SAVED], frames=FREE_BACKWARD)] if is_second else FORWARD
    found = kinds(tmp_path, [*begun, of(SECOND, BACKWARD)], more=left(SECOND))
    assert found[SECOND] == ["not known" if is_second else "gradient"]


@pytest.mark.parametrize(("size", "kind"), [(13 * MIB, "not known"), (3 * MIB, "gradient")])
def test_what_a_backward_leaves_that_is_no_gradient_may_be_for_a_second_one(
    tmp_path: Path, size: int, kind: str
) -> None:
    """It is as large as the weight where it is its gradient, and another loss's backward follows."""
    trace = [*FORWARD, entry("alloc", SAVED, size, frames=BACKWARD), BETWEEN, of(SECOND, BACKWARD)]
    whole = segment(SAVED, size, [block(SAVED, size)])
    found = kinds(tmp_path, trace, HIDDEN, OTHER, more=[*left(SECOND), whole])
    assert found[SECOND] == [kind]


@pytest.mark.parametrize(("size", "kind"), [(SIZES[SECOND], "temporary"), (4 * MIB, "gradient")])
def test_what_has_stack_and_size_of_temporaries_is_no_gradient(tmp_path: Path, size: int, kind: str) -> None:
    """The first part of a gradient waits for the second one, and is never free where the recording ends."""
    sum_of_parts = [entry("alloc", SAVED, size, frames=BACKWARD), *freed(SAVED, size, frames=IN_FREE)]
    trace = [*FORWARD, *sum_of_parts, of(SECOND, BACKWARD)]
    assert kinds(tmp_path, trace, more=left(SECOND))[SECOND] == [kind]


def test_a_graph_that_a_variable_keeps_over_a_step_is_no_gradient(tmp_path: Path) -> None:
    for frames, kind in (([UNWIND, MAIN], "not known"), (None, "gradient")):
        trace = [*first_backward(BACKWARD), *gone(HIDDEN, FREE_BACKWARD), *STEP]
        assert kinds(tmp_path, [*trace, *freed(SAVED, SIZES[SAVED], frames=frames)])[SAVED] == [kind]
