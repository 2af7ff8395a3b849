"""Programs of the allocator's model, explained, that several tests share."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from tests.allocator.recorded import MIB, Program
from tests.snapshot.dumps import frame
from tracer.allocator.reserving import OutOfMemoryError
from tracer.analysis.snapshots.allocator_finding import AllocatorFinding, explain_allocator
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.reserved import Reserved
from tracer.exporters.history_sections import first_changes_sections
from tracer.exporters.screen.snapshot import print_allocator
from tracer.exporters.screen.text import print_section
from tracer.snapshot.load import snapshot_in_memory

SMALL_STACK = [frame("make_small", "/home/me/model.py", 5)]


def explain(objects: Any, **asked: Any) -> AllocatorFinding:
    (found,) = explain_allocator(replay_snapshot(snapshot_in_memory(objects)), **asked)
    return found


def screen(*found: AllocatorFinding) -> str:
    console = Console(file=StringIO(), width=110)
    print_allocator(found, console)
    for finding in found:
        for section in first_changes_sections(finding.first):
            print_section(section, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def by_reason(reserved: Reserved | None) -> dict[str, int]:
    assert reserved is not None
    sums: dict[str, int] = {}
    for row in reserved.rows:
        sums[row.reason] = sums.get(row.reason, 0) + row.bytes
    return sums


def fragmented() -> Program:
    """Blocks that grow from round to round: what is cached is always a little too small."""
    program = Program(0)
    for size in range(30, 90, 3):
        blocks = [program.allocator.allocate(size * MIB), program.allocator.allocate(2 * MIB)]
        program.allocator.free(blocks[0])
    return program


def full() -> Program:
    """A request that fails although its memory is there, in pieces."""
    program = Program(0, capacity=400 * MIB)
    for piece in [program.allocator.allocate(100 * MIB) for _ in range(3)]:
        program.allocator.free(piece)
    kept = [program.allocator.allocate(60 * MIB) for _ in range(3)]
    with pytest.raises(OutOfMemoryError):
        program.allocator.allocate(150 * MIB)
    assert kept
    return program
