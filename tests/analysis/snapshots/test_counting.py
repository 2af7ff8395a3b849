"""What blocks say of each other: by hand."""

from __future__ import annotations

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.block_facts import NONE
from tracer.analysis.snapshots.counting import SEVERAL, agreed, kinds_of_stacks


def test_a_stack_is_what_all_its_proved_blocks_are() -> None:
    # Stack 1: two gradients and one unknown. Stack 2: a gradient and an activation. Stack 3: unknown. 0: no stack.
    stack = np.array([1, 1, 1, 2, 2, 3, 0], dtype=np.int32)
    kind = np.array(
        [Kind.GRADIENT, Kind.UNKNOWN, Kind.GRADIENT, Kind.GRADIENT, Kind.ACTIVATION, Kind.UNKNOWN, Kind.PARAMETER]
    )
    assert kinds_of_stacks(stack, kind, 5).tolist() == [NONE, Kind.GRADIENT, SEVERAL, NONE, NONE]


def test_devices_agree_or_do_not() -> None:
    one = np.array([NONE, Kind.GRADIENT, Kind.GRADIENT, SEVERAL, NONE])
    other = np.array([Kind.INPUT, NONE, Kind.ACTIVATION, NONE, NONE])
    assert agreed([one, other]).tolist() == [Kind.INPUT, Kind.GRADIENT, SEVERAL, SEVERAL, NONE]
    assert agreed([other, one]).tolist() == [Kind.INPUT, Kind.GRADIENT, SEVERAL, SEVERAL, NONE]
    assert agreed([one]).tolist() == one.tolist()
