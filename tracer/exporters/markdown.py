"""The difference of two peaks in Markdown, to be put under a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tracer.analysis.peak_diff import PeakDiff
from tracer.exporters.diff_sections import answer_sentences, line_changes
from tracer.exporters.files import write_atomically
from tracer.exporters.tables import WORDS, cell_text

_NUM_ROWS = 12
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#&@])")


def write_markdown(name: str, diff: PeakDiff, sentences: Sequence[str], path: Path) -> None:
    """Write the difference of two peaks as Markdown."""
    write_atomically(path, "\n".join(_lines(name, diff, sentences)) + "\n")


def _lines(name: str, diff: PeakDiff, sentences: Sequence[str]) -> Iterator[str]:
    yield f"### GPU memory of {_plain(name)}"
    for sentence in (*answer_sentences(diff), *sentences):
        yield ""
        yield _plain(sentence)
    table = line_changes(diff)
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
