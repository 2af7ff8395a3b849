"""A row of a peak, in a file that imports nothing: reading a snapshot does not wait for torch."""

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
    name: str | None = None  # Of the live tensor observed at its address: a parameter, a buffer, an input
    step: str | None = None
    caller_file: str | None = None  # Where the line is a library's: the user's line that led there
    caller_line: int | None = None
    fused_with: str | None = None
    """In compiled code: the lines of the other operators that were fused into the same buffer, as `file:line`."""
    is_compiled: bool = False
    """Whether code that torch.compile generated allocated it: the operator is then a kernel and a buffer."""
    requested_bytes: int | None = None  # Requested, before rounding; None without the allocator's history
    shape: tuple[int, ...] | None = None
    """Of the first tensor of each block that an operator was given; None where none was."""
    dtype: str | None = None  # Of the same tensor, such as `float32`
