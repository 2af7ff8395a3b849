"""Which operator launched a kernel, where the kernel does not say: the one that its driver's call was made in."""

from __future__ import annotations

import numpy as np

from tracer.arrays import Bool, Column, Ints
from tracer.capture.recording import Ops
from tracer.trace.tables import Table


def operators_of_calls(ops: Ops, thread: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Row of the operator around each call of the driver, or -1.

    Old traces have whole microseconds, so that an operator may begin where the call of the one before it ends: an
    operator is named only if it is the innermost one at both ends of the call.

    Args:
        end_ns: End of each call.
    """
    at_start, at_end = ops.running_at(thread, start_ns), ops.running_at(thread, end_ns)
    return np.where(at_start == at_end, at_start, -1)


def names_operators(work: Table) -> Column[Bool]:
    """Whether the `External id` of each row is an operator's number.

    Of kineto until 2023 it may be the correlation of the driver's call instead, in the whole file; those numbers may be
    operators' all the same.
    """
    external, correlation = work["external_id"], work["correlation"]
    is_linked = external > 0
    is_correlation = bool(is_linked.any()) and bool((external[is_linked] == correlation[is_linked]).all())
    return is_linked & (not is_correlation)
