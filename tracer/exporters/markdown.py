"""The difference of two peaks in Markdown, to be put under a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tracer.analysis.peak_diff import PeakDiff
from tracer.exporters.diff_sections import changes_tables
from tracer.exporters.files import write_atomically
from tracer.exporters.tables import WORDS, cell_text
from tracer.units import format_bytes

_NUM_ROWS = 12
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#&@])")


def write_markdown(name: str, diff: PeakDiff, sentences: Sequence[str], path: Path) -> None:
    """Write the difference of two peaks as Markdown."""
    write_atomically(path, "\n".join(_lines(name, diff, sentences)) + "\n")


def _lines(name: str, diff: PeakDiff, sentences: Sequence[str]) -> Iterator[str]:
    percent = f", {100 * diff.bytes / diff.before_bytes:+.1f} %" if diff.before_bytes and diff.bytes else ""
    yield f"### GPU memory of {_plain(name)}"
    yield ""
    yield f"Peak {format_bytes(diff.before_bytes)} → {format_bytes(diff.after.bytes)} ({diff.bytes:+,} B{percent})"
    for sentence in sentences:
        yield ""
        yield _plain(sentence)
    (table,) = (table for table in changes_tables(diff) if table.title.startswith("By line"))
    if not table.rows:
        return
    yield ""
    yield f"| {' | '.join(column.name for column in table.columns)} |"
    yield f"|{'|'.join('---' if column.kind in WORDS else '---:' for column in table.columns)}|"
    for row in table.first_rows(_NUM_ROWS):
        cells = zip(row, table.columns, strict=True)
        yield f"| {' | '.join(_plain(cell_text(cell, column)) for cell, column in cells)} |"


def _plain(text: str) -> str:
    """Nothing in it is Markdown, HTML or a mention."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
