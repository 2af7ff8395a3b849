"""How long each operator's kernels took on the device.

Shapes: O operators, L kernels.
"""

from __future__ import annotations

import numpy as np

from tracer.arrays import Int, PerKernel, PerOp
from tracer.capture.recording import Recording


def kernel_times(recording: Recording) -> PerOp[Int] | None:
    """Sum up the kernels that each operator launched.

    Kernels on several streams may run at the same time; their durations add up all the same.

    Returns:
        [O] ns, those of operators in it included; None where nothing was recorded of a device.
    """
    kernels, ops = recording.kernels, recording.ops
    if kernels is None:
        return None
    own = np.zeros(len(ops.name), np.int64)
    op = _launched_by(recording)
    np.add.at(own, op[op >= 0], kernels.duration_ns[op >= 0])
    total = own.copy()
    row = np.flatnonzero(own)
    above = ops.parent[row]
    while len(row):
        row, above = row[above >= 0], above[above >= 0]
        np.add.at(total, above, own[row])
        above = ops.parent[above]
    return total


def _launched_by(recording: Recording) -> PerKernel[Int]:
    """[L] the innermost listed operator that was running on the launching thread, or -1."""
    kernels, ops = recording.kernels, recording.ops
    assert kernels is not None
    op_of_kernel = np.full(len(kernels.launched_ns), -1, np.int64)
    for thread in np.unique(kernels.thread).tolist():
        rows = np.flatnonzero(ops.thread == thread)
        mine = np.flatnonzero(kernels.thread == thread)
        if not len(rows):
            continue
        # Of operators that begin in the same nanosecond the inner one, which is listed later, is the last.
        rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
        at = np.searchsorted(ops.start_ns[rows], kernels.launched_ns[mine], side="right") - 1
        op = np.where(at >= 0, rows[at], -1)
        while (over := (op >= 0) & (ops.end_ns[op] < kernels.launched_ns[mine])).any():
            op[over] = ops.parent[op[over]]
        op_of_kernel[mine] = op
    return op_of_kernel
