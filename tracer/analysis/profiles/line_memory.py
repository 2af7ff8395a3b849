"""Memory of each line of source in a profiled cycle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tracer.analysis.line_memory import BlocksOfLines, FreedPlace, LineMemory, line_memory_of
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.attribution import Phase
from tracer.analysis.profiles.counted_blocks import counted_blocks
from tracer.analysis.profiles.findings import CycleFindings
from tracer.analysis.profiles.peak import group_rows
from tracer.analysis.profiles.source_lines import line_of_frame
from tracer.arrays import Ints
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.sources.source_line import SourceLine


def line_memory(cycle: CycleFindings, known: KnownStorages | None = None) -> tuple[LineMemory, ...]:
    """Sum up the blocks of a cycle by the lines that allocated them, the largest at the peak first.

    A block counts once in each file: on the innermost line that led to it, which is the user's line where a library
    allocated it.
    """
    counted = counted_blocks(cycle)
    blocks = counted.blocks
    rows, group = group_rows(cycle, known, blocks, history=cycle.history, by_step=False)
    number = {line: at for at, line in enumerate(dict.fromkeys(line for row in rows for line in _lines(row)))}
    block, line = _blocks_of_lines(rows, group, number)
    freed_at, end = counted.freed_at[block], counted.num_events
    event = cycle.lifetimes.events[np.minimum(freed_at, max(end - 1, 0))]
    pairs = BlocksOfLines(
        line=line,
        size_bytes=blocks.size_bytes[block],
        made_at=counted.made_at[block],
        freed_at=freed_at,
        is_of_backward=blocks.phase[block] == Phase.BACKWARD,
        freed_phase=np.where(freed_at < end, cycle.attribution.allocation_phase[event], -1),
        freed_line=np.where(freed_at < end, cycle.attribution.allocation_frame[event], -1),
    )

    def place(phase: int, frame: int) -> FreedPlace:
        return Phase(phase).name.lower() if phase >= 0 else None, line_of_frame(cycle.recording, frame)

    return line_memory_of(tuple(number), pairs, position=cycle.peak.position, place=place)


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
