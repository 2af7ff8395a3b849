"""Memory of lines of source: what each allocated that the peak held, its own peak, and where that was freed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis.snapshots.sizes import most_at_once
from tracer.arrays import Bools, Grouped, Ints, grouped
from tracer.capture.sources.source_line import SourceLine

# Phase and line in which memory is freed; None where it is not, or no Python code did.
FreedPlace = tuple[str | None, SourceLine | None]


@dataclass(frozen=True, slots=True)
class LineMemory:
    """Memory that a line allocated, by itself or in a library that it called; what backward allocates for it counts."""

    at: SourceLine
    peak_bytes: int  # In use at the run's peak
    backward_bytes: int  # Of these, allocated by backward for operators of this line
    own_peak_bytes: int  # The most that was in use at once
    # Phase in which most of what the peak held was freed, or of all where it held nothing; None where most never is.
    freed_in: str | None
    freed_at: SourceLine | None  # The line that freed most of it; None where no Python code did


@dataclass(frozen=True, slots=True, eq=False)
class BlocksOfLines:
    """Pairs of a line and a block that it allocated, columns [P]; a block may have several lines."""

    line: Ints  # Index of the line
    size_bytes: Ints
    made_at: Ints  # Index of the event; -1 before the first
    freed_at: Ints  # Likewise; the number of events for never
    is_of_backward: Bools
    freed_phase: Ints  # Codes, see `line_memory_of`; -1 where a block is never freed
    freed_line: Ints  # Likewise; -1 where no Python code freed it


def line_memory_of(
    lines: Sequence[SourceLine],
    blocks: BlocksOfLines,
    *,
    position: int,
    place: Callable[[int, int], FreedPlace],
) -> tuple[LineMemory, ...]:
    """Sum up blocks by line, the largest at the peak first.

    Args:
        position: Index of the event after which the peak was reached; -1 for the start.
        place: The meaning of two codes, `freed_phase` and `freed_line`.
    """
    is_at_peak = (blocks.made_at <= position) & (blocks.freed_at > position)
    at_peak_bytes = blocks.size_bytes * is_at_peak
    by_line = Grouped(tuple(lines), blocks.line)
    peak_bytes = by_line.sums(at_peak_bytes)
    columns = zip(
        by_line.keys,
        peak_bytes,
        by_line.sums(at_peak_bytes * blocks.is_of_backward),
        _own_peaks(blocks, len(lines)),
        strict=True,
    )
    counted_bytes = np.where(np.array(peak_bytes, np.int64)[blocks.line] > 0, at_peak_bytes, blocks.size_bytes)
    freed = _freed(blocks, counted_bytes, place)
    found = (LineMemory(*values, *freed[at]) for at, values in enumerate(columns))
    return tuple(sorted(found, key=lambda one: (-one.peak_bytes, -one.own_peak_bytes, one.at)))


def _own_peaks(blocks: BlocksOfLines, num_lines: int) -> list[int]:
    lasting = np.flatnonzero(blocks.freed_at > blocks.made_at)
    peaks = np.zeros(num_lines, np.int64)
    lines, most = most_at_once(
        blocks.line[lasting], blocks.made_at[lasting], blocks.freed_at[lasting], blocks.size_bytes[lasting]
    )
    peaks[lines] = most
    return peaks.tolist()


def _freed(
    blocks: BlocksOfLines, counted_bytes: Ints, place: Callable[[int, int], FreedPlace]
) -> dict[int, FreedPlace]:
    """For each line the place in which most of these bytes were freed [P]."""
    places = grouped([blocks.line, blocks.freed_phase, blocks.freed_line], lambda *of: of)
    by_bytes = sorted(zip(places.sums(counted_bytes), places.keys, strict=True))
    # The last place of each line is the one with the most bytes.
    return {line: place(phase, at) for _, (line, phase, at) in by_bytes}
