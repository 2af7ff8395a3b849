"""Where the nanoseconds of invocations go: nothing is lost, and each autograd node is credited once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.operators.test_run_times import NAMES, cycles
from tracer.analysis.operators.invocations import instance_times, op_instances, short_op_name, sum_at
from tracer.capture.recording import OpKind


def test_sums_at_rows_by_hand() -> None:
    assert sum_at(np.array([2, 0, 2]), np.array([5, 7, 11]), 4).tolist() == [7, 0, 16, 0]


@pytest.mark.parametrize("name", NAMES)
def test_every_nanosecond_is_an_operators_or_lies_between_and_each_node_is_credited_once(name: str) -> None:
    for recording, attribution in cycles(name):
        timed = instance_times(recording, attribution, op_instances(recording, attribution))
        passes = timed.instances.passes
        for row in range(len(passes.step)):
            mine = timed.instances.forward_pass == row
            length = int(passes.end_ns[row] - passes.start_ns[row])
            assert int(timed.forward_ns[mine].sum()) + int(timed.between_ns[row]) == length
        assert (timed.recompute_ns <= timed.backward_ns).all()
        assert (timed.backward_ns[~timed.has_backward] == 0).all()
        nodes = int((recording.ops.kind == OpKind.ENGINE).sum())
        assert len(timed.engine_ns) == nodes
        assert timed.backward_ns.sum() + timed.engine_ns[timed.engine_row < 0].sum() == timed.engine_ns.sum()
        # Everything that ran belongs to an operator of forward: these programs record whole steps.
        assert (timed.engine_row >= 0).all()


def test_a_retained_graph_runs_backward_twice() -> None:
    for recording, attribution in cycles("retain_graph"):
        timed = instance_times(recording, attribution, op_instances(recording, attribution))
        relu = [short_op_name(recording.strings[recording.ops.name[op]]) == "relu" for op in timed.instances.op]
        row = int(np.flatnonzero(relu)[0])
        assert (timed.engine_row == row).sum() == 2
        assert timed.backward_ns[row] == timed.engine_ns[timed.engine_row == row].sum()
