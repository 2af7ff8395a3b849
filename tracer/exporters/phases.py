"""Memory by phase: a row for each phase of a process, whose parts sum to what it holds of its GPU, and phases.json.

docs/files.md describes the keys of phases.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console

from tracer.answers.files import PHASES_JSON
from tracer.answers.tables import Cell, Table, columns
from tracer.capture.device.phase_memory import GpuPeak, ProcessPhases
from tracer.exporters.json_documents.header import json_header
from tracer.exporters.screen.text import print_table
from tracer.units import format_bytes

VERSION: Final = 1
_MOST_ROWS: Final = 24


def print_phases(processes: Sequence[ProcessPhases], peaks: Sequence[GpuPeak], console: Console) -> None:
    """Print a table for each process that has phases, and who held each GPU when it was fullest."""
    for each in processes:
        whose = f" of {each.name}, process {each.process}" if len(processes) > 1 else ""
        cut = f" (all of them in {PHASES_JSON})" if len(each.phases) > _MOST_ROWS + 1 else ""
        has_unmapped = any(phase.unmapped_bytes for phase in each.phases)
        sizes = ["allocated", "cached", "outside", *["unmapped"] * has_unmapped, "on the GPU", "at its end"]
        heads = (*columns("bytes", *sizes, adds_up=False), *columns("count", "times"), *columns("text", "phase"))
        rows: list[tuple[Cell, ...]] = []
        for phase in each.phases:
            parts = [phase.allocated_bytes, phase.cached_bytes, phase.outside_bytes]
            parts += [-phase.unmapped_bytes] if has_unmapped else []
            rows.append((*parts, phase.held_bytes, phase.end_bytes, phase.num_times, phase.name))
        title = f"Memory by phase{whose}, each part at its most{cut}"
        print_table(Table(title, heads, tuple(rows)), console, top=_MOST_ROWS)
    for peak in peaks:
        held = tuple(
            (each.bytes, f"{each.name}, process {each.process}".lstrip(", "), each.phase) for each in peak.holders
        )
        title = f"GPU {peak.device} when it was fullest: {format_bytes(peak.held_bytes)}"
        heads = (*columns("bytes", "on the GPU"), *columns("text", "process", "phase"))
        print_table(Table(title, heads, held), console)


def phases_json(processes: Sequence[ProcessPhases], peaks: Sequence[GpuPeak] = (), *, computed: bool) -> dict[str, Any]:
    """Return the document of a run's phases."""
    return {
        **json_header("phases", VERSION, computed=computed),
        "processes": [
            {
                "process": each.process,
                "name": each.name,
                "phases": [
                    asdict(phase) | {"cached_bytes": phase.cached_bytes, "unmapped_bytes": phase.unmapped_bytes}
                    for phase in each.phases
                ],
            }
            for each in processes
        ],
        "gpus": [asdict(peak) | {"held_bytes": peak.held_bytes} for peak in peaks],
    }
