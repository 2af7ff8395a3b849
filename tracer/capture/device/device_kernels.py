"""What ran on the device: kernels, copies and fills, each with the operator that launched it."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.arrays import ColumnTable, Int, PerKernel


@dataclass(frozen=True, slots=True, eq=False)
class Kernels(ColumnTable):
    """Work of the device that an operator launched. Columns [L], in the order in which it was reported."""

    launched_ns: PerKernel[Int]
    """Start of the innermost operator that launched it, on the host."""
    thread: PerKernel[Int]
    """The operator's thread, numbered as in `Ops`; -1 for one without operators."""
    duration_ns: PerKernel[Int]
    """On the device."""
