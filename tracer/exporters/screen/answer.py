"""An answer on a terminal: its short form fits 24 lines of 100 columns, the full one has all tables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from rich.console import Console

from tracer.answers.answer import Answer
from tracer.answers.paths import shorten_paths
from tracer.answers.tables import Cell, Place, Table, place_text
from tracer.exporters.screen.terminal import visible
from tracer.exporters.screen.text import print_section, print_table, say

LINES: Final = 24
WIDTH: Final = 100
_ROWS: Final = {1: 8, 2: 4, 3: 3}  # Of each of so many tables, at most
_LEAST_ROWS: Final = 2
_MOST_PLACE: Final = 44  # Characters of a place in a table
_TITLE_ENDS: Final = re.compile(r"[;,]| \(| whose | of the same ")
_LABELS: Final = {"why": "Why: ", "change": "Change: ", "remarks": "Note: "}


def print_answer(
    answer: Answer, console: Console, *, full: bool = False, last: Sequence[str] = (), below: int = 0, top: int = 8
) -> None:
    """Print an answer.

    Args:
        last: Lines that are to stand below the short form, such as the names of files.
    """
    width = console.width if console.is_terminal else WIDTH
    lines = list(_prose(answer))
    below += sum(len(_wrapped(line, width)) for line in last)
    least = sum(_height(table, _LEAST_ROWS) for table in answer.in_use[:1])
    num_left = None if full else LINES - below - least
    for part, text in lines:
        num_lines = len(_wrapped(text, width))
        if num_left is not None and part == "remarks" and num_lines > num_left:
            continue
        style = "" if part != "happened" else "bold red" if answer.is_alarming else "bold"
        num_left = None if num_left is None else num_left - num_lines
        if full:
            say(console, text, style=style)
        else:
            for line in _wrapped(text, width):
                say(console, line, style=style)
    if full:
        for section in answer.sections:
            print_section(section, console, top=top)
        return
    for table in _fitting(answer.in_use, (num_left or 0) + least):
        print_table(table, console)


def _prose(answer: Answer) -> Iterator[tuple[str, str]]:
    """Yield the sentences with the part they are of; those of one cause, and of one change, are a paragraph."""
    for name, sentences in answer.parts.items():
        if name in ("why", "change"):
            sentences = (" ".join(sentences),) if sentences else ()
        for sentence in map(shorten_paths, sentences):
            yield name, visible(f"{_LABELS.get(name, '')}{sentence}")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _fitting(tables: Sequence[Table], num_lines: int) -> Iterator[Table]:
    """Yield as many tables as there are lines for, and rows of each."""
    for number in range(min(len(tables), len(_ROWS)), 0, -1):
        for most in range(_ROWS[number], _LEAST_ROWS - 1, -1):
            if sum(_height(table, most) for table in tables[:number]) <= num_lines:
                yield from (_short(table, most) for table in tables[:number])
                return


def _height(table: Table, most: int) -> int:
    """Lines of a table's short form, with the empty one before it and the line of its columns' names."""
    return 2 + (len(table.rows) if table.is_whole else min(len(table.rows), most + 1))


def _short(table: Table, most: int) -> Table:
    """The first rows without exact bytes, words below a place and the sum; the title stands over the names."""
    kept = [index for index, column in enumerate(table.columns) if not column.is_exact]
    heads = tuple(replace(column, kind="label" if column.kind == "text" else column.kind) for column in table.columns)
    title = replace(heads[0], name=_TITLE_ENDS.split(table.title)[0])
    rows = tuple(tuple(_short_cell(row[index]) for index in kept) for row in table.first_rows(most))
    return Table("", (title, *(heads[index] for index in kept[1:])), rows)


def _short_cell(cell: Cell) -> Cell:
    if not isinstance(cell, Place):
        return cell
    whole = shorten_paths(place_text(replace(cell, below=())))
    text = whole
    while len(text) > _MOST_PLACE and (slash := re.search(r"[/\\]", text)):  # the file's name stays
        text = text[slash.end() :]
    return text if text == whole else f".../{text}"
