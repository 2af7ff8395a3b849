"""The causes of a failed request, each where it holds and one byte beside it."""

from __future__ import annotations

from typing import Any

import pytest

from tracer.analysis.snapshots.fragmentation import Fragmentation, Usable
from tracer.analysis.snapshots.oom import Cause, FailureFacts, advice_on, cause_of
from tracer.units import MIB

# 40 MiB asked for; 30 are free for this request in pieces of 20, 10 wait, and 10 belong to others.
PLAIN: dict[str, Any] = {"asked": 40, "device": 0, "free": 40, "usable": 30, "largest": 20, "later": 20}


def failure(**changes: Any) -> FailureFacts:
    one = {**PLAIN, **changes}
    return FailureFacts(
        asked_bytes=one["asked"] * MIB,
        device_free_bytes=None if one["device"] is None else one["device"] * MIB,
        memory=Fragmentation(100 * MIB, (100 - one["free"]) * MIB, one["free"] * MIB, one["largest"] * MIB),
        usable=Usable(one["usable"] * MIB, one["largest"] * MIB, 10 * MIB, one["later"] * MIB),
        is_expandable=one.get("expandable", False),
        serves=lambda _: one.get("serves"),
        groups=(),
    )


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"device": 40}, "limit"),
        ({"device": 39, "usable": 0, "free": 0}, "too little"),
        ({"largest": 40}, "kept whole"),
        ({"later": 40}, "pending frees"),
        ({"later": 39, "usable": 40}, "fragmentation"),
        ({"device": 10}, "fragmentation"),
        ({"device": 9}, "other pools"),
        ({}, "other pools"),
        ({"free": 39}, "too little"),
        ({"free": 39, "device": None}, "not known"),
        ({"free": 40, "device": None}, "other pools"),
        ({"usable": 40, "device": None}, "fragmentation"),
    ],
)
def test_causes_rule_each_other_out(changes: dict[str, Any], cause: Cause) -> None:
    assert cause_of(failure(**changes)) == cause


@pytest.mark.parametrize(
    "changes", [{"later": 40}, {}, {"largest": 40}, {"free": 0, "usable": 0}, {"device": None, "free": 0}]
)
def test_only_fragmentation_is_told_to_set_expandable_segments(changes: dict[str, Any]) -> None:
    assert "expandable_segments" not in advice_on(failure(**changes))
    assert "expandable_segments:True" in advice_on(failure(usable=40, serves=True))
    assert "expandable_segments:True" not in advice_on(failure(usable=40, expandable=True, serves=True))


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"usable": 40}, "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ({"later": 40}, "synchronize with it before this line"),
        ({}, "Allocate and free on one stream"),
        ({"largest": 40}, "Take that setting away"),
    ],
)
def test_an_advice_is_given_if_the_request_is_then_served(changes: dict[str, Any], advice: str) -> None:
    assert advice in advice_on(failure(**changes, serves=True))
    refuted, unknown = (advice_on(failure(**changes, serves=served)) for served in (False, None))
    assert advice not in refuted and "fails here as well" in refuted
    assert advice not in unknown and "record from the start" in unknown


@pytest.mark.parametrize(("device", "is_warned"), [(12, True), (13, False)])
def test_memory_in_one_piece_is_no_cure_where_little_of_it_is_left(device: int, is_warned: bool) -> None:
    """Of 60 MiB in use, 5 % are 3 MiB."""
    told = advice_on(failure(device=device, serves=True))
    assert f"with {device - 10}.00 MiB to spare" in told
    assert "expandable_segments:True" in told
    assert ("runs out of memory there" in told) == is_warned
    assert "runs out of memory there" not in advice_on(failure(device=device, serves=False))
