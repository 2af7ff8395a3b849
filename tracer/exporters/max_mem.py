"""max_mem.txt, the guide's block and the breakdown at the true peak, and cuda_timing.txt: lines that scripts read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.answers.peak import Peak
from tracer.blocks.from_recording.memory_timeline import Breakdown
from tracer.exporters.files import write_atomically
from tracer.units import format_bytes, gib, some

if TYPE_CHECKING:
    from tracer.capture.run_facts import PhaseTimings


_LABELS = {
    "PARAMETER": "PARAMETER",
    "OPTIMIZER_STATE": "OPT",
    "INPUT": "INPUT",
    "TEMPORARY": "TEMP",
    "ACTIVATION": "ACTIVATION",
    "GRADIENT": "GRADS",
    "AUTOGRAD_DETAIL": "AUTOGRAD_DETAIL",
    "INTERMEDIATE": "INTERMEDIATE",
}


def max_mem_text(breakdown: Breakdown, peaks: Sequence[Peak], *, caveat: str = "", notes: Sequence[str] = ()) -> str:
    """The file's text.

    Source:
        `parse_memory_breakdowns.py` of tensorgrad: of lines that start with `Max ` or `Peak total memory` the second
        word is the key and the last the value, and every line that starts with `Max ` becomes a column.
    """
    lines = [f"Memory Breakdown at Peak for {breakdown.device}", "---------"]
    rows = breakdown.rows_bytes
    lines += [f"Max {label} (GB): {gib(rows[name]):.6f}" for name, label in _LABELS.items()]
    lines.append(f"Peak total memory (GB): {gib(breakdown.peak_bytes):.6f}")
    cycles = some(len(breakdown.cycles), "cycle")
    lines += ["", caveat] if caveat else []
    lines += [
        "",
        f"GB means 2**30 bytes. Means over {cycles}. The rows above are by torch's own",
        "categories, at the instant when these held most in all; INTERMEDIATE is the",
        "true peak less their sum.",
    ]
    if breakdown.num_left_out:
        lines.append(f"Cut short by the end of the run, and left out: {some(breakdown.num_left_out, 'cycle')}.")
    if peaks:
        lines += [
            "torch sorts memory by rules of its own, and at another instant: an activation",
            "that it does not recognise is in another of its rows, or in INTERMEDIATE. The",
            "rows below are by what each block was for, at the true peak, so that a name",
            "above and below need not have the same bytes.",
            "",
            *_true_peak_lines(peaks),
        ]
    lines += ["", *notes] if notes else []
    return "\n".join(lines) + "\n"


def _true_peak_lines(peaks: Sequence[Peak]) -> list[str]:
    """Mean bytes by category at the true peak, largest first; they sum to the peak of each cycle."""
    total = sum(peak.peak_bytes for peak in peaks)
    sums: dict[str, int] = {}
    for peak in peaks:
        for name, size_bytes in peak.by_category().items():
            sums[name] = sums.get(name, 0) + size_bytes
    lines = [f"At the true peak of {format_bytes(total / len(peaks))}:"]
    for name, size_bytes in sorted(sums.items(), key=lambda item: -item[1]):
        mean = size_bytes / len(peaks)
        lines.append(f"  {name:<17} {mean:>16.0f} bytes  {format_bytes(mean):>11}  {100 * size_bytes / total:5.1f} %")
    lines.append(f"  {'sum':<17} {total / len(peaks):>16.0f} bytes")
    return lines


def write_max_mem(
    breakdown: Breakdown, peaks: Sequence[Peak], path: Path, *, caveat: str = "", notes: Sequence[str] = ()
) -> None:
    """Write max_mem.txt; arguments as of `max_mem_text`."""
    write_atomically(path, max_mem_text(breakdown, peaks, caveat=caveat, notes=notes))


def cuda_timing_text(timings: PhaseTimings) -> str:
    r"""The file's text.

    Source:
        `plot_timing.py` of tensorgrad reads `total_time: ([\d.]+)\+/-([\d.]+)ms`: one blank after the colon, none
        around `+/-`, plain decimals. What follows `ms` is free.
    """
    from tracer.capture.run_facts import PHASES

    lines = ["CUDA timing for key events:", "---------------"]
    for phase in PHASES:
        lines.append(f"{phase}: {timings.mean_ms(phase):.3f}+/-{timings.std_ms(phase):.3f}ms on {timings.clock}")
    return "\n".join(lines) + "\n"
