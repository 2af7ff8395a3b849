"""Sentences at the top of the page, and the colours and words of categories."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tracer.capture.torch_names import step_words
from tracer.exporters.page.model import Page, PagePeak
from tracer.exporters.screen.paths import source_place
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.analysis.peak_row import PeakRow

CATEGORIES = {
    # name: (words, on white, on black). The hues are torch's, `_CATEGORY_TO_COLORS` in
    # torch/profiler/_memory_profiler.py, as far as any two of them can be told apart on either ground, also by people
    # who see no red, no green or no blue.
    "PARAMETER": ("parameters", "#0c7530", "#3aae76"),
    "OPTIMIZER_STATE": ("optimizer state", "#e3c531", "#f0d33c"),
    "INPUT": ("inputs", "#090a0b", "#f6f7f8"),
    "TEMPORARY": ("temporaries", "#bf8cf1", "#8f86ff"),
    "ACTIVATION": ("activations", "#f04c5a", "#e8484f"),
    "GRADIENT": ("gradients", "#152ac4", "#3b36e8"),
    "AUTOGRAD_DETAIL": ("autograd's intermediate results", "#3b75fa", "#a5cffd"),
    "UNTAGGED": ("memory that torch gave no category", "#7e8a9a", "#74797e"),
    # Kinds that torch does not tell apart.
    "WORKSPACE": ("operators' workspaces", "#4f2e10", "#8c3a14"),
    "BUFFER": ("buffers", "#1fba85", "#27e8a5"),
    "EVALUATION": ("evaluation", "#920c7d", "#d740ba"),
    "HELD": ("tensors held by Python", "#9b8604", "#ad9504"),
    "COMMUNICATION": ("buffers of collectives", "#f0a05a", "#faaa64"),
    "BEFORE_RECORDING": ("memory from before the recording", "#c6cbd2", "#424a54"),
    "UNKNOWN": ("memory that nothing explains", "#404143", "#a9b0b9"),
}


def headline(page: Page) -> tuple[str, ...]:
    """Sentences on the peak: when, of what, where its largest part was allocated, and what is missing."""
    if page.peak is None or page.peak.bytes == 0:
        return (f"Nothing was allocated on {page.device} while it was recorded.",)
    sentences = (_when(page.peak, page.device), _what(page.peak), _where(page.peak))
    return (*(sentence for sentence in sentences if sentence), *page.headline_notes)


def _when(peak: PagePeak, device: str) -> str:
    parts = [step_words(peak.step) if peak.step else "", peak.phase.lower() if peak.phase else ""]
    when = ", ".join(part for part in parts if part)
    # At a step or at the start, but in backward.
    preposition = "at" if peak.step or when.startswith("the ") else "in"
    return f"Peak: {format_bytes(peak.bytes)} on {device}" + (f" {preposition} {when}." if when else ".")


def _what(peak: PagePeak) -> str:
    shares = sorted((share for share in peak.breakdown if share.bytes > 0), key=lambda share: -share.bytes)
    if not shares:
        return ""
    first, *others = [f"{_percent(share.bytes, peak.bytes)} {_words(share.name)}" for share in shares[:3]]
    return f"It is {first}" + (f", {' and '.join(others)}." if others else ".")


def _where(peak: PagePeak) -> str:
    """The source line that holds most; where no line is known, the largest piece."""
    lines: dict[tuple[str, int | None], list[PeakRow]] = {}
    for row in peak.rows:
        if row.file:
            lines.setdefault((row.file, row.line), []).append(row)
    if not lines:
        return f"The largest piece: {_piece(max(peak.rows, key=lambda row: row.bytes))}." if peak.rows else ""
    (file, line), rows = max(lines.items(), key=lambda item: sum(row.bytes for row in item[1]))
    size = sum(row.bytes for row in rows)
    where = source_place(_file_name(file), line)
    ops, modules = _some(row.op for row in rows), _some(row.module for row in rows)
    made_by = " in ".join(part for part in (ops, modules) if part)
    callers = {(row.caller_file, row.caller_line) for row in rows if row.caller_file}
    if len(callers) == 1:
        ((caller, caller_line),) = callers
        where += f", called from {source_place(_file_name(caller), caller_line)}"
    share = f"{format_bytes(size)}, {_percent(size, peak.bytes)}"
    return f"The line that holds most is {where}: {share}" + (f", made by {made_by}." if made_by else ".")


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def _piece(row: PeakRow) -> str:
    blocks = f" in {row.count} blocks" if row.count > 1 else ""
    parts = [f"{format_bytes(row.bytes)}{blocks}", row.name or _words(row.category)]
    return ", ".join([*parts, f"of {row.module}"] if row.module else parts)


def _some(names: Iterable[str | None]) -> str:
    distinct = list(dict.fromkeys(name for name in names if name))
    more = f" and {len(distinct) - 2} more" if len(distinct) > 2 else ""
    return (" and " if len(distinct) == 2 else ", ").join(distinct[:2]) + more


def _percent(part: int, whole: int) -> str:
    percent = 100 * part / whole
    return "less than 1 %" if percent < 1 else f"{percent:.0f} %"


def _words(category: str) -> str:
    return CATEGORIES[category][0] if category in CATEGORIES else category
