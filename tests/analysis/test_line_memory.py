"""Blocks summed up by line: a slow count, block by block and event by event, agrees."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tracer.analysis.line_memory import BlocksOfLines, LineMemory, line_memory_of
from tracer.capture.sources.source_line import SourceLine

PHASES = ("forward", "backward")
NUM_EVENTS, NUM_BLOCKS, POSITION = 40, 200, 17


def test_a_slow_count_agrees() -> None:
    random = np.random.default_rng(0)
    lines = [SourceLine("/srv/net.py", number) for number in range(1, 7)]
    made = random.integers(-1, NUM_EVENTS, NUM_BLOCKS)
    freed = np.minimum(made + random.integers(0, NUM_EVENTS, NUM_BLOCKS), NUM_EVENTS)
    is_freed = freed < NUM_EVENTS
    blocks = BlocksOfLines(
        line=random.integers(0, len(lines), NUM_BLOCKS),
        size_bytes=random.integers(1, 1 << 40, NUM_BLOCKS),
        made_at=made,
        freed_at=freed,
        is_of_backward=random.random(NUM_BLOCKS) < 0.3,
        freed_phase=np.where(is_freed, random.integers(0, 2, NUM_BLOCKS), -1),
        freed_line=np.where(is_freed, random.integers(-1, 3, NUM_BLOCKS), -1),
    )
    found = line_memory_of(
        lines,
        blocks,
        position=POSITION,
        place=lambda phase, at: (PHASES[phase] if phase >= 0 else None, lines[at] if at >= 0 else None),
    )
    assert sorted(found, key=lambda one: one.at) == [_slow(line, number, blocks) for number, line in enumerate(lines)]
    assert [one.peak_bytes for one in found] == sorted((one.peak_bytes for one in found), reverse=True)


def _slow(at: SourceLine, number: int, blocks: BlocksOfLines) -> LineMemory:
    mine = np.flatnonzero(blocks.line == number).tolist()
    size = blocks.size_bytes.tolist()

    def in_use(event: int) -> list[int]:
        return [block for block in mine if blocks.made_at[block] <= event < blocks.freed_at[block]]

    at_peak = in_use(POSITION)
    freed = Counter[tuple[int, int]]()
    for block in at_peak or mine:
        freed[int(blocks.freed_phase[block]), int(blocks.freed_line[block])] += size[block]
    ((phase, line), _), *_ = freed.most_common(1)
    return LineMemory(
        at,
        sum(size[block] for block in at_peak),
        sum(size[block] for block in at_peak if blocks.is_of_backward[block]),
        max(sum(size[block] for block in in_use(event)) for event in range(-1, NUM_EVENTS)),
        PHASES[phase] if phase >= 0 else None,
        SourceLine(at.file, line + 1) if line >= 0 else None,
    )
