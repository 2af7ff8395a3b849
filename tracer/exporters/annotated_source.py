"""Source code with bytes beside its lines: the text is the one that ran, and only of files that the recording names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.answers.line_memory import LineMemory

CONTEXT_LINES = 3
_MAX_LINE_CHARS = 200
_NOT_KEPT = "Its source is not in the recording, which keeps that of your own files alone."
_SHORTER = "The file was changed since the program loaded it: it has fewer lines than the recording names."
_LEAST_SHARE = 1000  # Below this part of the peak, a thousandth, a file is left out of the page
_MOST_FILES, _MOST_LINES = 8, 400


@dataclass(frozen=True, slots=True)
class AnnotatedLine:
    """A line of source; `text` is None where the file has no such line."""

    number: int
    text: str | None
    memory: LineMemory | None = None


@dataclass(frozen=True, slots=True)
class AnnotatedFile:
    """A file with the lines that allocated memory and a few around them; `lines` may have gaps."""

    file: str
    peak_bytes: int
    lines: tuple[AnnotatedLine, ...]
    note: str = ""  # Why the text may be another one than what ran, or is not there


def annotated_files(
    memory: Sequence[LineMemory], text_of: Callable[[str], str | None], peak_bytes: int
) -> tuple[AnnotatedFile, ...]:
    """Annotate the user's files that hold most of the peak; files without a text are left out."""
    by_file: dict[str, list[LineMemory]] = {}
    for one in memory:
        by_file.setdefault(one.at.file, []).append(one)
    files = [annotate(file, mine, text_of(file)) for file, mine in by_file.items()]
    shown = [
        one
        for one in files
        if one.peak_bytes * _LEAST_SHARE >= peak_bytes and any(line.text is not None for line in one.lines)
    ]
    largest = sorted(shown, key=lambda one: -one.peak_bytes)[:_MOST_FILES]
    return tuple(replace(one, lines=one.lines[:_MOST_LINES]) for one in largest)


def annotate(file: str, memory: Iterable[LineMemory], text: str | None) -> AnnotatedFile:
    """Annotate one file.

    Args:
        text: Source as it ran; None where it is not known.
    """
    of_line = {one.at.line: one for one in memory}
    source = [] if text is None else text.splitlines()
    near = {
        number
        for line in of_line
        for number in range(line - CONTEXT_LINES, line + CONTEXT_LINES + 1)
        if number in of_line or 1 <= number <= len(source)
    }
    lines = tuple(
        AnnotatedLine(
            number, source[number - 1][:_MAX_LINE_CHARS] if number <= len(source) else None, of_line.get(number)
        )
        for number in sorted(near)
    )
    is_shorter = any(line > len(source) for line in of_line)
    note = _NOT_KEPT if text is None else _SHORTER if is_shorter else ""
    return AnnotatedFile(file, sum(one.peak_bytes for one in of_line.values()), lines, note)


def freed_words(memory: LineMemory) -> str:
    """Return where most of a line's memory was freed: `backward`, `backward, line 41`, `train.py:12`, `not freed`."""
    if memory.freed_in is None:
        return "not freed"
    phase, at = "" if memory.freed_in == "other" else memory.freed_in, memory.freed_at
    if at is None or at == memory.at:
        return phase or "outside of phases"
    place = f"line {at.line}" if at.file == memory.at.file else f"{Path(at.file).name}:{at.line}"
    return ", ".join(part for part in (phase, place) if part)
