"""Memory of each line of source: what it allocated that the peak held, its own peak, and where that was freed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.attribution import Phase
from tracer.analysis.profiles.counted_blocks import CountedBlocks, counted_blocks
from tracer.analysis.profiles.findings import CycleFindings
from tracer.analysis.profiles.peak import group_rows
from tracer.analysis.profiles.source_lines import line_of_frame
from tracer.analysis.snapshots.sizes import most_at_once
from tracer.arrays import Grouped, Ints
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


def line_memory(cycle: CycleFindings, known: KnownStorages | None = None) -> tuple[LineMemory, ...]:
    """Sum up the blocks of a cycle by the lines that allocated them, the largest at the peak first.

    A block counts once in each file: on the innermost line that led to it, which is the user's line where a library
    allocated it.
    """
    counted, position = counted_blocks(cycle), cycle.peak.position
    blocks = counted.blocks
    rows, group = group_rows(cycle, known, blocks, history=cycle.history, by_step=False)
    number = {line: at for at, line in enumerate(dict.fromkeys(line for row in rows for line in _lines(row)))}
    block, line = _blocks_of_lines(rows, group, number)
    is_at_peak = (counted.made_at[block] <= position) & (counted.freed_at[block] > position)
    at_peak_bytes = blocks.size_bytes[block] * is_at_peak
    lines = Grouped(tuple(number), line)
    columns = zip(
        lines.keys,
        lines.sums(at_peak_bytes),
        lines.sums(at_peak_bytes * (blocks.phase[block] == Phase.BACKWARD)),
        _own_peaks(counted, block, line, len(number)),
        strict=True,
    )
    freed = _freed(cycle, counted, block, line)
    found = (LineMemory(*values, *freed[at]) for at, values in enumerate(columns))
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


def _own_peaks(counted: CountedBlocks, block: Ints, line: Ints, num_lines: int) -> list[int]:
    lasting = counted.freed_at[block] > counted.made_at[block]
    block, line = block[lasting], line[lasting]
    peaks = np.zeros(num_lines, np.int64)
    lines, most = most_at_once(line, counted.made_at[block], counted.freed_at[block], counted.blocks.size_bytes[block])
    peaks[lines] = most
    return peaks.tolist()


def _freed(
    cycle: CycleFindings, counted: CountedBlocks, block: Ints, line: Ints
) -> dict[int, tuple[str | None, SourceLine | None]]:
    """For each line the phase and the line of source in which most of its bytes were freed."""
    attribution, freed_at, end = cycle.attribution, counted.freed_at[block], counted.num_events
    event = cycle.lifetimes.events[np.minimum(freed_at, max(end - 1, 0))]
    phase = np.where(freed_at < end, attribution.allocation_phase[event], -1)
    frame = np.where(freed_at < end, attribution.allocation_frame[event], -1)
    places, place = np.unique(np.stack([line, phase, frame]), axis=1, return_inverse=True)
    held = np.zeros(places.shape[1], np.int64)
    np.add.at(held, place.reshape(-1), counted.blocks.size_bytes[block])
    # The last place of each line is the one with the most bytes.
    order = np.lexsort((held, places[0]))
    return {
        int(places[0, at]): (
            Phase(int(places[1, at])).name.lower() if places[1, at] >= 0 else None,
            line_of_frame(cycle.recording, int(places[2, at])),
        )
        for at in order.tolist()
    }
