"""Equal blocks are one row, and each row says whose it is: by hand, and on every workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.histories import Event, Key, known_of, recording_of
from tests.training_steps import WORKLOADS, Recorded
from tracer.analysis.profiles.findings import find_in_cycle
from tracer.analysis.profiles.peak import PeakReport, group_rows
from tracer.analysis.profiles.source_lines import recorded_op_name
from tracer.capture.objects.known_storages import Role


@pytest.mark.parametrize("name", WORKLOADS)
def test_on_every_workload_no_two_rows_are_equal(name: str, recorded: Callable[[str], Recorded]) -> None:
    for cycle in recorded(name).cycles:
        rows = cycle.peak.rows
        assert not [row for row, n in Counter(replace(row, bytes=0, count=0) for row in rows).items() if n > 1]


def test_what_is_not_known_is_said_and_counted() -> None:
    peak = find_in_cycle(recording_of([Event(500, 7, 2)], [Key(10, 100, 1)])).peak
    assert rows_of(peak) == {
        ("BEFORE_RECORDING", 100, "allocated before the recording, role unknown", "before recording"),
        ("HELD", 7, "made outside forward, backward and optimizer, and kept", "other"),
    }


def test_a_held_object_has_its_role_and_name() -> None:
    recording = recording_of([Event(500, 7, 2)], [Key(10, 100, 1)])
    known = known_of((-5, 10, 100, Role.PARAMETER, "blocks.0.weight"), (1, 500, 7, Role.INPUT, "batch[0]"))
    rows = {row.category: row for row in find_in_cycle(recording, known=known).peak.rows}
    assert (rows["PARAMETER"].name, rows["PARAMETER"].module) == ("blocks.0.weight", "blocks.0")
    assert (rows["INPUT"].name, rows["INPUT"].module) == ("batch[0]", None)
    assert {row.evidence for row in rows.values()} == {"address of a live, named tensor"}


def rows_of(peak: PeakReport) -> set[tuple[str, int, str, str]]:
    return {(row.category, row.bytes, row.evidence, row.phase) for row in peak.rows}


def test_equal_blocks_are_one_row_and_a_block_of_unknown_request_makes_its_rows_unknown() -> None:
    recording = recording_of([Event(500, 7, 1), Event(600, 9, 2), Event(700, 11, 3)])
    found = find_in_cycle(recording)

    def row_of(*requested: int) -> tuple[int, int, int | None]:
        blocks = replace(found.blocks, requested_bytes=np.array(requested, np.int64))
        ((row,), _) = group_rows(found, None, blocks)
        return row.bytes, row.count, row.requested_bytes

    assert row_of(5, 6, 7) == (27, 3, 18)
    assert row_of(5, -1, 7) == (27, 3, None)
    assert row_of(-1, 6, 7) == (27, 3, None)


def test_work_of_the_engine_has_the_name_of_its_node() -> None:
    recording = recording_of([Event(500, 7, 1)])
    names = ("autograd::engine::evaluate_function: MmBackward0", "aten::mm")
    ops = replace(recording.ops, **{name: np.arange(2) for name in recording.ops.__dataclass_fields__})
    recording = replace(recording, strings=names, ops=ops)
    assert [recorded_op_name(recording, op) for op in (-1, 0, 1)] == [None, "MmBackward0", "aten::mm"]
