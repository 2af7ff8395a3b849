"""Memory in which CUDA graphs work, beside the rows of a peak."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.analysis.peak_row import PeakRow


@dataclass(frozen=True, slots=True)
class GraphPool:
    """A private pool in which CUDA graphs work."""

    num_graphs: int  # Graphs that share it and are alive
    reserved_bytes: int  # Reserved for it; nothing else may use it
    allocated_bytes: int  # Of that in blocks that torch counts, such as results that the program holds
    first_cycle: int  # The first recorded cycle whose peak came when all had been captured; their number if none did
    has_backward: bool  # Whether a backward pass is replayed, or may be
    # In use at the peak of the capture at which most was, with what earlier ones had left; 0 where none was recorded.
    peak_bytes: int
    rows: tuple[PeakRow, ...]  # What that was, the largest first; they sum to it

    @property
    def uncounted_bytes(self) -> int:
        """Reserved for it and in no block that torch counts: what replays work in."""
        return self.reserved_bytes - self.allocated_bytes
