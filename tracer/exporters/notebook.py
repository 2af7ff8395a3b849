"""What a notebook shows where a result is the value of a cell: the headline, and the peak by kind and by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.findings import Findings
from tracer.exporters.screen.profile import headline, line_name
from tracer.units import format_bytes

NUM_ROWS = 10


def notebook_html(findings: Findings | None, num_steps: int | None = None) -> str:
    """HTML that brings no style or script of its own; every text of the recording is escaped."""
    if findings is None:
        return "<p>Nothing was recorded.</p>"
    peak = findings.worst.peak
    parts = (
        f"<p><strong>{escape(headline(findings, num_steps))}</strong></p>",
        _table("What filled it", peak.rows, lambda row: row.category, peak.peak_bytes),
        _table("By line", peak.rows, line_name, peak.peak_bytes),
    )
    return "".join(parts)


def _table(title: str, rows: Iterable[PeakRow], name: Callable[[PeakRow], str], peak_bytes: int) -> str:
    totals: dict[str, int] = {}
    for row in rows:
        totals[name(row)] = totals.get(name(row), 0) + row.bytes
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    shown, rest = ordered[:NUM_ROWS], ordered[NUM_ROWS:]
    if rest:
        shown.append((f"{len(rest)} more", sum(size for _, size in rest)))
    lines = "".join(_row(*line, peak_bytes) for line in [*shown, ("sum", peak_bytes)])
    return f"<table><caption>{escape(title)}</caption><tbody>{lines}</tbody></table>"


def _row(name: str, size_bytes: int, peak_bytes: int) -> str:
    cells = (f"{size_bytes:,}", format_bytes(size_bytes), f"{100 * size_bytes / peak_bytes:.1f} %")
    return f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
