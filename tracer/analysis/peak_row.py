"""One row of a peak, in a file that needs nothing: reading a snapshot does not wait for torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeakRow:
    """Equal blocks at the peak. The rows of a report sum to its peak."""

    bytes: int
    count: int
    category: str
    torch_category: str | None
    evidence: str
    phase: str
    module: str | None
    op: str | None
    file: str | None
    line: int | None
    name: str | None = None
    """The parameter, buffer or input that it is, where the object was held."""
    step: str | None = None
    requested_bytes: int | None = None
    """What was asked for before rounding; None without the allocator's history."""
