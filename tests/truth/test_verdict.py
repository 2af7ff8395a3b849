"""The rules by which a tracer is judged can fail, each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.truth.bookkeeper import Alive, Holder, Phase
from tests.truth.isolate import in_fresh_process
from tests.truth.program import Entry, Program, Provable
from tests.truth.running import Effects, Truth
from tests.truth.verdict import Share, bounds_of, differences, kinds, largest, wrong_peak, wrong_sum

KEPT = Alive(100, None, None, True, Phase.FORWARD, 2, "a", "op", "f.py", 1)
WEIGHT = Alive(100, Holder.PARAMETER, "w", False, Phase.BEFORE, -1, None, "op", None, None)
LOOSE = Alive(100, None, None, False, Phase.FORWARD, 2, "a", "op", "f.py", 2)
STEPPING = Alive(100, None, None, False, Phase.OPTIMIZER, 2, None, "op", None, None)


def _peak(**changes: Any) -> dict[str, Any]:
    rows = [{"bytes": 60}, {"bytes": 40}]
    return {"rows": rows, "peak_bytes": 100, "allocator_peak_bytes": 100, "unexplained_bytes": 0, **changes}


def test_rows_are_the_count_and_nothing_is_unexplained() -> None:
    assert not wrong_sum(_peak())
    assert wrong_sum(_peak(unexplained_bytes=9))
    assert wrong_sum(_peak(allocator_peak_bytes=110, unexplained_bytes=10))
    assert wrong_sum(_peak(peak_bytes=99))
    assert wrong_sum(_peak(rows=[{"bytes": 60}]))


@pytest.mark.parametrize(
    ("told", "bounds", "is_right"),
    [(10, (10, 12), True), (12, (10, 12), True), (9, (10, 12), False), (13, (10, 12), False)],
)
def test_a_peak_lies_within_its_bounds(told: int, bounds: tuple[int, int], is_right: bool) -> None:
    assert (not wrong_peak({"allocator_peak_bytes": told}, bounds)) == is_right


def test_bounds() -> None:
    truth = Truth(peak_bytes=100, start_bytes=40, foreign_bytes=5, instants=())
    entry = Entry("a", lambda: Program(lambda: None))
    assert bounds_of(entry, truth, (90, 120)) == (100, 125)
    assert bounds_of(entry, truth, (110, 120)) == (110, 125)  # a kernel's own memory
    assert bounds_of(entry, truth, (90, 90)) == (95, 95)  # the bookkeeper's looking on took 5
    assert bounds_of(replace(entry, chance_bytes=3), truth, (90, 120)) == (97, 128)
    assert bounds_of(replace(entry, provable=Provable.EAGER_TWIN), truth, (30, 90)) == (40, 95)


@pytest.mark.parametrize(
    ("claimed", "alive", "share"),
    [
        ([(100, "ACTIVATION")], [KEPT], Share(100, 100)),
        ([(100, "TEMPORARY")], [KEPT], Share(0, 100)),
        ([(100, "UNKNOWN")], [KEPT], Share(0, 100)),
        # What the tracer does not have at all has no kind; that it is missing is a wrong peak.
        ([], [KEPT], Share(0, 0)),
        ([(100, "TEMPORARY")], [KEPT, WEIGHT], Share(0, 100)),
        # Of two of a size, one is right whichever it is.
        ([(100, "ACTIVATION"), (100, "PARAMETER")], [WEIGHT, KEPT], Share(200, 200)),
        ([(100, "ACTIVATION"), (100, "ACTIVATION")], [WEIGHT, KEPT], Share(100, 200)),
        # About what nobody holds and nothing keeps, only a claim that it is held is known to be wrong.
        ([(100, "TEMPORARY")], [LOOSE], Share(0, 0)),
        ([(100, "GRADIENT")], [LOOSE], Share(0, 100)),
        ([(100, "PARAMETER"), (100, "INPUT")], [WEIGHT, LOOSE], Share(100, 200)),
        # What an optimizer makes for its state is that before it is there; what it only works with is none.
        ([(100, "OPTIMIZER_STATE")], [replace(STEPPING, becomes_state=True)], Share(100, 100)),
        ([(100, "TEMPORARY")], [replace(STEPPING, becomes_state=True)], Share(0, 100)),
        ([(100, "OPTIMIZER_STATE")], [STEPPING], Share(0, 100)),
        # A library's, though a graph keeps it too.
        ([(100, "WORKSPACE")], [replace(KEPT, op="aten._cudnn_init_dropout_state.default")], Share(100, 100)),
        ([(100, "INPUT")], [replace(KEPT, op="aten._cudnn_init_dropout_state.default")], Share(0, 100)),
        # A kernel's own memory is no tensor.
        ([(7, "WORKSPACE"), (100, "PARAMETER")], [WEIGHT], Share(100, 100)),
    ],
)
def test_kinds(claimed: list[tuple[int, str]], alive: list[Alive], share: Share) -> None:
    assert kinds(claimed, alive, knows_batch=True) == share


def test_largest_places() -> None:
    row = {"bytes": 100, "module": "a", "file": "f.py", "line": 1}
    other = {**row, "module": "b", "line": 3}
    two = [KEPT, replace(KEPT, bytes=50, module="b", line=2)]
    assert largest([row, other], two, by_module=True) == Share(2, 2)
    assert largest([row, other], two, by_module=False) == Share(1, 2)
    assert largest([{**row, "bytes": 99}], [KEPT], by_module=True) == Share(0, 1)
    assert largest([row], [], by_module=True) == Share(0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"losses": ("b",)},
        {"tensors": {"w": "b"}},
        {"random_states": "b"},
        {"compilations": {"frames": 2}},
        {"torch_state": {"profiler": True}},
        {"batches_alive": ((True,), (True, True))},
    ],
)
def test_every_difference_is_one(changes: dict[str, Any]) -> None:
    plain = Effects(("a",), {"w": "a"}, "a", {"frames": 1}, {}, ((True,), (False, True)), {})
    assert differences(plain, plain) == []
    assert len(differences(plain, replace(plain, **changes))) == 1


# ---- processes -------------------------------------------------------------------------------------------------------


def test_a_call_elsewhere_returns() -> None:
    assert in_fresh_process(divmod, 7, 2).value == (3, 1)


def test_what_it_raises_is_told() -> None:
    assert "ZeroDivisionError" in str(in_fresh_process(divmod, 7, 0).error)


def test_a_process_that_dies_is_told() -> None:
    import os

    assert "died with exit code 3" in str(in_fresh_process(os._exit, 3).error)
