"""Memory of each line of source: what it allocated that the peak held, its own peak, and where that was freed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.attribution import Phase
from tracer.analysis.profiles.classify_blocks import Cycle
from tracer.analysis.profiles.peak import PeakReport, group_rows
from tracer.analysis.profiles.source_lines import line_of_frame
from tracer.analysis.snapshots.sizes import most_at_once
from tracer.arrays import Ints
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.sources.source_line import SourceLine


@dataclass(frozen=True, slots=True)
class LineMemory:
    """Memory that a line allocated, by itself or in a library that it called; what backward allocates for it counts."""

    at: SourceLine
    peak_bytes: int  # In use at the run's peak
    backward_bytes: int  # Of these, allocated by backward for operators of this line
    own_peak_bytes: int  # The most that was in use at once
    freed_in: str | None  # Phase in which most of that was freed; None where most is never freed
    freed_at: SourceLine | None  # The line that freed most of it; None where no Python code did


def line_memory(cycle: Cycle, peak: PeakReport, known: KnownStorages | None = None) -> tuple[LineMemory, ...]:
    """Sum up the blocks of a cycle by the lines that allocated them, the largest at the peak first.

    A block counts once in each file: on the innermost line that led to it, which is the user's line where a library
    allocated it.
    """
    rows, group = group_rows(cycle, known, cycle.blocks, by_step=False)
    lines = tuple(dict.fromkeys(line for row in (*rows, *peak.rows) for line in _lines(row)))
    number = {line: at for at, line in enumerate(lines)}
    pairs = _blocks_of_lines(rows, group, number)
    own_peak, freed = _own_peaks(cycle, *pairs, len(lines)), _freed(cycle, *pairs)
    peak_bytes, backward_bytes = Counter[SourceLine](), Counter[SourceLine]()
    for row in peak.rows:
        for line in _lines(row):
            peak_bytes[line] += row.bytes
            backward_bytes[line] += row.bytes * (row.phase == Phase.BACKWARD.name.lower())
    found = (
        LineMemory(
            line,
            peak_bytes[line],
            backward_bytes[line],
            max(own_peak[at], peak_bytes[line]),
            *freed.get(at, (None, None)),
        )
        for at, line in enumerate(lines)
    )
    return tuple(sorted(found, key=lambda one: (-one.peak_bytes, -one.own_peak_bytes, one.at)))


def _lines(row: PeakRow) -> Iterator[SourceLine]:
    """The line that allocated a row, and the user's line that called it, where that is in another file."""
    if row.file is not None and row.line is not None:
        yield SourceLine(row.file, row.line)
    if row.caller_file is not None and row.caller_line is not None and row.caller_file != row.file:
        yield SourceLine(row.caller_file, row.caller_line)


def _blocks_of_lines(rows: Sequence[PeakRow], group: Ints, number: dict[SourceLine, int]) -> tuple[Ints, Ints]:
    """Pairs of a block and a line's number; a block may have two lines [pairs] each."""
    lines = [[number[line] for line in _lines(row)] for row in rows]
    columns = [np.array([one[at] if at < len(one) else -1 for one in lines], np.int64)[group] for at in (0, 1)]
    blocks = [np.flatnonzero(column >= 0) for column in columns]
    return np.concatenate(blocks), np.concatenate([column[mine] for column, mine in zip(columns, blocks, strict=True)])


def _own_peaks(cycle: Cycle, block: Ints, line: Ints, num_lines: int) -> list[int]:
    lifetimes = cycle.lifetimes
    lasting = lifetimes.freed_at[block] > lifetimes.made_at[block]
    block, line = block[lasting], line[lasting]
    peaks = np.zeros(num_lines, np.int64)
    lines, most = most_at_once(
        line, lifetimes.made_at[block], lifetimes.freed_at[block], cycle.blocks.size_bytes[block]
    )
    peaks[lines] = most
    return [int(peak) for peak in peaks]


def _freed(cycle: Cycle, block: Ints, line: Ints) -> dict[int, tuple[str | None, SourceLine | None]]:
    """For each line the phase and the line of source in which most of its bytes were freed."""
    lifetimes, attribution = cycle.lifetimes, cycle.attribution
    freed_at, end = lifetimes.freed_at[block], len(lifetimes.events)
    event = lifetimes.events[np.minimum(freed_at, max(end - 1, 0))]
    phase = np.where(freed_at < end, attribution.allocation_phase[event], -1)
    frame = np.where(freed_at < end, attribution.allocation_frame[event], -1)
    places, place = np.unique(np.stack([line, phase, frame]), axis=1, return_inverse=True)
    held = np.zeros(places.shape[1], np.int64)
    np.add.at(held, place.reshape(-1), cycle.blocks.size_bytes[block])
    # The last place of each line is the one with the most bytes.
    order = np.lexsort((held, places[0]))
    return {
        int(places[0, at]): (
            Phase(int(places[1, at])).name.lower() if places[1, at] >= 0 else None,
            line_of_frame(cycle.recording, int(places[2, at])),
        )
        for at in order.tolist()
    }
