"""What compiling changes: the peak of a compiled run beside that of the same run without compilation."""

from __future__ import annotations

from tracer.analysis.peak_diff import PeakDiff, SavedPeak, diff_peaks
from tracer.analysis.profiles.findings import Findings
from tracer.units import format_bytes


def saved_peak(findings: Findings) -> SavedPeak:
    """The largest peak of a run, as it is compared with another run's."""
    peak = findings.worst.peak
    return SavedPeak(peak.device, peak.peak_bytes, peak.phase, peak.rows)


def compared_with_eager(findings: Findings, eager: SavedPeak) -> PeakDiff:
    """Changes from the peak without compilation to the peak with it."""
    return diff_peaks(eager, saved_peak(findings))


def eager_sentences(diff: PeakDiff) -> tuple[str, ...]:
    """How the two peaks differ, in words."""
    was, now = diff.before, diff.after
    change = "as much" if not diff.bytes else f"{format_bytes(abs(diff.bytes))} {'more' if diff.bytes > 0 else 'less'}"
    if diff.bytes and was.bytes:
        change += f", {100 * abs(diff.bytes) / was.bytes:.1f} %"
    sentences = [
        f"Without compilation the peak is {format_bytes(was.bytes)}{_in(was)}; "
        f"compiled it is {format_bytes(now.bytes)}{_in(now)}: {change}."
    ]
    if not any(row.is_compiled for row in now.rows):
        sentences.append("Compiled code allocated nothing of the second peak; --compile compiles the model.")
    return tuple(sentences)


def _in(peak: SavedPeak) -> str:
    return f" in {peak.phase}" if peak.phase else ""
