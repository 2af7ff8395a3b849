"""Memory in which CUDA graphs work, beside the rows of a peak."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.analysis.peak_row import PeakRow


@dataclass(frozen=True, slots=True)
class GraphPool:
    """A private pool in which CUDA graphs work.

    Attributes:
        num_graphs: Graphs that share it and are alive.
        reserved_bytes: Reserved for it; nothing else may use it.
        allocated_bytes: Of that in blocks that torch counts, such as results that the program holds.
        first_cycle: The first recorded cycle whose peak came when all had been captured; their number if none did.
        has_backward: Whether a backward pass is replayed, or may be.
        peak_bytes: In use at the peak of the capture at which most was, with what earlier ones had left; 0 where none
            was recorded.
        rows: What that was, the largest first; they sum to it.
    """

    num_graphs: int
    reserved_bytes: int
    allocated_bytes: int
    first_cycle: int
    has_backward: bool
    peak_bytes: int
    rows: tuple[PeakRow, ...]

    @property
    def uncounted_bytes(self) -> int:
        """Reserved for it and in no block that torch counts: what replays work in."""
        return self.reserved_bytes - self.allocated_bytes
