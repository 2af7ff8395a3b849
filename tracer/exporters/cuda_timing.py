"""cuda_timing.txt, in the lines that existing plotting scripts read."""

from __future__ import annotations

from pathlib import Path

from tracer.capture.device.phase_timings import PHASES, PhaseTimings
from tracer.exporters.files import write_atomically


def cuda_timing_text(timings: PhaseTimings) -> str:
    r"""The file's text.

    Source:
        `plot_timing.py` of tensorgrad reads `total_time: ([\d.]+)\+/-([\d.]+)ms`: one blank after the colon, none
        around `+/-`, plain decimals. What follows `ms` is free.
    """
    lines = ["CUDA timing for key events:", "---------------"]
    for phase in PHASES:
        lines.append(f"{phase}: {timings.mean_ms(phase):.3f}+/-{timings.std_ms(phase):.3f}ms on {timings.clock}")
    return "\n".join(lines) + "\n"


def write_cuda_timing(timings: PhaseTimings, path: Path) -> None:
    """Write cuda_timing.txt, times of the phases of a step."""
    write_atomically(path, cuda_timing_text(timings))
