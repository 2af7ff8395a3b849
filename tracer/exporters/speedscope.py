"""The stacks of a peak in bytes, for speedscope.app and other viewers of flame graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.peak import PeakReport
from tracer.capture.recording import Recording
from tracer.exporters.files import write_json
from tracer.exporters.python_stacks import PythonStacks

_NO_FRAME = "no Python frame"


def write_speedscope(recording: Recording, peak: PeakReport, path: Path) -> None:
    """Write the blocks of a peak by the Python stack that allocated them, and in each by kind.

    The weights sum to the peak.

    Source:
        https://www.speedscope.app/file-format-schema.json, a profile of type `sampled`.
    """
    stacks = PythonStacks(recording)
    index_of: dict[tuple[str, str, int], int] = {}
    weights: dict[tuple[int, ...], int] = {}
    blocks = peak.blocks
    columns = (blocks.allocation, blocks.kind, blocks.size_bytes)
    for allocation, kind, size_bytes in zip(*(column.tolist() for column in columns), strict=True):
        frames = [(frame["name"], frame["filename"], frame["line"]) for frame in stacks.of_allocation(allocation)]
        names = [*reversed(frames or [(_NO_FRAME, "", 0)]), (Kind(kind).words, "", 0)]
        stack = tuple(index_of.setdefault(name, len(index_of)) for name in names)
        weights[stack] = weights.get(stack, 0) + size_bytes
    write_json(path, _document(list(index_of), weights, f"Peak of {peak.device}", peak.peak_bytes))


def _document(
    frames: list[tuple[str, str, int]], weights: dict[tuple[int, ...], int], name: str, total: int
) -> dict[str, Any]:
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "torch-timeline",
        "name": name,
        "shared": {"frames": [_frame(*frame) for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": name,
                "unit": "bytes",
                "startValue": 0,
                "endValue": total,
                "samples": [list(stack) for stack in weights],
                "weights": list(weights.values()),
            }
        ],
    }


def _frame(name: str, file: str, line: int) -> dict[str, object]:
    return {"name": name, "file": file, "line": line} if file else {"name": name}
