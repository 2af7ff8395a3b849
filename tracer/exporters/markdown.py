"""The difference of two peaks in Markdown, to be put under a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tracer.analysis.kinds import words_of
from tracer.analysis.peak_diff import PeakDiff
from tracer.exporters.files import write_atomically
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
    changes = [change for change in diff.changes["line"] if change.bytes]
    if not changes:
        return
    yield ""
    yield "| change | category | module | operator | line |"
    yield "|---:|---|---|---|---|"
    for change in changes[:_NUM_ROWS]:
        yield f"| {_signed(change.bytes)} | " + " | ".join(map(_plain, map(words_of, change.name))) + " |"
    if rest := changes[_NUM_ROWS:]:
        yield f"| {_signed(sum(change.bytes for change in rest))} | | | | {len(rest)} more |"


def _signed(size_bytes: int) -> str:
    return f"{'+' if size_bytes > 0 else '-' if size_bytes < 0 else ''}{format_bytes(abs(size_bytes))}"


def _plain(text: str) -> str:
    """Nothing in it is Markdown, HTML or a mention."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
