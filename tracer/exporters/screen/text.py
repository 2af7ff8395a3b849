"""Lines and tables of the screen: numbers to the right, names and paths whole, an empty line before each table.

A path that is broken in two can neither be searched for nor copied. So words are never broken, and a table is folded to
a width on a terminal alone, which it exceeds where its longest words do: in a file or a pipe its lines are as long as
they are.
"""

from __future__ import annotations

import textwrap

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from tracer.answers.paths import shorten_paths
from tracer.answers.tables import WORDS, Section, Table, cell_text
from tracer.exporters.screen.terminal import text_of, visible
from tracer.units import format_bytes

_UNLIMITED = 10_000  # Columns: more than any table has


def say(console: Console, line: str = "", *, style: str = "", indent: int = 0) -> None:
    """Print one line, broken between words on a terminal, whole in a file. Nothing in it is read as markup."""
    line = visible(line)
    if console.is_terminal:
        say_wrapped(console, line, style=style, indent=indent)
    else:
        console.print(Text(" " * indent + line, style=style), soft_wrap=True)


def say_wrapped(console: Console, words: str, *, style: str = "", indent: int = 0) -> None:
    """Print prose, broken between words to the width of the console, and never in one."""
    for line in visible(words).split("\n"):
        folded = textwrap.wrap(
            line, max(console.width - indent, 20), break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
        for part in folded or [""]:
            console.print(Text(" " * indent + part, style=style), soft_wrap=True)


def print_table(table: Table, console: Console, *, top: int | None = None, is_close: bool = False) -> None:
    """Print a table below an empty line and its title, as far as it has one: its first rows, and the sum of the others.

    Args:
        is_close: Whether it stands below the line before it, without an empty one.
    """
    table = table.joined()
    grid = rich.table.Table(box=None, padding=(0, 1), pad_edge=False, show_footer=table.footer is not None)
    for column, foot in zip(table.columns, table.footer or [""] * len(table.columns), strict=True):
        grid.add_column(
            Text(visible(column.name)),
            Text(visible(cell_text(foot, column))),
            justify="left" if column.kind in WORDS else "right",
            no_wrap=column.kind != "text",
            overflow="fold",
        )
    for row in table.rows if top is None else table.first_rows(top):
        cells = zip(row, table.columns, strict=True)
        grid.add_row(*(Text(visible(cell_text(cell, column))) for cell, column in cells))
    if not is_close:
        say(console)
    if table.title:
        say(console, table.title, style="bold")
    console.print(_UnwrappedTable(grid), crop=False)


def table_lines(table: Table, *, top: int | None = None) -> list[str]:
    """The lines of a table for a file, an empty one before them."""
    return [line.rstrip() for line in text_of(lambda console: print_table(table, console, top=top)).splitlines()]


def print_section(section: Section, console: Console, *, top: int | None = None) -> None:
    """Print a section's title, sentences and tables."""
    say(console)
    if section.title:
        say(console, section.title, style="bold red" if section.is_alarming else "bold")
    for index, sentence in enumerate(section.sentences):
        style = "bold" if section.is_alarming and not index else ""
        say(console, shorten_paths(sentence), style=style, indent=2)
    for index, table in enumerate(section.tables):
        print_table(table, console, top=top, is_close=not index and not section.sentences)


def exact(size_bytes: int) -> str:
    """Bytes with a unit, and in parentheses the exact number."""
    return f"{format_bytes(size_bytes)} ({size_bytes:,} B)"


class _UnwrappedTable:
    """A table without broken words: folded between them on a terminal, and as wide as it is where there is none."""

    def __init__(self, filled: rich.table.Table) -> None:
        self._filled = filled

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal:
            yield from console.render(self._filled, options.update(width=_UNLIMITED))
            return
        for column in self._filled.columns:
            words = (word for cell in (column.header, column.footer, *column.cells) for word in str(cell).split())
            column.min_width = max([column.min_width or 0, *map(cell_len, words)])
        least = Measurement.get(console, options, self._filled).minimum
        yield from console.render(self._filled, options.update(width=max(options.max_width, least)))
