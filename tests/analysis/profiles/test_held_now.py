"""What a program holds at the moment of a snapshot: of one look, and of the look at a failure among others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.histories import START_NS, Event, known_of, recording_of
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.failed_allocation import held_at_failure, held_now
from tracer.analysis.profiles.findings import find_in_cycle, put_together
from tracer.analysis.snapshots.kind_finder import NOTHING_HELD
from tracer.capture.objects.known_storages import KnownStorages, Role


@pytest.mark.parametrize("role", Role)
def test_each_role_that_was_observed_is_told(role: Role) -> None:
    """What a walk finds is named by its role, or is at least known to be held; idle memory is neither."""
    now = held_now(known_of((0, 64, 8, role, "x")), "cpu")
    assert (64 in now.named or 64 in now.kept_by_graphs or 64 in now.reached) == (role != Role.IDLE)


def test_another_device_holds_nothing_of_it() -> None:
    assert held_now(known_of((0, 64, 8, Role.PARAMETER, "x"), device="cuda:1"), "cuda:0") == NOTHING_HELD


def with_walks(*times: int) -> KnownStorages:
    """A parameter at 64 that is seen at 0 and at 9, and what lies at 128: saved at 0, an optimizer's state at 9."""
    known = known_of(
        (0, 64, 8, Role.PARAMETER, "weight"),
        (0, 128, 8, Role.SAVED, ""),
        (9, 64, 8, Role.PARAMETER, "weight"),
        (9, 128, 8, Role.OPTIMIZER_STATE, "weight.exp_avg"),
    )
    return replace(known, walks_ns=np.array(times, np.int64) + START_NS)


def test_a_failure_is_told_by_the_last_walk_alone() -> None:
    now = held_at_failure(with_walks(0, 9), "cpu", None)
    assert now.named == {64: Kind.PARAMETER, 128: Kind.OPTIMIZER_STATE}
    assert not now.kept_by_graphs


def test_without_a_walk_nothing_is_told() -> None:
    assert held_at_failure(with_walks(), "cpu", None) == NOTHING_HELD


def test_a_walk_from_before_a_recorded_event_tells_nothing_of_the_failure() -> None:
    """An event at 5: the walk at 0 was before that cycle, and what lies at its addresses may be something else."""
    recording = recording_of([Event(0, 100, 1, at_ns=5)])
    findings = put_together([find_in_cycle(recording)])
    assert held_at_failure(with_walks(0), "cpu", findings) == NOTHING_HELD
    assert held_at_failure(with_walks(0, 9), "cpu", findings).named
