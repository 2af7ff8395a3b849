"""Memory of lines of source: what each allocated that the peak held, its own peak, and where that was freed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.answers.findings import CycleFindings
from tracer.answers.recording_findings import counted_blocks
from tracer.answers.rows import Row, group_rows
from tracer.arrays import Grouped, Ints, grouped
from tracer.blocks.from_recording.source_lines import line_of_frame
from tracer.blocks.from_snapshot.sizes import most_at_once
from tracer.blocks.table import Phase
from tracer.capture.sources.source_line import SourceLine


@dataclass(frozen=True, slots=True)
class LineMemory:
    """Memory that a line allocated, by itself or in a library that it called; what backward allocates for it counts."""

    at: SourceLine
    peak_bytes: int  # In use at the run's peak
    backward_bytes: int  # The part of `peak_bytes` that backward allocated for operators of this line
    own_peak_bytes: int  # The most that was in use at once
    # Phase in which most of what the peak held was freed, or of all where it held nothing; None where most never is.
    freed_in: str | None
    freed_at: SourceLine | None  # The line that freed most of it; None where no Python code did


def line_memory(found: CycleFindings) -> tuple[LineMemory, ...]:
    """Sum up the blocks of a cycle by the lines that allocated them, the largest at the peak first.

    A block counts once in each file: on the innermost line that led to it, which is the user's line where a library
    allocated it.
    """
    blocks, position, cycle = counted_blocks(found), found.peak.position, found.source
    num_events = cycle.num_events
    rows, group = group_rows(blocks, merged=("step",))
    number = {line: at for at, line in enumerate(dict.fromkeys(line for row in rows for line in _lines(row)))}
    # Pairs of a block and a line: columns [pairs].
    block, line = _blocks_of_lines(rows, group, number)
    size_bytes, made_at, freed_at = blocks.size_bytes[block], blocks.made_at[block], blocks.freed_at[block]
    at_peak_bytes = size_bytes * ((made_at <= position) & (freed_at > position))
    by_line = Grouped(tuple(number), line)
    peak_bytes = by_line.sums(at_peak_bytes)
    backward_bytes = by_line.sums(at_peak_bytes * (blocks.phase[block] == Phase.BACKWARD))
    lasting = np.flatnonzero(freed_at > made_at)
    own_peaks = most_at_once(line[lasting], made_at[lasting], freed_at[lasting], size_bytes[lasting])
    own_peak_bytes = dict(zip(*map(np.ndarray.tolist, own_peaks), strict=True))
    # The phase and the frame that freed most of each line: of places by their bytes, the last one of the line.
    event = cycle.lifetimes.events[np.minimum(freed_at, max(num_events - 1, 0))]
    phase, frame = (
        np.where(freed_at < num_events, column[event], -1)
        for column in (cycle.attribution.allocation_phase, cycle.attribution.allocation_frame)
    )
    places = grouped([line, phase, frame], lambda *of: of)
    counted_bytes = np.where(np.array(peak_bytes, np.int64)[line] > 0, at_peak_bytes, size_bytes)
    freed = {of: place for _, (of, *place) in sorted(zip(places.sums(counted_bytes), places.keys, strict=True))}
    lines = [
        LineMemory(
            of,
            peak_bytes[at],
            backward_bytes[at],
            own_peak_bytes.get(at, 0),
            Phase(freed[at][0]).name.lower() if freed[at][0] >= 0 else None,
            line_of_frame(cycle.recording, freed[at][1]),
        )
        for of, at in number.items()
    ]
    return tuple(sorted(lines, key=lambda one: (-one.peak_bytes, -one.own_peak_bytes, one.at)))


def _lines(row: Row) -> Iterator[SourceLine]:
    """The line that allocated a row, and the user's line that called it, where that is in another file."""
    if row.file is not None and row.line is not None:
        yield SourceLine(row.file, row.line)
    if row.caller_file is not None and row.caller_line is not None and row.caller_file != row.file:
        yield SourceLine(row.caller_file, row.caller_line)


def _blocks_of_lines(rows: Sequence[Row], group: Ints, number: dict[SourceLine, int]) -> tuple[Ints, Ints]:
    """Pairs of a block and a line's number; a block may have two lines [pairs] each."""
    lines = [[number[line] for line in _lines(row)] for row in rows]
    columns = [np.array([one[at] if at < len(one) else -1 for one in lines], np.int64)[group] for at in (0, 1)]
    blocks = [np.flatnonzero(column >= 0) for column in columns]
    return np.concatenate(blocks), np.concatenate([column[mine] for column, mine in zip(columns, blocks, strict=True)])
