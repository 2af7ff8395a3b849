"""The screen: first what filled the device, then where it came from, then how long the phases took."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracer.analysis.module_tree import module_tree
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.caveats import counted, growth_sentences, left_out, not_recorded, unseen
from tracer.analysis.profiles.compiled_words import compiled_sentences
from tracer.analysis.profiles.findings import CycleFindings, Findings
from tracer.analysis.profiles.lost_track import LostTrack
from tracer.analysis.profiles.peak import AllocatorPeak, PeakReport
from tracer.capture.phase_timing import PHASES, PhaseTimings
from tracer.capture.torch_names import STEP_PREFIX
from tracer.units import format_bytes

NUM_ROWS = 8
NUM_MODULES = 14
MODULE_DEPTH = 3
NUM_SENTENCES = 3
NUM_SHORT_LINES = 3


def peak_screen(findings: Findings) -> RenderableType:
    """Headline, and the peak by category, module and line, then what else there is to say. Readable in 80 columns."""
    peak = findings.worst.peak
    parts: list[RenderableType] = [
        Text(),
        *(Text(line, style="bold") for line in (headline(findings), not_recorded(peak)) if line is not None),
        Text(_counts(findings)),
        Text(),
        kinds_table(peak),
        Text(),
        _module_table(peak),
        Text(),
        lines_table(peak),
        Text(),
        _phase_table(findings.worst),
    ]
    for sentence in (
        *growth_sentences(findings.growth, file_name=short_path),
        *_lost_track(findings.worst),
        *left_out(findings),
        *compiled_sentences(findings, file_name=short_path),
        *unseen(findings.worst.recording, findings.worst.lifetimes),
    ):
        parts += [Text(), Text(sentence)]
    return Group(*parts)


def short_screen(findings: Findings) -> tuple[str, ...]:
    """The answer in a few lines: the headline, the largest lines of source, what grows."""
    peak = findings.worst.peak
    lines = _line_totals(peak.rows)
    width = max((len(name) for name, _ in lines), default=0)
    shares = (
        f"  {name:<{width}}  {format_bytes(size):>11}  {100 * size / peak.peak_bytes:4.1f} %" for name, size in lines
    )
    missed = not_recorded(peak)
    return (
        headline(findings),
        *shares,
        *(() if missed is None else (missed,)),
        *growth_sentences(findings.growth, file_name=short_path),
    )


def _line_totals(rows: Iterable[PeakRow]) -> list[tuple[str, int]]:
    totals: dict[str, int] = {}
    for row in rows:
        totals[line_name(row)] = totals.get(line_name(row), 0) + row.bytes
    return sorted(totals.items(), key=lambda item: -item[1])[:NUM_SHORT_LINES]


def _module_table(peak: PeakReport) -> Table:
    """The largest modules as a tree; each line holds what is below it, so the lines do not add up."""
    root = module_tree(peak.rows)
    smallest = peak.peak_bytes // 50
    lines = [
        ("  " * (depth - 1) + (node.path if depth == 1 else f".{node.path.rpartition('.')[2]}"), node.total_bytes, 0)
        for depth, node in root.walk()
        if 0 < depth <= MODULE_DEPTH and node.total_bytes >= smallest
    ]
    shown = lines[:NUM_MODULES]
    if len(lines) > len(shown):
        shown.append((f"and {len(lines) - len(shown)} more of 2 % or above", 0, 0))
    return _bytes_table("By module, with all that is inside it", "module", shown, peak.peak_bytes, 48)


def _phase_table(cycle: CycleFindings) -> Table:
    table = Table(title="The step, phase by phase", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for label in ("step", "phase", "most bytes", ""):
        table.add_column(label, justify="right" if label == "most bytes" else "left")
    for phase in cycle.step_phases:
        if phase.step != (cycle.peak.step or phase.step):
            continue
        most = format_bytes(phase.peak_bytes) if phase.peak_bytes is not None else "-"
        mark = "<- peak" if phase.phase == cycle.peak.phase else ""
        table.add_row(phase.step.replace(STEP_PREFIX, ""), phase.phase, most, mark)
    return table


def _lost_track(cycle: CycleFindings) -> Iterable[str]:
    """Only where it matters: from 1 % of the peak on."""
    for lost in cycle.lost_track[:NUM_SENTENCES]:
        if lost.bytes * 100 < cycle.peak.peak_bytes:
            continue
        where = f" at {short_path(lost.file)}:{lost.line}" if lost.file else ""
        what = lost.op or "a tensor from before the recording"
        yield (
            f"torch's own categories stop at {what}{where}, in {lost.module or 'no module'}: "
            f"{format_bytes(lost.bytes)} of the peak have none because of it. {_known_otherwise(lost)}"
        )


def _known_otherwise(lost: LostTrack) -> str:
    if lost.known_bytes == lost.bytes:
        return "The rows above know what they are."
    if not lost.known_bytes:
        return "The rows above do not know what they are either."
    return f"The rows above know what {format_bytes(lost.known_bytes)} of them are."


def headline(findings: Findings) -> str:
    """The answer in one sentence."""
    peak = findings.worst.peak
    largest, size_bytes = next(iter(peak.by_category().items()))
    when = " ".join(part for part in (f"in {peak.phase}" if peak.phase else "", _of_step(peak)) if part)
    return (
        f"Peak: {format_bytes(peak.peak_bytes)} on {peak.device} {when}; "
        f"{100 * size_bytes / peak.peak_bytes:.0f} % of it {_words(largest)}."
    )


def _of_step(peak: PeakReport) -> str:
    return f"of {peak.step.replace(STEP_PREFIX, 'step ')}" if peak.step else ""


def _counts(findings: Findings) -> str:
    peak = findings.worst.peak
    lines = [counted(peak)]
    if peak.allocator is not None:
        lines.append(_three_sizes(peak, peak.allocator))
    elif peak.reserved_bytes:
        unused = peak.reserved_bytes - peak.allocator_peak_bytes
        lines.append(
            f"Reserved from the driver at that moment: {format_bytes(peak.reserved_bytes)}, "
            f"of which {format_bytes(unused)} held no tensor."
        )
    spread = {cycle.peak.peak_bytes for cycle in findings.cycles}
    if len(spread) > 1:
        lines.append(f"Cycles differ: from {format_bytes(min(spread))} to {format_bytes(max(spread))}.")
    return "\n".join(lines)


def _three_sizes(peak: PeakReport, allocator: AllocatorPeak) -> str:
    """Bytes requested, what they were rounded to, and what was reserved from the driver for them."""
    largest, pending = format_bytes(allocator.largest_free_bytes), allocator.pending_bytes
    return (
        f"Asked for: {format_bytes(allocator.requested_bytes)}. "
        f"Allocated, which is that rounded up block by block: {format_bytes(peak.peak_bytes)}.\n"
        f"Reserved from the driver: {format_bytes(allocator.reserved_bytes)}, "
        f"of which {format_bytes(allocator.free_bytes)} free, in pieces of {largest} at most"
        + (f", and {format_bytes(pending)} freed but still used by another stream." if pending else ".")
    )


def _words(category: str) -> str:
    return category.replace("_", " ").lower()


def kinds_table(peak: PeakReport) -> Table:
    """The peak by category."""
    return _table("What filled it", "category", peak, lambda row: row.category, width=24)


def lines_table(peak: PeakReport) -> Table:
    """By line; below a library's line the user's that led there, which stands in the title if it is always the same."""
    callers = {_caller(row) for row in peak.rows if row.caller_file}
    is_one = len(callers) == 1

    def line(row: PeakRow) -> str:
        made = line_name(row)
        return f"{made}\n  from {_caller(row)}" if row.caller_file and not is_one else made

    title = f"By line; those of libraries were called from {callers.pop()}" if is_one else "By line"
    return _table(title, "line", peak, line, width=48)


def _caller(row: PeakRow) -> str:
    return f"{short_path(row.caller_file or '')}:{row.caller_line}"


def line_name(row: PeakRow) -> str:
    """The line that made a row's blocks, or in brackets what they are and when they were made."""
    if row.file is None:
        return f"({_words(row.category)}, {row.phase})"
    return f"{short_path(row.file)}:{row.line}"


def short_path(path: str) -> str:
    """Relative to the working directory where the file lies below it, and without the folder of installed packages."""
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in path:
            return path.rpartition(folder)[2]
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return path if relative.startswith("..") else Path(relative).as_posix()


def _table(title: str, label: str, peak: PeakReport, key: Callable[[PeakRow], str], *, width: int) -> Table:
    totals: dict[str, tuple[int, int]] = {}
    for row in peak.rows:
        size_bytes, count = totals.get(key(row), (0, 0))
        totals[key(row)] = (size_bytes + row.bytes, count + row.count)
    ordered = sorted(totals.items(), key=lambda item: -item[1][0])
    shown, rest = ordered[:NUM_ROWS], ordered[NUM_ROWS:]
    # Eleven categories fit; of anything else the tail is one row.
    if len(rest) == 1:
        shown, rest = ordered, []
    lines = [(name, *total) for name, total in shown]
    if rest:
        lines.append((f"{len(rest)} more", sum(t[0] for _, t in rest), sum(t[1] for _, t in rest)))
    return _bytes_table(title, label, lines, peak.peak_bytes, width)


def _bytes_table(title: str, label: str, lines: Iterable[tuple[str, int, int]], total_bytes: int, width: int) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, show_footer=True)
    table.add_column(label, footer="sum", max_width=width, overflow="fold")
    table.add_column("bytes", footer=f"{total_bytes:,}", justify="right")
    table.add_column("", footer=format_bytes(total_bytes), justify="right")
    table.add_column("share", footer="100.0 %", justify="right")
    for name, size_bytes, _ in lines:
        if not size_bytes:
            table.add_row(Text(name))
            continue
        share = f"{100 * size_bytes / total_bytes:.1f} %"
        table.add_row(Text(name), f"{size_bytes:,}", format_bytes(size_bytes), share)
    return table


def timing_screen(timings: PhaseTimings) -> RenderableType:
    """Mean and spread of each phase."""
    num_steps = len(timings.durations_ms[PHASES[0]])
    title = f"Time of a step on {timings.device}, {num_steps} steps, no profiler"
    table = Table(box=None, pad_edge=False)
    table.add_column("phase")
    table.add_column("ms", justify="right")
    table.add_column("+/-", justify="right")
    words = {"model_fwd": "forward and loss", "loss_bk": "backward", "opt_step": "optimizer step", "total_time": "all"}
    for phase in ("model_fwd", "loss_bk", "opt_step", "total_time"):
        table.add_row(words[phase], f"{timings.mean_ms(phase):.1f}", f"{timings.std_ms(phase):.1f}")
    # Not as the table's title, which would be broken to the width of its columns.
    return Group(Text(), Text(title, style="bold"), table)


def parameters_sentence(unused: tuple[str, ...]) -> str:
    """Whether every parameter received a gradient, and which did not."""
    if not unused:
        return "Every parameter received a gradient."
    names = ", ".join(unused[:NUM_ROWS]) + (f" and {len(unused) - NUM_ROWS} more" if len(unused) > NUM_ROWS else "")
    noun = "parameter" if len(unused) == 1 else "parameters"
    return f"{len(unused)} {noun} received no gradient: {names}."
